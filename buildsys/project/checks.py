"""Checks between the sections of a manifest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

from buildsys.manifest.engine_checks import engine_problems, profile_problems
from buildsys.manifest.problem import Problems, suggest
from buildsys.manifest.value_ranges import data_problem
from buildsys.manifest.value_tree import FieldPath
from buildsys.manifest.view import ManifestView, RefusedError
from buildsys.stages.surgery.checks import dims_named_by_surgery
from buildsys.stages.table import STAGES

_OUTSIDE_THE_KEY = {  # kind of source -> arguments that load other weights or code
    "timm": ("pretrained", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay"),
    "transformers": (
        "state_dict",
        "trust_remote_code",
        "code_revision",
        "gguf_file",
        "adapter_kwargs",
    ),
}


def check_model(view: ManifestView) -> Problems:
    """Yield the problems between the fields of a merged model."""
    checks = [_source, _dims, _tensors, _call, _comparisons, profile_problems, engine_problems]
    checks += [
        import_module(f"{stage.package}.checks").problems for stage in STAGES if stage.has_checks
    ]
    for check in checks:
        with suppress(RefusedError):
            yield from check(view)


def _source(view: ManifestView) -> Problems:
    place = view.network_path
    source = view.map(*place)
    for kind, options in _OUTSIDE_THE_KEY.items():
        for option in source.get("kwargs", {}) if kind in source else ():
            if option in options:
                text = f"{option} loads what the key does not have"
                hint = f"name a file under {'.'.join(map(str, place))}.weights"
                yield view.problem((*place, "kwargs", option), text, hint, of_key=True)
    if "exported_program" in source and source.get("trusted") is not True:
        text = f"torch can run code of {source['exported_program']} when it loads the file"
        hint = "if you trust its author, write trusted: true beside it"
        yield view.problem((*place, "exported_program"), text, hint, of_key=True)
    if ".py:" not in source.get("onnx", ".py:") and source.get("kwargs"):
        text = "a file takes no arguments"
        yield view.problem((*place, "kwargs"), text, "remove it", of_key=True)


def unused_dims(view: ManifestView) -> list[str]:
    """Return the declared dimensions unused by inputs and surgery."""
    used = {size for _, size in view.find("inputs", ..., "shape", ...) if isinstance(size, str)}
    used |= dims_named_by_surgery(view)
    return [name for name in view.map("dims") if name not in used]


def _dims(view: ManifestView) -> Problems:
    undeclared: list[Any] = []  # a misspelled name is reported where it is first used
    for section in ("inputs", "outputs"):
        for path, size in view.find(section, ..., "shape", ...):
            if (problem := view.undeclared(size)) and size not in undeclared:
                undeclared.append(size)
                yield view.problem(path, *problem)
    for section in ("inputs", "surgery"):
        view.get(section)  # a refused name may stand for an unused dimension
    for name in [] if undeclared else unused_dims(view):
        if view.is_own("dims", name):
            text = f'dimension "{name}" is not used by any input'
            yield view.problem(("dims", name), text, "remove it", of_key=True)


def _tensors(view: ManifestView) -> Problems:
    keywords: set[str] = set()
    for (_, name), tensor in view.maps("inputs", ...):
        if keyword := tensor.get("keyword"):
            if kind := _takes_names(view) or ("call" if view.get("call") else ""):
                text = f"{kind} has no keyword inputs"
                yield view.problem(("inputs", name, "keyword"), text, "remove it", of_key=True)
            elif keyword in keywords:
                text = f'another input has the keyword "{keyword}"'
                yield view.problem(("inputs", name, "keyword"), text, "remove one of them")
            keywords.add(keyword)
        if problem := data_problem(tensor.get("dtype") or "float32", tensor.get("data")):
            field, text, hint = problem
            yield view.problem(("inputs", name, *field), text, hint)
    for name in view.map("outputs"):
        if name in view.map("inputs"):
            text = f'an input is already named "{name}"'
            yield view.problem(("outputs", name), text, "rename one of them", of_key=True)


def _takes_names(view: ManifestView) -> str:
    """Return the kind of a network without arguments of forward(), or ""."""
    kinds = {"onnx": "an ONNX source", "numpy": "a numpy reference"}
    return next((text for kind, text in kinds.items() if kind in view.map(*view.network_path)), "")


def _call(view: ManifestView) -> Problems:
    if not view.map("call"):
        return
    if kind := _takes_names(view):
        text = f"{kind} takes the inputs as they are"
        yield view.problem(("call",), text, "remove it", of_key=True)
        return
    inputs, used = view.map("inputs"), set()
    for path, name in _named_inputs(("call",), view.map("call")):
        used.add(name)
        if name not in inputs:
            hint = suggest(name, inputs, what="inputs")
            if not hint.startswith("did you mean"):
                hint += f"; a string is {{text: {name}}}"
            yield view.problem(path, f'no input is named "{name}"', hint)
    if used <= inputs.keys():  # else a misspelled name is unused
        for name in inputs.keys() - used:
            text = f'call does not use the input "{name}"'
            yield view.problem(("call",), text, "add it, or remove the input", of_key=True)


def _named_inputs(path: FieldPath, value: Any) -> Iterator[tuple[FieldPath, str]]:
    """Yield places and names of inputs in the arguments of a call."""
    if isinstance(value, str):
        yield path, value
    if isinstance(value, list) or (isinstance(value, dict) and value.keys() != {"text"}):
        members = value.items() if isinstance(value, dict) else enumerate(value)
        for step, member in members:
            yield from _named_inputs((*path, step), member)


def _comparisons(view: ManifestView) -> Problems:
    """Yield companions of boxes that are not outputs: they would not be compared."""
    outputs = view.map("outputs")
    for path, policy in view.maps("outputs", ..., "compare"):
        companions: dict[FieldPath, Any]
        companions = {(f"{role}s",): policy.get(f"{role}s") for role in ("label", "score")}
        companions |= {("rows", n): name for n, name in enumerate(policy.get("rows", ()))}
        for place, name in companions.items():
            if name is not None and name not in outputs:
                hint = suggest(name, outputs, what="outputs")
                yield view.problem((*path, *place), f'no output is named "{name}"', hint)
