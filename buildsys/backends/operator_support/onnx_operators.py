"""Support for ONNX operators in ONNX itself, ONNX Runtime and TensorRT-RTX."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import onnx.defs

_ONNX_DOMAINS = ("", "ai.onnx.ml")
_OTHER_ONNX_DOMAINS = ("ai.onnx.training", "ai.onnx.preview.training", "ai.onnx.preview")


@lru_cache(maxsize=1)
def versions() -> Mapping[tuple[str, str], tuple[int, ...]]:
    """Return (domain, operator) -> opsets of its versions, negative if deprecated."""
    found: dict[tuple[str, str], set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain in _ONNX_DOMAINS:
            since = -schema.since_version if schema.deprecated else schema.since_version
            found.setdefault((schema.domain, schema.name), set()).add(since)
    return {key: tuple(sorted(opsets, key=abs)) for key, opsets in sorted(found.items())}


def ort_support(domain: str, operator: str, since: tuple[int, ...]) -> list[dict[str, Any]] | None:
    """Return kernel support per operator version in ONNX Runtime's CPU provider.

    None without ONNX Runtime.
    """
    try:
        from buildsys.backends.onnxruntime import kernels
    except ImportError:
        return None
    rows = []
    for version in since:
        if version > 0:
            schema: Any = onnx.defs.get_schema(operator, version, domain)
            bodies = (
                *schema.function_opset_versions,
                *schema.context_dependent_function_opset_versions,
            )
            types = kernels.kernel_types(kernels.Operator(domain, operator), version)
            body = any(opset <= version for opset in bodies)
            rows.append({"opset": version, "types": list(types), "body": body})
    return rows


def ort_operators() -> dict[str, list[str]]:
    """Return the kernel types of ONNX Runtime's operators outside ONNX's domains."""
    try:
        from buildsys.backends.onnxruntime import kernels
    except ImportError:
        return {}
    return {
        f"{operator.domain}::{operator.name}": sorted(
            {t for version in since for t in kernels.kernel_types(operator, version)}
        )
        for operator, since in sorted(kernels.schema_versions().items())
        if operator.domain not in (*_ONNX_DOMAINS, *_OTHER_ONNX_DOMAINS)
    }


@lru_cache(maxsize=1)
def _rtx_parser() -> Any:
    """Return a parser and the objects it depends on, if installed."""
    try:
        import tensorrt_rtx as trt
    except (ImportError, OSError, RuntimeError):
        return None
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    return trt.OnnxParser(network, logger), network, builder, logger


def rtx_supports(operator: str) -> bool | None:
    """Check for an importer in TensorRT-RTX's parser; None without TensorRT-RTX."""
    found = _rtx_parser()
    return None if found is None else bool(found[0].supports_operator(operator))
