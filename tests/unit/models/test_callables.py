import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildsys.errors import StageError
from buildsys.models.user_code import load_callable


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    before = list(sys.path), list(sys.meta_path), set(sys.modules)
    root = tmp_path / "project"
    root.mkdir()
    yield root
    sys.path[:], sys.meta_path[:] = before[0], before[1]
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
        del sys.modules["same_second"], sys.modules["net"]
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
        ("raise SystemExit(2)", "net.py:make",
         "importing net.py failed: SystemExit: 2 (net.py:1); put what only a script does below `if"
         ' __name__ == "__main__":`'),
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


PACKAGES = {
    "src/own_app/__init__.py": "",
    "src/own_app/nets/__init__.py": "from own_app.nets import net",
    "src/own_app/nets/net.py": "from own_app.nets import net\nfrom ..base import Base\n"
    "class Net(Base): value = 1\n",
    "src/own_app/base.py": "class Base: pass",
    "src/own_space/deep/net.py": "from ..base import Base\nclass Net(Base): value = 2\n",
    "src/own_space/base.py": "from own_app.base import Base",
    "tools/own-net.py": "import own_app.base\nfrom beside_it import VALUE\n"
    "class Net(own_app.base.Base): value = VALUE\n",
    "tools/beside_it.py": "VALUE = 3",
    "json.py": "from own_app.base import Base\nclass Net(Base): value = 4\n",
    "v1.2/net.py": "import sys\nsys.path.insert(0, 'elsewhere')\n"
    "from own_app.base import Base\nclass Net(Base): value = 5\n",
    "../outside/own_lib/__init__.py": "",
    "../outside/own_lib/net.py": "from own_app.base import Base\nfrom . import values\n"
    "class Net(Base): value = values.VALUE\n",
    "../outside/own_lib/values.py": "VALUE = 6",
    "pytest/__init__.py": "",
    "pytest/net.py": "from own_app.base import Base\nfrom block import VALUE\n"
    "class Net(Base): value = VALUE\n",
    "pytest/block.py": "VALUE = 7",
    "pytest/relative.py": "from .block import VALUE",
    "main.py": "from own_app.base import Base\nclass Net(Base): value = 8\n"
    "if __name__ == '__main__':\n  raise SystemExit\n",
}  # fmt: skip
LOADED = {  # reference -> its value, and the name of its module
    "own_app.nets.net:Net": (1, "own_app.nets.net"),
    "src/own_app/nets/net.py:Net": (1, "own_app.nets.net"),
    "own_space.deep.net:Net": (2, "own_space.deep.net"),
    "src/own_space/deep/net.py:Net": (2, "own_space.deep.net"),
    "tools/own-net.py:Net": (3, "tools.own-net"),
    "json.py:Net": (4, "_buildsys_json"),
    "v1.2/net.py:Net": (5, "_buildsys_v1_2_net"),
    "../outside/own_lib/net.py:Net": (6, "own_lib.net"),
    "pytest/net.py:Net": (7, "_buildsys_pytest_net"),  # the library is imported already
    "main.py:Net": (8, "main"),
}


def test_a_class_exists_once_however_its_module_is_named(project: Path) -> None:
    for name, text in PACKAGES.items():
        write(project, name, text)
    loaded = {reference: load_callable(reference, project) for reference in LOADED}
    for reference, (value, module) in LOADED.items():
        assert (loaded[reference].value, loaded[reference].__module__) == (value, module)
        assert load_callable(reference, project) is loaded[reference]
    assert len({network.__mro__[1] for network in loaded.values()}) == 1
    assert len({*loaded.values()}) == len(loaded) - 2
    assert sys.modules["json"].dumps(1) == "1"
    with pytest.raises(StageError) as error:
        load_callable("pytest.net:Net", project)
    library = sys.modules["pytest"].__file__
    assert str(error.value) == (
        f"pytest.net is not pytest/net.py, which {library} hides; rename the package, or name the"
        " file"
    )
    with pytest.raises(StageError) as error:
        load_callable("pytest/relative.py:Net", project)
    assert error.value.hint == f"rename its package, which {library} hides"
    with pytest.raises(StageError, match=r"there is no module own_app.nets.no; name its file, "):
        load_callable("own_app.nets.no:Net", project)


def test_a_relative_import_of_a_file_without_a_package_has_a_next_step(project: Path) -> None:
    write(project, "src/deep/net.py", "from ...base import Base")
    with pytest.raises(StageError) as error:
        load_callable("src/deep/net.py:Net", project)
    assert str(error.value) == (
        "importing src/deep/net.py failed: ImportError: attempted relative import beyond top-level"
        " package (src/deep/net.py:1); name it as Python imports it from the project,"
        " package.module:NAME"
    )


def test_the_line_is_the_innermost_one_of_the_project(project: Path) -> None:
    write(project, "deep_error.py", "import json\ndef parse():\n  return json.loads('{')\n")
    write(project, "net.py", "import deep_error\ndeep_error.parse()\n")
    with pytest.raises(StageError, match=r"JSONDecodeError: .* \(deep_error.py:3\)$"):
        load_callable("net.py:make", project)
