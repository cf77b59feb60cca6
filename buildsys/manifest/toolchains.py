"""The toolchains of project.yaml, and the engines that name them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from buildsys.manifest.problem import Problem, show_value, suggest
from buildsys.manifest.value_tree import Node
from buildsys.manifest.yaml_reader import read_yaml
from buildsys.system.interpreters.toolchain import override_variable


def toolchain_problems(node: Node) -> Iterator[Problem]:
    """Yield what a schema cannot say of the section ``toolchains``."""
    taken: dict[str, str] = {}
    for name, toolchain in node.items():
        variable = override_variable(name)
        if variable in taken:
            text = f"{name} and {taken[variable]} cannot be told apart in the environment variable {variable}"
            yield Problem(toolchain.origin, text, "rename one of them", of_key=True)
        taken.setdefault(variable, name)
        python = toolchain.get("python")
        if (
            python is not None
            and isinstance(python.value, str)
            and ("\0" in python.value or not python.value.strip())
        ):
            yield Problem(python.origin, f"{show_value(python.value)} is not a path")


def unknown_toolchains(engine: Node, toolchains: Node | None) -> Iterator[Problem]:
    """Yield the problem of an engine whose toolchain is not there; None: project.yaml is broken, and says so."""
    named = engine.get("toolchain")
    if named is None or toolchains is None or not isinstance(named.value, str):
        return
    known = [name for name, _ in toolchains.items()]
    if named.value not in known:
        hint = (
            suggest(named.value, known, what="toolchains")
            or "toolchains are declared in configs/project.yaml"
        )
        yield Problem(named.origin, f"no toolchain is named {show_value(named.value)}", hint)


def used_toolchains(
    engines: list[Mapping[str, Any]], toolchains: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the toolchains that engines name, as project.yaml has them; of a broken one there are none."""
    names = [
        name
        for name in dict.fromkeys(engine["toolchain"] for engine in engines)
        if name in toolchains
    ]
    return {
        name: {"python": toolchains[name]["python"], "env": toolchains[name].get("env") or {}}
        for name in names
    }


def declared_toolchains(configs: Path) -> dict[str, tuple[str, dict[str, str]]]:
    """Return name -> interpreter and variables of all toolchains, out of a file that was checked before."""
    file = configs / "project.yaml"
    if not file.exists():
        return {}
    found = read_yaml(file, file.read_bytes())
    declared = (found.get("toolchains") or {}) if isinstance(found, dict) else {}
    return {
        name: (written["python"], written.get("env") or {}) for name, written in declared.items()
    }
