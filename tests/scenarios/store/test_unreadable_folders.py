"""Folders and files that the user may not access."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from project_folder import TIMEOUT_S
from ready_project import ReadyProject

# root may access everything; without these capabilities, what others may
_AS_OTHERS = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
pytestmark = pytest.mark.skipif(
    os.getuid() == 0 and not shutil.which("setpriv"), reason="root needs setpriv of util-linux"
)


@contextlib.contextmanager
def mode(path: Path, bits: int) -> Iterator[None]:
    before = path.stat().st_mode
    path.chmod(bits)
    try:
        yield
    finally:
        path.chmod(before)


def run(project: ReadyProject, program: str, *arguments: str) -> str:
    """Return what a program prints as a user without special rights."""
    command = [sys.executable, "-m", program, *arguments]
    done = subprocess.run(
        [*(_AS_OTHERS if os.getuid() == 0 else ()), *command],
        cwd=project.root,
        env=project.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert "Traceback" not in done.stdout, done.stdout
    return done.stdout


def test_a_build_folder_and_a_history(ready_built: ReadyProject) -> None:
    build = ready_built.root / "build"
    with mode(build, 0):
        printed = run(ready_built, "doit", "export:a")
        place = f"cannot read {build}/a/export/model.onnx: Permission denied"
        assert f"{place}; check its permissions and its disk" in printed
        assert "Errno" not in printed
    with mode(ready_built.root / ".buildsys/history.db", 0):
        printed = run(ready_built, "buildsys", "history")
        assert "cannot be read (unable to open database file; check its permissions)" in printed
    assert ready_built.doit().code == 0
