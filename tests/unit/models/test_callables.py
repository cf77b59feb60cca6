import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildsys.errors import StageError
from buildsys.models.user_code import load_callable


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    before = list(sys.path), list(sys.path_hooks), set(sys.modules)
    yield tmp_path
    sys.path[:], sys.path_hooks[:] = before[0], before[1]
    for name in set(sys.modules) - before[2]:
        del sys.modules[name]


def write(project: Path, path: str, text: str) -> Path:
    file = project / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_a_callable_imports_neighbours_and_modules_of_the_project(project: Path) -> None:
    write(project, "plugins/models/next_to_it.py", "WIDTH = 3")
    write(project, "layers_of_mine/deep.py", "DEPTH = 4")
    write(
        project,
        "plugins/models/net.py",
        "from next_to_it import WIDTH\nfrom layers_of_mine.deep import DEPTH\n"
        "class Net:\n  @staticmethod\n  def make(): return WIDTH * DEPTH\n",
    )
    assert load_callable("plugins/models/net.py:Net.make", project)() == 12


def test_an_edit_of_equal_size_and_time_is_noticed_in_a_file_and_its_imports(project: Path) -> None:
    """Python's bytecode cache notices neither edit."""
    for number in ("1", "2"):
        local = write(project, "same_second.py", f"NUMBER = {number}")
        file = write(
            project,
            "net.py",
            f"from same_second import NUMBER\ndef make(): return {number}, NUMBER\n",
        )
        for path in (local, file):
            os.utime(path, (1_700_000_000, 1_700_000_000))
        assert load_callable("net.py:make", project)() == (int(number), int(number))
        del sys.modules["same_second"]
    assert not list(project.rglob("*.pyc"))


def test_a_module_can_be_imported_by_name_while_it_runs(project: Path) -> None:
    write(
        project,
        "net.py",
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Size:\n  width: int\n",
    )
    assert load_callable("net.py:Size", project)(3).width == 3


@pytest.mark.parametrize(
    ("text", "reference", "message"),
    [
        ("", "nets.py:make", "nets.py does not exist in the project; did you mean net.py?"),
        ("def net(): pass", "net.py:nets", "net.py has no nets; did you mean net?"),
        ("", "net.py:make", "net.py has no make; define it there"),
        ("W = 3", "net.py:W", "net.py:W is of type int; name a function or a class"),
        ("x = 1\ndef make(:", "net.py:make",
         "importing net.py failed: SyntaxError: invalid syntax (net.py:2)"),
        ("\n\nraise KeyError('w')", "net.py:make",
         "importing net.py failed: KeyError: 'w' (net.py:3)"),
        ("import no_such_thing", "net.py:make",
         "importing net.py failed: ModuleNotFoundError: No module named 'no_such_thing'"
         " (net.py:1); pip install no_such_thing"),
    ],
)  # fmt: skip
def test_an_error_is_one_sentence(project: Path, text: str, reference: str, message: str) -> None:
    write(project, "net.py", text)
    with pytest.raises(StageError) as error:
        load_callable(reference, project)
    assert str(error.value) == message


def test_the_line_is_the_innermost_one_of_the_project(project: Path) -> None:
    write(project, "deep_error.py", "import json\ndef parse():\n  return json.loads('{')\n")
    write(project, "net.py", "import deep_error\ndeep_error.parse()\n")
    with pytest.raises(StageError, match=r"JSONDecodeError: .* \(deep_error.py:3\)$"):
        load_callable("net.py:make", project)
