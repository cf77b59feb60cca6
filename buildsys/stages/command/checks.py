"""Checks of commands, and of models without a network."""

from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

from pydantic_core import PydanticCustomError

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
from buildsys.manifest.schema.files import find_place
from buildsys.manifest.shape_cases import ALL_CASES
from buildsys.manifest.value_tree import FieldPath
from buildsys.manifest.view import ManifestView, RefusedError
from buildsys.stages.table import NETWORK_SECTIONS
from buildsys.system.printable import nearest

_GRAPHS = ("exported", "simplified")
_MOST_NAME_BYTES = 255  # of file systems
_OUTPUT_PATHS = {  # kind of reference -> path below the model's folder, for suggestions
    "exported": "export/model.onnx",
    "simplified": "simplify/model.onnx",
    "engines": "engine/{}/engine.onnx",
    "golden": "reference/{}.npz",
}


def problems(view: ManifestView) -> Problems:
    """Yield missing networks and files, and unusable references and paths."""
    yield from _missing_files(view)
    commands: dict[str, dict[str, Any]] = {}
    for path, command in view.maps("commands", ...):
        name = command["name"]
        if name in commands:
            text = f'another command is named "{name}"'
            yield view.problem((*path, "name"), text, "rename one of them")
        for label, text in command.get("inputs", {}).items():
            reference = ".".join(filter(None, reference_of(text) or ()))
            if reference and reference not in (names := _references(view, commands)):
                hint = suggest(reference, names, what="references") or "name a file"
                text = f"there is no {{{reference}}} before this command"
                yield view.problem((*path, "inputs", label), text, hint)
        for label, text in command.get("outputs", {}).items():
            if wrong := _output_problem(text):
                yield view.problem((*path, "outputs", label), *wrong)
        yield from _run(view, path, command)
        commands.setdefault(name, command)
    has_source, has_commands = view.get("source") is not None, bool(view.list("commands"))
    for field in ("source", "inputs") if has_source or not has_commands else ():
        if view.get(field) is None:
            yield view.problem((field,), "required field is missing", "add the field")
    for section in NETWORK_SECTIONS if has_commands and not has_source else ():
        if view.sets(section):
            text = "a model without source has commands only"
            yield view.problem((section,), text, "remove it, or add source", of_key=True)


def _missing_files(view: ManifestView) -> Problems:
    """Yield inputs that are neither files nor references, with the nearest output."""
    for path, text in view.find("commands", ..., "inputs", ...):
        if reference_of(text):
            continue
        try:
            find_place(view.workspace, text, is_folder=text.endswith("/"))
        except PydanticCustomError as error:
            problem, hint = (str((error.context or {})[word]) for word in ("problem", "hint"))
            outputs = _outputs_before(view, int(path[1]))
            near = nearest(text, outputs, count=1)
            if near and (text in outputs or not hint.startswith("did you mean")):
                hint = f"did you mean {{{outputs[near[0]]}}}?"
            yield view.problem(path, problem, hint)


def _outputs_before(view: ManifestView, number: int) -> dict[str, str]:
    """Map names and paths of what is written before a command to references."""
    outputs: dict[str, str] = {}
    names = {path[1]: name for path, name in view.find("commands", ..., "name")}
    for (_, index, _, label), place in view.find("commands", ..., "outputs", ...):
        if index in names and int(index) < number:
            reference = f"commands.{names[index]}.{label}"
            paths = place, f"command/{names[index]}/{place}"
            outputs |= dict.fromkeys((reference, *paths), reference)
    with suppress(RefusedError):
        for reference in _references(view, {}):
            kind, _, of = reference.partition(".")
            outputs |= dict.fromkeys((reference, _OUTPUT_PATHS[kind].format(of)), reference)
    return outputs


def _references(view: ManifestView, earlier: dict[str, dict[str, Any]]) -> list[str]:
    """List the outputs of other targets that a command may read."""
    commands = ((name, command.get("outputs", {})) for name, command in earlier.items())
    names = [f"commands.{name}.{output}" for name, outputs in commands for output in outputs]
    if view.get("source") is not None:
        names += [f"engines.{engine['name']}" for engine in view.list("engines")]
        names += () if view.is_defined else _GRAPHS
        names += (f"golden.{case}" for case in ALL_CASES)
    return names


def _output_problem(text: str) -> tuple[str, str] | None:
    hint = "write a file such as model.onnx, or a folder such as model/"
    parts = PurePosixPath(text).parts
    if not parts or parts[0] == "/" or ".." in parts or not text.isprintable():
        return f"{show_value(text)} is not inside the working folder", hint
    if any(len(part.encode()) > _MOST_NAME_BYTES for part in parts):
        return f"{show_value(text)} has a name of more than {_MOST_NAME_BYTES} bytes", hint
    if parts[0] in (*RESERVED, RESULT_FILE, LOG_FILE) or text.endswith(LISTING):
        return f"{text} is a name of buildsys", hint
    return None


def _run(view: ManifestView, path: FieldPath, command: dict[str, Any]) -> Problems:
    run = command["run"]
    arguments = {(): run} if isinstance(run, str) else {(n,): run[n] for n in range(len(run))}
    used = {name: at for at, text in arguments.items() for name in references(text)}
    names = [f"{key}.{name}" for key in ("inputs", "outputs") for name in command.get(key, {})]
    for name, at in used.items():
        if name not in (*names, FIGURES):
            hint = suggest(name, [*names, FIGURES], what="declared")
            yield view.problem((*path, "run", *at), f"{{{name}}} is not declared", hint)
    if FIGURES not in used and not command.get("outputs"):
        hint = "add outputs, or pass {figures} to the program"
        yield view.problem(path, "the command has no outputs and reports no figures", hint)
