"""Recorder of reads: what user code reads, in every form, with its line."""

import atexit
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from buildsys.system.files import listing_digest

# forks a process per line: starting one for each test takes ten times as long
_SERVER = """
import json, os, runpy, sys, traceback
from buildsys.workers import read_recorder
for line in sys.stdin:
    driver, project, environment = json.loads(line)
    answers, output = os.pipe()
    if not os.fork():
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(project)
        sys.argv[1:] = [project]
        try:
            exec(driver, {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(0)
    os.close(output)
    with open(answers) as answer:
        print(json.dumps(answer.read()), flush=True)
    os.wait()
"""
_DRIVER = """
import json, runpy, sys
from pathlib import Path
from buildsys.workers import read_recorder
project = Path(sys.argv[1])
recorder = read_recorder.ReadRecorder(project, (f"{project}/out/",))
sys.path.insert(0, str(project))
recorder.start()
import net
print("READS" + json.dumps(recorder.stop()))
"""
Found = dict[tuple[str, str], str]


def recorded(project: Path, code: str, **variables: str) -> Found:
    """Return (kind, name) -> file:line of what a module reads when it is imported."""
    (project / "net.py").write_text(code)
    found = {}
    for kind, name, where, *_ in run(project, **variables):
        name = name.removeprefix(f"{project}/")
        if name != "net.py":
            found[kind, name] = where
    return found


def run(project: Path, driver: str = _DRIVER, **variables: str) -> list[list[Any]]:
    """Return all reads of a project's module when it is imported."""
    streams = server()
    environment = {**os.environ, "SCALE": "2", **variables}
    print(json.dumps([driver, str(project), environment]), file=streams.stdin, flush=True)
    assert streams.stdout is not None
    printed: str = json.loads(streams.stdout.readline())
    (line,) = [line for line in printed.splitlines() if line.startswith("READS")] or [printed]
    assert line.startswith("READS"), line
    reads: list[list[Any]] = json.loads(line.removeprefix("READS"))
    return reads


