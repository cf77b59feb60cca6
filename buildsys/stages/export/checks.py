"""Checks of the sections ``export``, ``symbolics`` and ``translations``."""

from __future__ import annotations

import re
from typing import Any

from buildsys.manifest.problem import Problems, expected
from buildsys.manifest.value_tree import FieldPath
from buildsys.manifest.view import ManifestView

_OPTIONS_OF = {  # exporter -> options that the other one ignores
    "dynamo": (
        "optimize", "verify", "report", "profile", "dump_exported_program", "external_data",
    ),
    "torchscript": (
        "training", "operator_export_type", "do_constant_folding", "custom_opsets",
        "export_modules_as_functions", "autograd_inlining",
    ),
}  # fmt: skip
_OPSETS = {
    "torchscript": range(6, 24),
    # below 18 dynamo converts down, which the export checks; 28 is the newest opset of onnx 1.23
    "dynamo": range(7, 29),
}
_BASE_OPSET = 9  # below it, torch searches symbolics from the export's opset up to this one
_OPERATOR = re.compile(r"\w+::\w+(\.\w+)?")
_SECTIONS = {"symbolics": ("torchscript", "translations"), "translations": ("dynamo", "symbolics")}


def problems(view: ManifestView) -> Problems:
    """Yield options without an effect, and registrations that no exporter takes."""
    yield from _options(view)
    yield from _registrations(view)


def _options(view: ManifestView) -> Problems:
    if view.is_defined:
        return
    if "onnx" in view.map("source"):
        for option in view.map("export"):
            if view.is_own("export", option):
                text = "ignored for an ONNX source, which is not exported"
                yield view.problem(("export", option), text, "remove it", of_key=True)
        return
    exporter = view.map("export").get("exporter", "torchscript")
    if exporter not in ("torchscript", "dynamo"):
        return
    if "exported_program" in view.map("source") and exporter == "torchscript":
        text = "the torchscript exporter would fix the dynamic sizes of a saved program"
        hint = "write export: {exporter: dynamo, opset: 18}"
        yield view.problem(("export", "exporter"), text, hint)
        return
    (other,) = _OPTIONS_OF.keys() - {exporter}
    for option in _OPTIONS_OF[other]:
        if view.get("export", option) is not None:
            text, hint = f"ignored by exporter {exporter}", f"remove it, or use exporter: {other}"
            yield view.problem(("export", option), text, hint, of_key=True)
    yield from _opset(view, ("export", "opset"), exporter)
    if view.get("export", "export_params") is False:
        text = "a file without its weights cannot be validated or built"
        yield view.problem(("export", "export_params"), text, "remove it", of_key=True)
    if view.get("export", "training") == "train" and exporter == "torchscript":
        text = "a graph in training mode cannot give the reference's outputs"
        hint = "remove it (the network is exported in evaluation mode)"
        yield view.problem(("export", "training"), text, hint)


def _registrations(view: ManifestView) -> Problems:
    """Yield the problems of ``symbolics`` and ``translations``."""
    exporter = view.get("export", "exporter") or "torchscript"
    for section, (used_by, other) in _SECTIONS.items():
        if not view.list(section) or view.is_defined:
            continue
        if "onnx" in view.map("source"):
            if view.is_own(section):
                text = "ignored for an ONNX source, which is not exported"
                yield view.problem((section,), text, "remove it", of_key=True)
        elif exporter != used_by and exporter in ("torchscript", "dynamo"):
            text = f"ignored by exporter {exporter}, only {used_by} uses it"
            hint = f"use {other} for {exporter}, or set export.exporter: {used_by}"
            yield view.problem((section,), text, hint, of_key=True)
        registered: list[tuple[str, Any]] = []
        for path, entry in view.maps(section, ...):
            if section == "symbolics":
                yield from _symbolic_problems(view, path, entry)
            op = entry.get("op")
            if not isinstance(op, str):
                continue
            yield from _name_problems(view, (*path, "op"), op)
            opset = entry.get("opset") if section == "symbolics" else None
            name = op if section == "symbolics" else op.removesuffix(".default")
            if (name, opset) in registered:
                text = f"{name} is registered twice" + (f" for opset {opset}" if opset else "")
                yield view.problem((*path, "op"), text, "remove one of the two")
            registered.append((name, opset))


def _opset(view: ManifestView, path: FieldPath, exporter: str) -> Problems:
    """Yield an opset not supported by its exporter."""
    opset, opsets = view.get(*path), _OPSETS[exporter]
    if isinstance(opset, int) and opset not in opsets:
        span = f"{opsets[0]} to {opsets[-1]}"
        text = f"opset {opset} is not supported by the {exporter} exporter ({span})"
        yield view.problem(path, text, "choose an opset in this range")


def reaches(exported: int, registered: int) -> bool:
    """Return true if an export may use a symbolic of another opset.

    Source: torch.onnx._internal.torchscript_exporter.registration._dispatch_opset_version.
    """
    if exported >= _BASE_OPSET:
        return registered <= exported
    return exported <= registered <= _BASE_OPSET


def _symbolic_problems(view: ManifestView, path: FieldPath, entry: dict[str, Any]) -> Problems:
    """Yield mixtures of the two forms of a symbolic, and unusable opsets."""
    fields = ("op", "function", "opset")
    if entry.get("module") is not None:
        for field in fields:
            if entry.get(field) is not None:
                text = "cannot be combined with module, which registers its own functions"
                hint = f"remove {field} or module"
                yield view.problem((*path, field), text, hint, of_key=True)
    missing = [field for field in fields[:2] if entry.get(field) is None]
    if entry.get("module") is None and missing and not entry.keys() - {*fields, "module"}:
        text = f"required field is missing: {' and '.join(missing)}"
        yield view.problem(path, text, "write {op: …, function: …, opset: …} or {module: FILE.py}")
    yield from _opset(view, (*path, "opset"), "torchscript")
    opset: Any = entry.get("opset")
    exported: Any = view.map("export").get("opset", 17)
    are_valid = isinstance(exported, int) and isinstance(opset, int)
    if are_valid and opset in _OPSETS["torchscript"] and not reaches(exported, opset):
        text = f"an export to opset {exported} cannot use a symbolic of opset {opset}"
        hint = f"set it to {exported} or lower, remove it, or raise export.opset"
        yield view.problem((*path, "opset"), text, hint)


def _name_problems(view: ManifestView, path: FieldPath, op: str) -> Problems:
    if not _OPERATOR.fullmatch(op) or op.startswith("onnx::"):
        text = expected("an operator of PyTorch with its namespace", op)
        yield view.problem(path, text, "write NAMESPACE::NAME, such as aten::asinh")
    elif path[0] == "symbolics" and "." in op:
        text = "the torchscript exporter ignores overloads"
        hint = f"write {op.partition('.')[0]}; the function gets the inputs of every overload"
        yield view.problem(path, text, hint)
