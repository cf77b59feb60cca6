"""Outputs of commands whose programs replace files and folders by others.

Everything is below the test's own folder; ``foreign`` stands for the rest of the machine.
"""

import json
import os
import pickle
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import sleep
from typing import Any, NamedTuple

import pytest

from buildsys.errors import StageError
from buildsys.stages.command.stage import run
from buildsys.store import record_file
from buildsys.system.processes import adopt_orphans
from buildsys.workers.job import Job, StageResult

FOREIGN = (
    "precious", "b/precious", "a,work/precious", "a/precious", "command/a/precious",
    "m/command/a/precious", "tree/m/command/a/precious",
)  # fmt: skip


class Done(NamedTuple):
    """A result and the reported progress."""

    result: StageResult
    messages: list[str]


def run_in_child(job: Job) -> Done:
    """Run a job in a process that has no other children, as workers do.

    Raises: StageError: as the stage.
    """
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        adopt_orphans()
        messages: list[str] = []
        try:
            answer: Any = run(replace(job, progress=messages.append))
        except StageError as error:
            answer = (error.problem, error.hint)
        except BaseException as error:
            answer = (f"unexpected {error!r}", "")
        with os.fdopen(writer, "wb") as stream:
            pickle.dump((answer, messages), stream)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        answer, messages = pickle.load(stream)
    os.waitpid(pid, 0)
    if isinstance(answer, tuple):
        raise StageError(*answer)
    return Done(answer, messages)


@dataclass
class Place:
    """A tree of outputs and a foreign folder."""

    root: Path

    def __post_init__(self) -> None:
        for name in FOREIGN:
            file = self.foreign / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("foreign")
            file.chmod(0o400)
        (self.foreign / "figures.json").write_text('{"n": {"value": 1}}')

    @property
    def foreign(self) -> Path:
        return self.root.with_name("foreign")

    @property
    def outputs(self) -> Path:
        return self.root / "tree/m/command/a"

    def job(self, *arguments: str, **outputs: str) -> Job:
        options: dict[str, Any] = {"files": {}, "references": {}, "listed": [], "env": {}}
        options |= {"run": arguments, "outputs": outputs, "pass": [], "versions": []}
        self.outputs.mkdir(parents=True, exist_ok=True)
        places = {
            f"output.{label}": self.outputs / (f"{path[:-1]}.files" if path[-1] == "/" else path)
            for label, path in outputs.items()
        }
        places["result"] = self.outputs / "command.json"
        options["device"] = "cpu"
        return Job("command:m:a", "command", "m", "a", options, {}, places, self.root)

    def run(self, script: str, *more: str, **outputs: str) -> Done:
        text = script.replace("FOREIGN", str(self.foreign))
        return run_in_child(self.job("sh", "-ec", text, *more, **outputs))

    def state(self) -> dict[str, object]:
        """Everything about the foreign files but the time of reading them."""
        found: dict[str, object] = {}
        for path in sorted(self.foreign.rglob("*")):
            status = path.lstat()
            facts = (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns)
            found[str(path)] = (facts, path.read_text() if path.is_file() else "")
        return found

    def published(self) -> dict[str, str]:
        """The regular files in the real tree, as the publisher looks for them."""
        found = (path for path in sorted(self.root.joinpath("tree").rglob("*")))
        files = (path for path in found if path.is_file() and not path.is_symlink())
        return {os.path.relpath(path, self.outputs): path.read_text() for path in files}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "project")


DEEP = """python3 -c "import os
for _ in range(1100): os.mkdir('d'); os.chdir('d')" """
REFUSED = {
    "file": ("ln -s FOREIGN/precious precious", "precious", "precious is a link"),
    "parent": ("rmdir c; ln -s FOREIGN c", "c/precious", "c is a link"),
    "folder": ("ln -s FOREIGN c", "c/", "c is a link"),
    "file in a folder": ("mkdir c; ln -s FOREIGN/precious c/x", "c/", "x is a link"),
    "folder in a folder": ("mkdir c; touch c/x; ln -s FOREIGN c/d", "c/", "d is a link"),
    "pipe": ("mkfifo precious", "precious", "precious is not a plain file"),
    "empty": ("mkdir c", "c/", "c/ is empty"),
    "folder for a file": ("mkdir out", "out", "out is not a file"),
    "file for a folder": ("touch out", "out/", "out/ is not a folder"),
    "not UTF-8": ("mkdir c; touch \"c/$(printf 'a\\377')\"", "c/", "cannot be printed"),
    "socket": (
        "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('precious')\"", "precious",
        "precious is not a plain file",
    ),
    "larger than the disk": ("truncate -s 15T precious", "precious", "the disk "),
    "too long": (
        "mkdir c; cd c; for n in $(seq 11); do mkdir $(printf %0100d $n); cd 0*; done; touch x",
        "c/", "cannot be the name of a file: its path has",
    ),
}  # fmt: skip


@pytest.mark.parametrize("attack", REFUSED)
def test_what_is_not_in_the_working_folder_is_refused(place: Place, attack: str) -> None:
    script, output, problem = REFUSED[attack]
    before = place.state()
    with pytest.raises(StageError) as caught:
        place.run(script, o=output)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    assert place.state() == before
    assert "foreign" not in place.published().values()


