"""`constraints.txt`: complete, and within the ranges of pyproject.toml."""

import importlib.util
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def constraints() -> ModuleType:
    spec = importlib.util.spec_from_file_location("constraints", ROOT / ".ci/constraints.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def requirements() -> list[Requirement]:
    """Return what buildsys[test] requires directly."""
    reader: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project = reader.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    found = list(map(Requirement, project["dependencies"]))
    waiting = list(map(Requirement, extras["test"]))
    while waiting:
        one = waiting.pop()
        if one.name == "buildsys":
            waiting += [Requirement(line) for extra in sorted(one.extras) for line in extras[extra]]
        else:
            found.append(one)
    return [one for one in found if one.marker is None]


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_every_requirement_has_a_version_in_its_range(
    constraints: ModuleType, requirement: Requirement
) -> None:
    version = constraints.read_pins()[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version)


def test_the_versions_are_those_of_all_installed_requirements(constraints: ModuleType) -> None:
    found = constraints.installed_closure("buildsys", frozenset({"test"}))
    assert {"torch", "numpy", "sympy", "pytest"} <= found.keys()  # also indirect ones
    assert "buildsys" not in found
    assert list(constraints.differences({"a": "1", "b": "1", "c": "1"}, {"a": "1", "b": "2"})) == [
        "b 2 is installed, 1 is in constraints.txt",
        "c 1 is in constraints.txt, and not needed here",
    ]
    assert list(constraints.differences({}, {"a": "1"})) == [
        "a 1 is installed, and not in constraints.txt"
    ]
