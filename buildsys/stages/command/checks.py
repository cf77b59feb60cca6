"""Checks of commands, and of models without a network."""

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
from buildsys.manifest.view import ManifestView
from buildsys.stages.table import NETWORK_SECTIONS

_GRAPHS = ("exported", "simplified")
_IN_BRACES = "paths are relative to the project, and outputs in braces, such as {simplified}"
_MOST_NAME_BYTES = 255  # of file systems


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
    """Yield inputs that are neither files nor references."""
    for path, text in view.find("commands", ..., "inputs", ...):
        if not reference_of(text):
            try:
                find_place(view.workspace, text, is_folder=text.endswith("/"))
            except PydanticCustomError as error:
                problem, hint = (str((error.context or {})[word]) for word in ("problem", "hint"))
                near = hint if hint.startswith("did you mean") else _IN_BRACES
                yield view.problem(path, problem, near)


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