REPLACED = {
    "removed": 'rm -rf "$PWD"',
    "working folder": "cd ..; mv a,work x; ln -s FOREIGN a,work",
    "other working folder": "cd ..; mv a,work x; mkdir a,work; echo foreign > a,work/out",
    "link for the place": "rmdir ../a; ln -s FOREIGN ../a",
    "file for the place": "rmdir ../a; touch ../a",
    "parent": "cd ../..; mv command x; ln -s FOREIGN/command command",
    "itself behind a link": "cd ../..; mv command x; ln -s x command",
    "model": "cd ../../..; mv m x; ln -s FOREIGN/m m",
    "staging": "cd ../../../..; mv tree x; ln -s FOREIGN tree",
    "root": "cd ../../../../..; mv project x; ln -s FOREIGN project",
}


@pytest.mark.parametrize("attack", REPLACED)
def test_a_replaced_folder_is_neither_read_nor_written(place: Place, attack: str) -> None:
    before = place.state()
    with pytest.raises(StageError) as caught:
        place.run(f"echo x > out; {REPLACED[attack]}", o="out")
    text = "the command a of m removed or replaced its working folder, or one above it"
    assert caught.value.problem == text
    assert place.state() == before


def test_more_files_than_a_record_can_hold(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_file, "_MAX_OUTPUTS", 3)
    with pytest.raises(StageError, match="there are 4 files, more than 3"):
        place.run("mkdir c; touch c/1 c/2 c/3 c/4", o="c/")
    assert place.published() == {}


def test_a_device_is_refused_without_opening_it(place: Place) -> None:
    try:
        os.mknod(place.root / "probe", 0o20600, os.makedev(1, 7))
    except OSError:
        pytest.skip("needs the right to make a device")
    with pytest.raises(StageError, match="precious is not a plain file"):
        place.run("mknod precious c 1 7", o="precious")  # opening it for reading never ends


PASSED = {
    "hard link": ("ln FOREIGN/precious out", {"out": "foreign"}),
    "link in the place of an output": ("ln -s FOREIGN/precious ../a/out; echo x > out", {}),
    "link for the result": ("ln -s FOREIGN/precious ../a/command.json; echo x > out", {}),
    "undeclared links": ("ln -s FOREIGN l; mkdir d; ln -s FOREIGN d/l; echo x > out", {}),
    "unwritable folders": ("mkdir -p d/e; echo x > out; chmod 0 d/e d .", {}),
    "deep folders": (f"echo x > out; {DEEP}", {}),
}


@pytest.mark.parametrize("attack", PASSED)
def test_other_links_are_left_alone(place: Place, attack: str) -> None:
    script, expected = PASSED[attack]
    before = place.state()
    assert place.run(script, o="out").result.status == "passed"
    assert place.state() == before
    assert place.published() == (expected or {"out": "x\n"})
    assert (place.outputs / "out").stat().st_nlink == 1


def test_figures_are_not_read_through_a_link(place: Place) -> None:
    with pytest.raises(StageError, match=r"figures\.json is a link"):
        place.run("ln -s FOREIGN/figures.json figures.json", "{figures}")
    with pytest.raises(StageError, match="json is not a plain file"):
        place.run("mkfifo figures.json", "{figures}")


def test_files_and_folders_are_copied_with_their_permissions(place: Place) -> None:
    script = (
        "mkdir -p m/sub/empty; echo 1 > m/tool; echo 2 > m/sub/data; echo 3 > o/log;"
        "chmod 750 m/tool; mkdir rest; touch rest/x"
    )
    done = place.run(script, model="./m/", log="o//log")
    assert done.result.figures["outputs"] == {
        "model": {"path": "./m/", "files": 2, "bytes": 4},
        "log": {"path": "o//log", "files": 1, "bytes": 2},
    }
    published = place.published()
    assert json.loads(published.pop("m.files")) == ["sub/data", "tool"]
    assert published == {"m/tool": "1\n", "m/sub/data": "2\n", "o/log": "3\n"}
    assert (place.outputs / "m/tool").stat().st_mode & 0o777 == 0o750
    assert done.messages == ["removed rest/, which no output declares"]
    assert not list(place.outputs.with_name("a,work").iterdir())


RACES = {
    "output": "while :; do rm -f out; ln -s FOREIGN/precious out; rm -f out; echo x > out; done",
    "folder of the output": "while :; do mv c d; ln -s FOREIGN/b c; rm c; mv d c; done",
    "place": "cd ..; while :; do mv a b; ln -s FOREIGN/a a; rm a; mv b a; done",
    "appended": "while :; do echo evil >> out; done",
    "appended to the copy": "while :; do [ ! -f ../a/out ] || echo evil >> ../a/out; done",
}


@pytest.mark.parametrize("attack", RACES)
def test_no_process_outlives_the_program(place: Place, attack: str) -> None:
    script, before = RACES[attack], place.state()
    detached = f"mkdir c; echo x > out; cp out c/precious; (setsid sh -c '{script}') & sleep 0.05"
    with suppress(StageError):
        place.run(f"exec >&- 2>&-; {detached}", o="out", c="c/precious")
    assert place.state() == before
    published = place.published()
    assert "foreign" not in published.values()
    sleep(0.1)
    assert place.published() == published
    assert place.state() == before