@cache
def server() -> subprocess.Popen[str]:
    """Start the process that forks all others; it has only loaded the recorder."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    started = subprocess.Popen(
        [sys.executable, "-c", _SERVER], env=environment, text=True, **streams
    )
    atexit.register(started.communicate)
    return started


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "data" / "a.txt").write_text("1")
    return folder


@pytest.mark.parametrize(
    "code",
    [
        'import os\nos.environ["SCALE"]',
        'import os\nos.environ.get("SCALE")',
        'import os\n"SCALE" in os.environ',
        'from os import environ as env\nenv["SCALE"]',
        'from os import getenv as g\ng(key="SCALE")',
        'import os\ndict(os.environ)["SCALE"]',
        'import os\nos.environ.copy()["SCALE"]',
        'import os\n[v for k, v in os.environ.items() if k == "SCALE"]',
        'import os\n(os.environ | {})["SCALE"]',
        'import os\nos.environb[b"SCALE"]',
        'from os import getenvb\ngetenvb(b"SCALE")',
        'import os\nos.path.expandvars("$SCALE")',
        'import os\nexec("import os; os.environ.get(\\"SCALE\\")")',
    ],
)
def test_a_variable_is_seen_through_every_alias(project: Path, code: str) -> None:
    assert recorded(project, code)["variable", "SCALE"] == "net.py:2"


def test_a_copy_of_the_environment_depends_on_all_names(project: Path) -> None:
    assert ("variable", "*") in recorded(project, "import os\nlist(os.environ)")


def test_variables_of_libraries_are_theirs(project: Path) -> None:
    code = "import os, tempfile, pathlib\ntempfile.gettempdir()\npathlib.Path.home()\n"
    assert recorded(project, code) == {}


@pytest.mark.parametrize(
    "code",
    ['os.environ.get("SCALE")', 'os.getenv("SCALE")', 'def get():\n    return os.environ["SCALE"]'],
)
def test_a_variable_read_by_a_library_has_no_line(project: Path, code: str) -> None:
    found = recorded(project, *install(project, code))
    assert found["variable", "SCALE"] == ""
    assert ("variable", "*") not in found


@pytest.mark.parametrize(
    "code", ["dict(os.environ)", "os.environ.copy()", 'os.getenv("HOME")', "list(os.environ)"]
)
def test_a_library_that_copies_the_environment_depends_on_no_name(project: Path, code: str) -> None:
    found = recorded(project, *install(project, code))
    assert [name for kind, name in found if kind == "variable"] == []


def install(project: Path, code: str) -> tuple[str]:
    """Install a library; return a network that uses it."""
    site = project.parent / "site-packages"
    site.mkdir()
    (site / "lib.py").write_text(f"import os\nget = str\n{code}\n")
    return (f"import sys\nsys.path.append({str(site)!r})\nimport lib; lib.get()\n",)


@pytest.mark.parametrize(
    "code",
    [
        '#\nopen("config.json").read()',
        'import pathlib\npathlib.Path("config.json").read_text()',
        'import os\nos.open("config.json", os.O_RDONLY)',
        'import io\nio.open(b"config.json")',
        'import numpy\nnumpy.fromfile("config.json", dtype="u1")',
        'import shutil\nshutil.copyfile("config.json", "out.json")',
        'import os\nos.path.isfile("config.json")',
        '#\nexec("open(\\"config.json\\").read()")',
        '#\nopen("config.json", "r+").read()',
        'import os\nos.open("config.json", os.O_RDWR)',
        'import sqlite3\nsqlite3.connect("config.json")',
        'import sqlite3\nsqlite3.connect("file:config.json?mode=ro", uri=True)',
        'import threading\nt = threading.Thread(target=lambda: open("config.json"))\n'
        "t.start(), t.join()",
    ],
)
def test_a_file_is_seen_in_every_form(project: Path, code: str) -> None:
    assert recorded(project, code)["file", "config.json"] == "net.py:2"


def test_a_file_read_by_threads_of_a_library_is_seen(project: Path) -> None:
    code = (
        "import concurrent.futures as futures, pathlib\n"
        "with futures.ThreadPoolExecutor() as pool:\n"
        "    list(pool.map(pathlib.Path.read_text, [pathlib.Path('config.json')]))\n"
    )
    assert recorded(project, code)["file", "config.json"] == ""


@pytest.mark.parametrize(
    "code",
    [
        "open('config.json').read(); open('config.json', 'w').write('2')",
        "open('config.json', 'r+').write('2')",
        "open('config.json').read(); open('new', 'w').close(); os.replace('new', 'config.json')",
        "open('config.json').read(); os.remove('config.json')",
    ],
)
def test_a_file_read_and_written_by_the_stage_is_marked(project: Path, code: str) -> None:
    (project / "net.py").write_text(f"import os\n{code}\n")
    (read,) = [read for read in run(project) if read[1].endswith("config.json")]
    assert read[4] is True


def test_a_listing_is_compared_with_its_state_before_the_read(project: Path) -> None:
    (project / "net.py").write_text("import os\nos.listdir('data')\n")
    before = listing_digest(str(project / "data"))
    (read,) = [read for read in run(project) if read[0] == "listing"]
    assert read[3:] == [before, False]
    (project / "net.py").write_text("import os\nos.listdir('data'); open('data/b', 'w').close()\n")
    (read,) = [read for read in run(project) if read[0] == "listing"]
    assert read[3:] == [before, True]


def test_a_file_read_by_a_forked_process_is_seen(project: Path) -> None:
    code = (
        "import os\n"
        "if not (pid := os.fork()):\n"
        "    open('config.json').read(); os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    assert recorded(project, code)["file", "config.json"] == "net.py:3"


@pytest.mark.parametrize(
    "code",
    [
        'import os\nos.listdir("data")',
        'import os\nlist(os.scandir("data"))',
        'import glob\nglob.glob("data/*.txt")',
        'import pathlib\nlist(pathlib.Path("data").iterdir())',
        'import pathlib\nlist(pathlib.Path("data").glob("*.txt"))',
        'import os\nlist(os.walk("data"))',
    ],
)
def test_a_listed_folder_is_seen(project: Path, code: str) -> None:
    assert recorded(project, code)["listing", "data"] == "net.py:2"


@pytest.mark.parametrize(
    "code",
    [
        'import importlib\nimportlib.import_module("".join(["hid", "den"]))',
        '#\n__import__("hid" + "den")',
        '#\nexec(open("hidden.py").read())',
        'import runpy\nrunpy.run_path("hidden.py")',
    ],
)
def test_a_computed_import_is_seen(project: Path, code: str) -> None:
    (project / "hidden.py").write_text("x = 1\n")
    assert recorded(project, code)["file", "hidden.py"] == "net.py:2"


def test_a_module_in_an_added_folder_is_seen(project: Path) -> None:
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "far.py").write_text("x = 1\n")
    code = f"import sys; sys.path.append({str(elsewhere)!r})\nimport far\n"
    assert recorded(project, code)["file", str(elsewhere / "far.py")] == "net.py:2"


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no file system in memory")
def test_a_file_in_memory_is_seen_and_a_device_is_not(project: Path) -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        found = recorded(project, f"open({file.name!r}).read()\nopen('/dev/zero', 'rb').read(1)\n")
    assert found == {("file", file.name): "net.py:1"}


def test_a_computed_import_of_a_library_is_seen(project: Path) -> None:
    code = 'import importlib\nimportlib.import_module("ya" + "ml")\n'
    found = recorded(project, code)
    assert found["module", "yaml"] == "net.py:2"
    assert not [name for kind, name in found if kind == "file"]


def test_a_missing_file_is_seen(project: Path) -> None:
    code = "import os\nos.path.exists('override.json')\n"
    assert recorded(project, code)["file", "override.json"] == "net.py:2"


def test_own_products_are_not_reads(project: Path) -> None:
    code = "open('made.txt', 'w').write('1')\nopen('made.txt').read()\nopen('out/x', 'w')\n"
    (project / "out").mkdir()
    assert recorded(project, code) == {}


_C_WRITER = """
import ctypes, os
libc = ctypes.CDLL(None)
def write_in_c(path):
    descriptor = libc.creat(path.encode(), 0o600)
    libc.write(descriptor, b"made in C", 9)
    libc.close(descriptor)
