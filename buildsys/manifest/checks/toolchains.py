"""Checks of toolchains and their use by engines."""

from __future__ import annotations

from buildsys.manifest.problem import Problem, Problems, show_value, suggest
from buildsys.manifest.value_tree import ValueNode
from buildsys.system.interpreters.toolchain import override_variable


def toolchain_problems(toolchains: ValueNode) -> Problems:
    """Yield colliding names and unusable interpreter paths."""
    taken: dict[str, str] = {}
    for name, toolchain in toolchains.items():
        variable = override_variable(name)
        if variable in taken:
            text = f"{name} and {taken[variable]} share the environment variable {variable}"
            yield Problem(toolchain.origin, text, "rename one of them", of_key=True)
        taken.setdefault(variable, name)
        python = toolchain.get("python")
        path = python.value if python is not None else None
        if python is not None and isinstance(path, str) and ("\0" in path or not path.strip()):
            yield Problem(python.origin, f"{show_value(path)} is not a path")


def unknown_toolchain(engine: ValueNode, toolchains: ValueNode | None) -> Problems:
    """Yield an engine's undeclared toolchain; ``toolchains`` is None if project.yaml is broken."""
    named = engine.get("toolchain")
    if named is None or toolchains is None or not isinstance(named.value, str):
        return
    known = [name for name, _ in toolchains.items()]
    if named.value not in known:
        close = suggest(named.value, known, what="toolchains")
        hint = close or "declare it in configs/project.yaml"
        yield Problem(named.origin, f"unknown toolchain {show_value(named.value)}", hint)
