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
_OPERATOR = re.compile(r"\w+::\w+(\.\w+)?")
_SECTIONS = {"symbolics": ("torchscript", "translations"), "translations": ("dynamo", "symbolics")}


def problems(view: ManifestView) -> Problems:
    """Yield options without an effect, and registrations that no exporter takes."""
    if view.is_defined:
        return
    if "onnx" in view.map("source"):
        own: list[FieldPath] = [("export", option) for option in view.map("export")]
        own += [(section,) for section in _SECTIONS if view.list(section)]
        for path in own:
            if view.is_own(*path):
                text = "ignored for an ONNX source, which is not exported"
                yield view.problem(path, text, "remove it", of_key=True)
        return
    exporter = view.get("export", "exporter") or "torchscript"
    opset, opsets = view.get("export", "opset"), _OPSETS[exporter]
    if opset is not None and opset not in opsets:
        span = f"{opsets[0]} to {opsets[-1]}"
        text = f"opset {opset} is not supported by the {exporter} exporter ({span})"
        yield view.problem(("export", "opset"), text, "choose an opset in this range")
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
    if view.get("export", "export_params") is False:
        text = "a file without its weights cannot be validated or built"
        yield view.problem(("export", "export_params"), text, "remove it", of_key=True)
    if view.get("export", "training") == "train" and exporter == "torchscript":
        text = "a graph in training mode cannot give the reference's outputs"
        hint = "remove it (the network is exported in evaluation mode)"
        yield view.problem(("export", "training"), text, hint)
    for section, (used_by, counterpart) in _SECTIONS.items():
        if view.list(section) and exporter != used_by:
            text = f"ignored by exporter {exporter}, only {used_by} uses it"
            hint = f"use {counterpart} for {exporter}, or set export.exporter: {used_by}"
            yield view.problem((section,), text, hint, of_key=True)
        yield from _registrations(view, section)


def _registrations(view: ManifestView, section: str) -> Problems:
    registered: list[tuple[str, Any]] = []
    for path, entry in view.maps(section, ...):
        op, opset = entry.get("op"), entry.get("opset")
        if op is None:
            continue
        yield from _name_problems(view, (*path, "op"), op)
        if (op.removesuffix(".default"), opset) in registered:
            text = f"{op} is registered twice" + (f" for opset {opset}" if opset else "")
            yield view.problem((*path, "op"), text, "remove one of the two")
        registered.append((op.removesuffix(".default"), opset))


def _name_problems(view: ManifestView, path: FieldPath, op: str) -> Problems:
    if not _OPERATOR.fullmatch(op) or op.startswith("onnx::"):
        text = expected("an operator of PyTorch with its namespace", op)
        yield view.problem(path, text, "write NAMESPACE::NAME, such as aten::asinh")
    elif path[0] == "symbolics" and "." in op:
        text = "the torchscript exporter ignores overloads"
        hint = f"write {op.partition('.')[0]}; the function gets the inputs of every overload"
        yield view.problem(path, text, hint)
