"""What ONNX's own schemas, ONNX Runtime and TensorRT-RTX say of an operator of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import onnx.defs

_OWN_DOMAINS = ("", "ai.onnx.ml")  # others are training and previews


@lru_cache(maxsize=1)
def versions() -> Mapping[tuple[str, str], tuple[int, ...]]:
    """Return (domain, operator) -> the opsets at which it came or changed; a negative one took it out of use."""
    found: dict[tuple[str, str], set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain in _OWN_DOMAINS:
            since = -schema.since_version if schema.deprecated else schema.since_version
            found.setdefault((schema.domain, schema.name), set()).add(since)
    return {key: tuple(sorted(several, key=abs)) for key, several in sorted(found.items())}


def has_body(domain: str, operator: str, version: int) -> bool:
    """Tell whether ONNX defines the operator by others, which a runtime without it can put in its place."""
    schema: Any = onnx.defs.get_schema(operator, version, domain)
    bodies = (*schema.function_opset_versions, *schema.context_dependent_function_opset_versions)
    return any(opset <= version for opset in bodies)


def ort_support(domain: str, operator: str, since: tuple[int, ...]) -> list[dict[str, Any]] | None:
    """Return for each version what ONNX Runtime's CPU provider has: the types of its kernels; None without it."""
    try:
        from buildsys.backends.onnxruntime import kernels
    except ImportError:
        return None
    rows = []
    for version in since:
        if version > 0:
            types = kernels.kernel_types(kernels.Operator(domain, operator), version)
            rows.append(
                {
                    "opset": version,
                    "types": list(types),
                    "body": has_body(domain, operator, version),
                }
            )
    return rows


def ort_operators() -> dict[str, list[str]]:
    """Return ONNX Runtime's operators outside ONNX's own domains, with the types of their kernels."""
    try:
        from buildsys.backends.onnxruntime import kernels
    except ImportError:
        return {}
    own = {"", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "ai.onnx.preview"}
    return {
        f"{operator.domain}::{operator.name}": sorted(
            {t for v in since for t in kernels.kernel_types(operator, v)}
        )
        for operator, since in sorted(kernels.schema_versions().items())
        if operator.domain not in own
    }


@lru_cache(maxsize=1)
def rtx_parser() -> Any:
    """Return a parser of TensorRT-RTX with all that must outlive it, None where it cannot be loaded."""
    try:
        import tensorrt_rtx as trt
    except (ImportError, OSError, RuntimeError):
        return None
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    return trt.OnnxParser(network, logger), network, builder, logger


def rtx_takes(operator: str) -> bool | None:
    """Tell whether TensorRT-RTX's parser has an importer of that name; None without TensorRT-RTX."""
    found = rtx_parser()
    return None if found is None else bool(found[0].supports_operator(operator))
