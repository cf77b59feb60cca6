"""The pages that ``docs/reference`` generates."""

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

from buildsys.cli.commands import COMMANDS

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
MOST_WITHOUT_REMEDY = 45  # impossible states, and remedies in the message; only lower it
MODULE = """
def refuse(name, size, hint=""):
    if size == 1:
        raise UsageError("one size only")
    if size == 2:
        hint = f"pip install {name}"
        raise StageError(f"{name} is missing", hint)
    text = "shape" if size else "type"
    problem = f"the {text} of {name} is wrong"
    yield view.problem(("inputs",), problem, "correct it" if name else "name it")
    raise StageError(str(name), hint)


def fail(name, failure):
    raise StageError(f"{name} is broken", failure.hint)
"""


@cache
def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"reference_{name}", REFERENCE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_messages_are_found_with_their_remedies() -> None:
    found = {(one.text, one.remedy) for one in load("errors").messages(MODULE)}
    assert found == {
        ("one size only", ""),
        ("… is missing", "pip install …"),
        ("the … of … is wrong", "correct it Or: name it"),
        ("… is broken", "The message ends with the remedy for the case."),
    }


def test_messages_without_a_remedy_become_fewer() -> None:
    package, errors = REFERENCE.parents[1] / "buildsys", load("errors")
    found = {
        (file.relative_to(package).as_posix(), one.text, one.remedy)
        for file in sorted(package.rglob("*.py"))
        for one in errors.messages(file.read_text(encoding="utf-8"))
        if not one.text.startswith("expected ")  # says what to write
    }
    without = [f"{file}: {text}" for file, text, remedy in sorted(found) if not remedy]
    assert len(without) <= MOST_WITHOUT_REMEDY, "\n".join([str(len(without)), *without])


def test_every_command_has_a_section_with_its_options() -> None:
    page = load("commands").page()
    assert [name for name in COMMANDS if f"\n### {name}\n" not in page] == []
    for option in ("--since VALUE", "--from VALUE", "--version VALUE"):
        assert f"`{option}`" in page


def test_every_section_of_the_schema_is_a_table() -> None:
    page = load("fields").page()
    for heading in ("## Models", "### bench {#benchspec}", "### cache {#cachespec}"):
        assert f"\n{heading}\n" in page
    assert "| `duration` | duration | `3s` | Least measured time per case and contender. |" in page
    assert "| `torchvision` | string | required |" in page


def test_every_page_is_in_the_navigation() -> None:
    docs = REFERENCE.parent
    navigation = (docs.parent / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [path.relative_to(docs).as_posix() for path in docs.rglob("*.md")]
    assert [page for page in pages if f" {page}\n" not in navigation] == []
