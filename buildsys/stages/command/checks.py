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
        yield from _inputs(view, path, commands)
        yield from _outputs(view, path)
        yield from _run(view, path, command)
        if isinstance(name, str):
            commands.setdefault(name, command)


def _network(view: ManifestView) -> Problems:
    if view.get("source") is not None:
        if view.get("inputs") is None:
            yield view.problem(("inputs",), "required field is missing", "add the field")
        return
    if not view.list("commands"):
        for field in ("source", "inputs"):
            if view.get(field) is None:
                yield view.problem((field,), "required field is missing", "add the field")
        return
    for section in NETWORK_SECTIONS:
        if view.get(section) not in (None, REFUSED, {}, []) and view.is_own(section):
            text = "a model without source has commands only"
            yield view.problem((section,), text, "remove it, or add source", of_key=True)


def _inputs(view: ManifestView, path: FieldPath, earlier: dict[str, dict[str, Any]]) -> Problems:
    for name, text in view.map(*path, "inputs").items():
        at = (*path, "inputs", name)
        reference = reference_of(text) if isinstance(text, str) else None
        if reference is None:
            continue
        kind, of = reference
        if kind == "commands":
            other, _, output = of.rpartition(".")
            if other not in earlier:
                hint = suggest(other, earlier, what="earlier commands") or "name an earlier command"
                yield view.problem(at, f'no earlier command is named "{other or of}"', hint)
            elif output not in (outputs := _outputs_of(earlier[other])):
                hint = suggest(output, outputs, what="its outputs")
                yield view.problem(at, f'the command "{other}" has no output "{output}"', hint)
        elif kind == "engines" and of:
            engines = [engine.get("name") for _, engine in view.maps("engines", ...)]
            names = [engine for engine in engines if isinstance(engine, str)]
            if of not in names and len(names) == len(view.list("engines")):
                hint = suggest(of, names, what="engines")
                yield view.problem(at, f'there is no engine "{of}" in this model', hint)
        elif (kind in _GRAPHS and not of) or (kind == "golden" and of):
            if view.get("source") is None:
                problem = f"{text} is of a network, and this model has no source"
                yield view.problem(at, problem, "name a file or the output of a command")
            elif view.is_defined and kind in _GRAPHS:
                problem = f"{text} is an ONNX graph, and the network of source.tensorrt is none"
                yield view.problem(at, problem, "name an engine")
        else:
            hint = f"references: {', '.join(_KINDS)}"
            yield view.problem(at, f"unknown reference {show_value(text)}", hint)


def _outputs_of(command: dict[str, Any]) -> dict[str, Any]:
    """Read the outputs of a command, {} if they are refused."""
    outputs = command.get("outputs")
    return outputs if isinstance(outputs, dict) else {}


def _outputs(view: ManifestView, path: FieldPath) -> Problems:
    taken: dict[PurePosixPath, str] = {}
    for name, text in view.map(*path, "outputs").items():
        if not isinstance(text, str):
            continue
        at, place = (*path, "outputs", name), PurePosixPath(text)
        parts = place.parts
        if not parts or place.is_absolute() or ".." in parts or not text.isprintable():
            hint = "write a file such as model.onnx, or a folder such as model/"
            yield view.problem(at, f"{show_value(text)} is not inside the working folder", hint)
            continue
        if parts[0] in (*RESERVED, RESULT_FILE, LOG_FILE):
            yield view.problem(at, f"{parts[0]} is a name of buildsys", "choose another one")
        own = [place, *([place.with_name(f"{place.name}{LISTING}")] if text[-1] == "/" else [])]
        for other, owner in taken.items():
            if any(path == other or path in other.parents or other in path.parents for path in own):
                problem = f'{place} is also part of the output "{owner}"'
                yield view.problem(at, problem, "choose another name")
                break
        taken |= dict.fromkeys(own, name)


def _run(view: ManifestView, path: FieldPath, command: dict[str, Any]) -> Problems:
    run = command.get("run")
    if isinstance(run, str):
        arguments: list[Any] = [run]
    else:
        arguments = run if isinstance(run, list) else []
    used = [(index, name) for index, text in enumerate(arguments) if isinstance(text, str)
            for name in references(text)]  # fmt: skip
    names = [f"inputs.{name}" for name in view.map(*path, "inputs")]
    names += [f"outputs.{name}" for name in view.map(*path, "outputs")] + [FIGURES]
    is_known = view.is_known(*path, "inputs") and view.is_known(*path, "outputs")
    for index, name in used:
        if name not in names and is_known:
            at = (*path, "run") if isinstance(run, str) else (*path, "run", index)
            hint = suggest(name, names, what="declared")
            yield view.problem(at, f"{{{name}}} is not declared", hint)
    if not arguments:
        return
    reports = any(name == FIGURES for _, name in used)
    if not reports and not view.map(*path, "outputs") and view.is_known(*path, "outputs"):
        hint = "add outputs, or pass {figures} to the program"
        yield view.problem(path, "the command has no outputs and reports no figures", hint)
    for field in ("limits", "measures"):
        if command.get(field) not in (None, REFUSED, {}, False) and not reports:
            text = "is about figures, and the command reports none"
            hint = "pass {figures} to the program, which writes them to this file"
            yield view.problem((*path, field), text, hint, of_key=True)
