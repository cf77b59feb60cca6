"""Real runs whose terminal is closed or full, or whose reader has gone."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from ready_project import ReadyProject

MANIFEST = """\
model: tiny
commands:
  - {name: a, run: "sh -c 'echo good > o'", outputs: {o: o}}
  - {name: b, run: "sh -c 'echo good > o'", outputs: {o: o}}
"""
ENDED_AT = """\
import os, signal, sys

class End:
    def find_spec(self, name, path, target=None):
        if name == "pydantic":
            os.kill(os.getpid(), signal.NUMBER)

sys.meta_path.insert(0, End())
sys.argv[:] = ["buildsys", "nightly"]
from buildsys.cli.main import main
main()
"""
STREAMS = {
    "full": "> /dev/full",
    "closed": ">&-",
    "all closed": "<&- >&- 2>&-",
    "no reader": "| true",
    "one line": "| head -1",
}


@pytest.fixture(scope="module")
def project(ready_place: ReadyProject) -> Iterator[ReadyProject]:
    with ready_place.cleared():
        ready_place.create()
        (ready_place.root / "configs/models/tiny.yaml").write_text(MANIFEST)
        yield ready_place


def shell(project: ReadyProject, command: str) -> tuple[int, str]:
    """Run a command in a shell; return the code of its first program, and the errors."""
    ran = subprocess.run(
        ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"],
        cwd=project.root, env=project.environment, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    return ran.returncode, ran.stderr


@pytest.mark.parametrize("streams", STREAMS)
def test_a_build_goes_on_without_its_console(project: ReadyProject, streams: str) -> None:
    outputs = [project.root / f"build/tiny/command/{name}/o" for name in "ab"]
    for program in ("buildsys build --force", "doit run -a"):
        for path in outputs:
            path.unlink(missing_ok=True)
        assert shell(project, f"python -m {program} {STREAMS[streams]}") == (0, "")
        assert [path.read_text() for path in outputs] == ["good\n", "good\n"]


def test_a_nightly_run_completes_its_files(project: ReadyProject) -> None:
    assert shell(project, "python -m buildsys nightly --all > /dev/full 2>&1") == (0, "")
    document = json.loads((project.root / "build/nightly/nightly.json").read_text())
    assert (document["status"], document["exit_code"]) == ("finished", 0)


def test_a_lost_answer_is_an_error(project: ReadyProject) -> None:
    lost = "ERROR: cannot write the output: "
    for streams, code, error in (
        ("> /dev/full", 2, f"{lost}No space left on device\n"),
        (">&-", 2, f"{lost}Bad file descriptor\n"),
        ("| true", 141, ""),
        ("2>&-", 0, ""),
    ):
        for command in ("buildsys list", "doit list --all", "doit clean"):
            assert shell(project, f"python -m {command} {streams}") == (code, error)
    assert not (project.root / "build/tiny").exists()


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_nightly_run_that_ends_while_it_loads_says_so(
    project: ReadyProject, number: str, code: int
) -> None:
    with (project.root / "configs/models/tiny.yaml").open("a") as manifest:
        manifest.write("# changed\n")  # else it is in a cache, and read without pydantic
    ran = subprocess.run(
        [sys.executable, "-c", ENDED_AT.replace("NUMBER", number)],
        cwd=project.root, env=project.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (code, "")
    document = json.loads((project.root / "build/nightly/nightly.json").read_text())
    assert (document["status"], document["exit_code"]) == ("interrupted", code)
