"""Full and read-only disks (mounted) and a limit on file sizes."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from project_folder import Ran
from ready_project import UP_TO_DATE, ReadyProject, contents, targets

ALL = targets("a")


def mount(*arguments: object) -> None:
    done = subprocess.run(
        ["mount", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder)
    try:
        yield
    finally:
        subprocess.run(
            ["umount", "--lazy", folder], check=True
        )  # a server may still have its log there


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    mount("--bind", folder, folder)
    try:
        mount("-o", "remount,bind,ro", folder)
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def sentence(ran: Ran) -> str:
    """Return the line of the one failed target."""
    lines = [line for line in ran.out.splitlines() if line.startswith("failed ")]
    assert len({line.split()[1] for line in lines}) == 1
    return lines[-1]  # at the end of the run: whole


def test_a_full_build_folder(ready: ReadyProject) -> None:
    with small_disk(ready.root / "build", "700k"):
        full = ready.doit()
        assert full.code == 2
        assert f"the disk of {ready.root / 'build'} has " in sentence(full)
        clean = ready.clean_contents().items()
        assert contents(ready.root / "build").items() <= clean, "something is half"
        mount("-o", "remount,size=64m", ready.root / "build")
        again = ready.doit()
        assert (again.code, again.passed) == (0, ALL - full.passed)
        assert contents(ready.root / "build").items() == clean
        assert ready.doit() == UP_TO_DATE


def test_a_state_folder_without_space(ready: ReadyProject) -> None:
    with small_disk(ready.root / ".buildsys", "4k"):
        full = ready.doit()
        assert full.code == 2
        assert "its folder must be writable and its disk not full" in sentence(full)


def test_a_read_only_build_folder(ready_built: ReadyProject) -> None:
    with read_only(ready_built.root / "build"):
        assert ready_built.doit() == UP_TO_DATE
        ready_built.write_network(1)
        ran = ready_built.doit()
        assert ran.code == 2
        folder = ready_built.root / "build"
        assert f"cannot make a temporary folder in {folder}: Read-only file system" in sentence(ran)
    assert ready_built.doit().passed == ALL
    assert contents(ready_built.root / "build") == ready_built.clean_contents()


def test_a_read_only_state_folder(ready_built: ReadyProject) -> None:
    assert ready_built.doit() == UP_TO_DATE  # has looked at the files of the copied project
    with read_only(ready_built.root / ".buildsys"):
        assert ready_built.doit() == UP_TO_DATE
        assert ready_built.doit("list").code == 0
        ready_built.write_network(1)
        ran = ready_built.doit()
        assert ran.code == 2
        assert "Read-only file system; the folder must be writable" in sentence(ran)
    assert ready_built.doit().passed == ALL
    assert contents(ready_built.root / "build") == ready_built.clean_contents()