"""


@pytest.mark.parametrize(
    "code",
    [
        "with tempfile.TemporaryDirectory() as d: write_in_c(d + '/x'); open(d + '/x').read()",
        "with tempfile.TemporaryDirectory() as d: os.path.exists(d + '/x'); os.listdir(d)",
        "write_in_c('made'); open('made').read(); libc.unlink(b'made')",
        "write_in_c('made'); open('made').read(); write_in_c('made'); os.remove('made')",
    ],
)
def test_temporary_files_written_in_c_are_not_reads(project: Path, code: str) -> None:
    assert recorded(project, f"import tempfile{_C_WRITER}{code}\n") == {}


def test_a_folder_that_existed_is_no_product(project: Path) -> None:
    code = "import os\nos.makedirs('data', exist_ok=True)\nos.listdir('data')\n"
    assert recorded(project, code)["listing", "data"] == "net.py:3"


def test_the_system_and_the_interpreter_are_not_reads(project: Path) -> None:
    code = (
        "import os, json, inspect, email, locale\n"
        "open('/proc/self/status').read(); open('/dev/null').read(); open(os.__file__).read()\n"
        "import numpy, yaml\nopen(numpy.__file__).read()\n"
    )
    found = recorded(project, code)
    assert [name for kind, name in found if kind not in ("module", "variable")] == []
    assert {where for (kind, _), where in found.items() if kind == "variable"} <= {""}  # numpy's


def test_the_environment_stays_the_same_object(project: Path) -> None:
    code = (
        "import os\n"
        "assert type(os.environ).__name__ == '_Environ'\n"
        "os.environ['NEW'] = '1'; assert os.environ.pop('NEW') == '1'\n"
        "assert os.environ == dict(os.environ) and len(os.environ) > 1\n"
        "assert os.stat('config.json').st_size == 2 and os.stat(0)\n"
    )
    assert ("variable", "*") in recorded(project, code)
