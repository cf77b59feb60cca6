"""Guarded streams, and Ctrl-C in imports."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from buildsys.cli.console.streams import guarded

PROGRAM = """\
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == sys.argv[-1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv[0] = PROGRAM
from buildsys.cli.main import main
from buildsys.cli.tasks import load
print("went on", flush=True)
"""


def test_a_stream_without_a_reader_drops_what_is_written() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe, Path("/dev/full").open("w") as full:
        for stream in (pipe, full):
            out = guarded(stream)
            assert guarded(out) is out
            for _ in range(2):
                print("line", file=out)
                out.flush()
    with guarded(None) as out:
        print("line", file=out)


def test_a_slow_reader_gets_everything() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    content, size = b"", 1 << 18

    def read() -> None:
        nonlocal content
        while piece := os.read(reader, 1 << 12):
            content += piece

    thread = threading.Thread(target=read)
    with os.fdopen(writer, "w") as pipe:
        out = guarded(pipe)
        thread.start()
        out.write("x" * size)
        out.flush()
    thread.join()
    os.close(reader)
    assert content == b"x" * size


@pytest.mark.parametrize("program", ["/usr/bin/buildsys", "/usr/lib/doit/__main__.py"])
@pytest.mark.parametrize("module", ["pydantic.plugin._loader", "buildsys.project.load", "doit.api"])
def test_ctrl_c_in_an_import_ends_the_program(program: str, module: str) -> None:
    code = (
        PROGRAM.replace("PROGRAM", repr(program))
        + "import pydantic\nclass M(pydantic.BaseModel): x: int\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, module], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (130, "")
