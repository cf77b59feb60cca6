"""Checks of commands, and of models without a network."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from buildsys.manifest.command_templates import (
    FIGURES,
    LISTING,
    LOG_FILE,
    RESERVED,
    RESULT_FILE,
    reference_of,
    references,
)
from buildsys.manifest.problem import Problems, show_value, suggest
from buildsys.manifest.value_tree import FieldPath
from buildsys.manifest.view import REFUSED, ManifestView
from buildsys.stages.table import NETWORK_SECTIONS

_GRAPHS = ("exported", "simplified")
_KINDS = ("commands.NAME.OUTPUT", "engines.NAME", "exported", "simplified", "golden.CASE")


def problems(view: ManifestView) -> Problems:
    """Yield missing networks, and unusable references and paths."""
    yield from _network(view)
    commands: dict[str, dict[str, Any]] = {}
    for path, command in view.maps("commands", ...):
        name = command.get("name")
        if isinstance(name, str) and name in commands:
            text = f'another command is named "{name}"'
            yield view.problem((*path, "name"), text, "rename one of them")
        for label, text in view.map(*path, "inputs").items():
            reference = reference_of(text) if isinstance(text, str) else None
            if reference and (wrong := _reference_problem(view, text, reference, commands)):
                yield view.problem((*path, "inputs", label), *wrong)
        yield from _outputs(view, path)
        yield from _run(view, path, command)
        if isinstance(name, str):
            commands.setdefault(name, command)


def _network(view: ManifestView) -> Problems:
    has_source, has_commands = view.get("source") is not None, bool(view.list("commands"))
    for field in ("source", "inputs") if has_source or not has_commands else ():
        if view.get(field) is None:
            yield view.problem((field,), "required field is missing", "add the field")
    for section in NETWORK_SECTIONS if has_commands and not has_source else ():
        if view.get(section) not in (None, REFUSED, {}, []) and view.is_own(section):
            text = "a model without source has commands only"
            yield view.problem((section,), text, "remove it, or add source", of_key=True)


def _reference_problem(
    view: ManifestView, text: str, reference: tuple[str, str], earlier: dict[str, dict[str, Any]]
) -> tuple[str, str] | None:
    """Find problem and hint of an input that names another target's output."""
    kind, of = reference
    if kind == "commands":
        other, _, output = of.rpartition(".")
        if other not in earlier:
            hint = suggest(other, earlier, what="earlier commands") or "name an earlier command"
            return f'no earlier command is named "{other or of}"', hint
        outputs = earlier[other].get("outputs")
        if isinstance(outputs, dict) and output not in outputs:
            hint = suggest(output, outputs, what="its outputs")
            return f'the command "{other}" has no output "{output}"', hint
        return None
    if kind == "engines" and of:
        names = [str(engine.get("name")) for _, engine in view.maps("engines", ...)]
        if of in names or len(names) != len(view.list("engines")):
            return None
        return f'there is no engine "{of}" in this model', suggest(of, names, what="engines")
    if not ((kind in _GRAPHS and not of) or (kind == "golden" and of)):
        return f"unknown reference {show_value(text)}", f"references: {', '.join(_KINDS)}"
    if view.get("source") is None or (view.is_defined and kind in _GRAPHS):
        return f"this model has no {text}", "name a file, an engine or the output of a command"
    return None


def _outputs(view: ManifestView, path: FieldPath) -> Problems:
    for name, text in view.map(*path, "outputs").items():
        parts = PurePosixPath(text).parts if isinstance(text, str) else ("",)
        problem = ""
        if not parts or parts[0] == "/" or ".." in parts or not str(text).isprintable():
            problem = f"{show_value(text)} is not inside the working folder"
        elif parts[0] in (*RESERVED, RESULT_FILE, LOG_FILE) or text.endswith(LISTING):
            problem = f"{text} is a name of buildsys"
        if problem:
            hint = "write a file such as model.onnx, or a folder such as model/"
            yield view.problem((*path, "outputs", name), problem, hint)


def _run(view: ManifestView, path: FieldPath, command: dict[str, Any]) -> Problems:
    run, labels = command.get("run"), {key: view.map(*path, key) for key in ("inputs", "outputs")}
    arguments = [((*path, "run", n), text) for n, text in enumerate(view.list(*path, "run"))]
    arguments += [((*path, "run"), run)] if isinstance(run, str) else []
    used = [(at, name) for at, text in arguments if isinstance(text, str)
            for name in references(text)]  # fmt: skip
    names = [f"{key}.{name}" for key, own in labels.items() for name in own] + [FIGURES]
    if view.is_known(*path, "inputs") and view.is_known(*path, "outputs"):
        for at, name in used:
            if name not in names:
                hint = suggest(name, names, what="declared")
                yield view.problem(at, f"{{{name}}} is not declared", hint)
    reports = any(name == FIGURES for _, name in used)
    if not arguments or reports:
        return
    if not labels["outputs"] and view.is_known(*path, "outputs"):
        hint = "add outputs, or pass {figures} to the program"
        yield view.problem(path, "the command has no outputs and reports no figures", hint)
    for field in ("limits", "measures"):
        if command.get(field) not in (None, REFUSED, {}, False):
            text = "is about figures, and the command reports none"
            hint = "pass {figures} to the program, which writes them to this file"
            yield view.problem((*path, field), text, hint, of_key=True)
