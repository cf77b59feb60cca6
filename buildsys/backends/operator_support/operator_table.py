"""Table of operators: translation by exporters, ONNX opsets, support in backends."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch.onnx._internal.torchscript_exporter.registration import registry

from buildsys.backends.operator_support import onnx_operators
from buildsys.backends.operator_support import torch_registries as registries

_NAMESPACES = ("aten", "torchvision", "prims", "quantized")


def _torch_rows() -> dict[str, Any]:
    with suppress(ImportError, RuntimeError):
        import torchvision  # noqa: F401 (registers its operators)

    overloads: dict[str, list[str]] = {}
    translated = {
        name for opset in registries.DYNAMO_OPSETS for name in registries.translations(opset)
    }
    for overload in sorted(translated):
        overloads.setdefault(overload.partition(".")[0], []).append(overload)
    # in-place variants (``add_``) are translated like the operator without the underscore
    schemas: dict[str, list[str]] = {}
    for schema in torch._C._jit_get_all_schemas():
        schemas.setdefault(schema.name, []).append(str(schema))
    names = {
        name
        for name in schemas
        if name.partition("::")[0] in _NAMESPACES and not name.endswith("_")
    }
    registries.load_symbolics()
    names |= overloads.keys() | registry.all_functions()
    rows: dict[str, Any] = {}
    for name in sorted(names):
        if name.startswith(("onnx::", "onnx_symbolic::")):
            continue
        found = [
            registries.dynamo_translation(overload) for overload in overloads.get(name, [name])
        ]
        translations = [one for one in found if one is not None]
        opsets = [one.opset for one in translations if one.opset is not None]
        rows[name] = {
            "torchscript": registries.torchscript_from(name),
            "dynamo": min(opsets, default=None),
            "by_parts": any(one.by_parts for one in translations),
            "writes": sorted({operator for one in translations for operator in one.operators}),
            "schemas": schemas.get(name, []),
        }
    return rows


def make_table() -> dict[str, Any]:
    """Return the table for the installed libraries, as JSON values.

    ``torch``: operator -> {torchscript: opset or None, dynamo: opset or None, by_parts, writes,
    schemas}.
    ``onnx``: operator -> {opsets, onnxruntime: [{opset, types, body}], tensorrt_rtx: bool or None}.
    """
    rows: dict[str, Any] = {}
    for (domain, name), since in onnx_operators.versions().items():
        rows[f"{domain}::{name}" if domain else name] = {
            "opsets": list(since),
            "onnxruntime": onnx_operators.ort_support(domain, name, since),
            "tensorrt_rtx": onnx_operators.rtx_supports(name),
        }
    for name, types in onnx_operators.ort_operators().items():
        support = [{"opset": 1, "types": types, "body": False}]
        rows[name] = {"opsets": [], "onnxruntime": support, "tensorrt_rtx": False}
    return {"torch": _torch_rows(), "onnx": rows}
