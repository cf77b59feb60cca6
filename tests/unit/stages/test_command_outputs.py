"""Outputs of commands whose programs replace files and folders by others.

Everything is below the test's own folder; ``foreign`` stands for the rest of the machine.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from buildsys.errors import StageError
from buildsys.stages.command.stage import run
from buildsys.workers.job import Job, StageResult

FOREIGN = ("precious", "b/precious", "a,work/precious", "a/precious", "command/a/precious")


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
        return self.root / "foreign"

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

    def run(self, script: str, *more: str, **outputs: str) -> StageResult:
        text = script.replace("FOREIGN", str(self.foreign))
        return run(self.job("sh", "-ec", text, *more, **outputs))

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
    return Place(tmp_path)


REFUSED = {
    "file": ("ln -s FOREIGN/precious precious", "precious", "precious is a link"),
    "parent": ("rmdir c; ln -s FOREIGN c", "c/precious", "c is a link"),
    "folder": ("ln -s FOREIGN c", "c/", "c is a link"),
    "file in a folder": ("mkdir c; ln -s FOREIGN/precious c/x", "c/", "x is a link"),
    "folder in a folder": ("mkdir c; touch c/x; ln -s FOREIGN c/d", "c/", "d is a link"),
    "working folder": ("cd ..; mv a,work x; ln -s FOREIGN a,work", "precious", "a,work is a link"),
    "pipe": ("mkfifo precious", "precious", "precious is not a plain file"),
    "empty": ("mkdir c", "c/", "c/ is empty"),
    "folder for a file": ("mkdir out", "out", "out is not a file"),
    "file for a folder": ("touch out", "out/", "out/ is not a folder"),
    "not UTF-8": ("mkdir c; touch \"c/$(printf 'a\\377')\"", "c/", "is not a plain file"),
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
    "link for the place": ("echo x > out; rmdir ../a; ln -s FOREIGN ../a", {}),
}


@pytest.mark.parametrize("attack", PASSED)
def test_other_links_are_left_alone(place: Place, attack: str) -> None:
    script, expected = PASSED[attack]
    before = place.state()
    assert place.run(script, o="out").status == "passed"
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
    messages: list[str] = []
    job = place.job("sh", "-ec", script, model="./m/", log="o//log")
    object.__setattr__(job, "progress", messages.append)
    found = run(job).figures["outputs"]
    assert found == {
        "model": {"path": "./m/", "files": 2, "bytes": 4},
        "log": {"path": "o//log", "files": 1, "bytes": 2},
    }
    published = place.published()
    assert json.loads(published.pop("m.files")) == ["sub/data", "tool"]
    assert published == {"m/tool": "1\n", "m/sub/data": "2\n", "o/log": "3\n"}
    assert (place.outputs / "m/tool").stat().st_mode & 0o777 == 0o750
    assert messages == ["removed rest/, which no output declares"]
    assert not place.outputs.with_name("a,work").exists()
