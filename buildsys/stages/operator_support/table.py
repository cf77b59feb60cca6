"""The table of operators: who translates those of torch, in which opsets ONNX has its own, and who runs them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from buildsys.stages.operator_support import onnx_operators

SCHEMA = "buildsys/operators/1"
_NAMESPACES = ("aten", "torchvision", "prims", "quantized")


def make_table() -> dict[str, Any]:
    """Return the table for what is installed here, as JSON values.

    ``torch``: operator -> {torchscript: opset or None, dynamo: opset or None, by_parts, writes, schemas}.
    ``onnx``: operator -> {opsets, onnxruntime: [{opset, types, body}], tensorrt_rtx: bool or None}.
    """
    return {"schema": SCHEMA, "torch": _torch_rows(), "onnx": _onnx_rows()}


def _torch_rows() -> dict[str, Any]:
    with suppress(ImportError, RuntimeError):
        import torchvision  # noqa: F401 (registers its operators)
    from buildsys.stages.operator_support import torch_registries as registries

    translated: dict[str, list[str]] = {}
    for overload in registries.dynamo_operators():
        translated.setdefault(overload.partition(".")[0], []).append(overload)
    schemas = registries.schemas()
    names = {
        name
        for name in schemas
        if name.partition("::")[0] in _NAMESPACES and not name.endswith("_")
    }
    names |= translated.keys() | set(registries.torchscript_operators())
    return {
        name: _torch_row(name, translated.get(name, []), schemas.get(name, []))
        for name in sorted(names)
        if not name.startswith(("onnx::", "onnx_symbolic::"))
    }


def _torch_row(name: str, overloads: list[str], schemas: list[str]) -> dict[str, Any]:
    from buildsys.stages.operator_support import torch_registries as registries

    found = [registries.dynamo_translation(overload) for overload in overloads or [name]]
    translations = [one for one in found if one is not None]
    opsets = [one.opset for one in translations if one.opset is not None]
    return {
        "torchscript": registries.torchscript_from(name),
        "dynamo": min(opsets, default=None),
        "by_parts": any(one.by_parts for one in translations),
        "writes": sorted({operator for one in translations for operator in one.operators}),
        "schemas": schemas,
    }


def _onnx_rows() -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for (domain, name), since in onnx_operators.versions().items():
        rows[f"{domain}::{name}" if domain else name] = {
            "opsets": list(since),
            "onnxruntime": onnx_operators.ort_support(domain, name, since),
            "tensorrt_rtx": onnx_operators.rtx_takes(name),
        }
    for name, types in onnx_operators.ort_operators().items():
        support = [{"opset": 1, "types": types, "body": False}]
        rows[name] = {"opsets": [], "onnxruntime": support, "tensorrt_rtx": False}
    return rows
