"""Operator support of the installed libraries, read from their own registries.

Used by failing exports and, as a child process that prints the table, by `buildsys ops`. No backend
imports it: it loads torch.
"""

import importlib
import json
import os
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any

import onnx.defs
import torch
from torch.onnx._internal import torchscript_exporter
from torch.onnx._internal.exporter import _decomp
from torch.onnx._internal.exporter._registration import ONNXRegistry
from torch.onnx._internal.torchscript_exporter.registration import registry

from buildsys.errors import StageError

_ONNX_DOMAINS = ("", "ai.onnx.ml")
_OTHER_ONNX_DOMAINS = ("ai.onnx.training", "ai.onnx.preview.training", "ai.onnx.preview")


@lru_cache(maxsize=1)
def operator_versions() -> Mapping[tuple[str, str], tuple[int, ...]]:
    """Return (domain, operator) -> opsets of its versions, negative if deprecated."""
    versions: dict[tuple[str, str], set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain in _ONNX_DOMAINS:
            since = -schema.since_version if schema.deprecated else schema.since_version
            versions.setdefault((schema.domain, schema.name), set()).add(since)
    return {key: tuple(sorted(opsets, key=abs)) for key, opsets in sorted(versions.items())}


def ort_support(domain: str, operator: str, since: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return kernel support per operator version in ONNX Runtime's CPU provider."""
    from buildsys.backends.onnxruntime import graphs

    rows = []
    for version in since:
        if version > 0:
            schema: Any = onnx.defs.get_schema(operator, version, domain)
            bodies = (
                *schema.function_opset_versions,
                *schema.context_dependent_function_opset_versions,
            )
            types = graphs.kernel_types(graphs.Operator(domain, operator), version)
            body = any(opset <= version for opset in bodies)
            rows.append({"opset": version, "types": list(types), "body": body})
    return rows


TENSORRTS = ("tensorrt", "tensorrt_rtx")


@cache
def _parser(module: str) -> Any:
    """Return a parser and the objects it depends on, None without the library or its GPU."""
    try:
        trt = importlib.import_module(module)
        from buildsys.backends.tensorrt import library, network, version_adapter

        loaded = library.library_of(trt)
        builder = network.new_builder(loaded)
        definition = version_adapter.create_network(loaded, builder, strong=False)
        return trt.OnnxParser(definition, library.log_of(loaded).logger), definition, builder
    except (ImportError, OSError, RuntimeError, StageError):
        return None


def parser_supports(module: str, operator: str) -> bool | None:
    """Check for an importer in the parser of a TensorRT; None if it cannot be asked here."""
    parser = _parser(module)
    return None if parser is None else bool(parser[0].supports_operator(operator))


TORCHSCRIPT_OPSETS = range(7, 24)  # accepted by the exporter
DYNAMO_OPSETS = range(18, 27)
_REFUSAL = "_onnx_opset_unsupported"  # some symbolic functions only raise this
_BLOCKED = "_block_list_in_opset"
_MAX_CALL_DEPTH = 4


def operator_schemas(operator: str) -> tuple[str, ...]:
    """Return the schemas of one operator; none if unknown."""
    return tuple(str(schema) for schema in torch._C._jit_get_schemas_for_operator(operator))


@lru_cache(maxsize=1)
def load_symbolics() -> None:
    """Import torch's symbolic functions of all opsets, mostly loaded late."""
    for module in pkgutil.iter_modules(torchscript_exporter.__path__):
        if module.name.startswith("symbolic_opset"):
            importlib.import_module(f"{torchscript_exporter.__name__}.{module.name}")


def torchscript_from(operator: str) -> int | None:
    """Return the lowest opset with a TorchScript translation, if any."""
    load_symbolics()
    group = registry.get_function_group(operator.removesuffix("_"))
    if group is None:
        return None
    lowest = None
    for opset in reversed(TORCHSCRIPT_OPSETS):
        function = group.get(opset)
        if function is None or _only_refuses(function):
            break
        lowest = opset
    return lowest


def dynamo_opset(operator: str) -> int | None:
    """Return the lowest opset of dynamo's translation of an overload (``aten::add.Tensor``).

    0: torch decomposes it and translates the parts. A translation registered for an opset may write
    operators newer than that, an invalid file there; so their opsets count, too.
    """
    for opset in DYNAMO_OPSETS:
        functions = translations(opset).get(operator, ())
        if functions:
            newer = (since for function in functions for since in _newer_operators(function))
            return max([opset, *newer])
    return 0 if _is_decomposed(operator) else None


def _only_refuses(function: Callable[..., Any]) -> bool:
    if _BLOCKED in getattr(function, "__qualname__", ""):
        return True
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    return _REFUSAL in names and set(names) <= {"symbolic_helper", _REFUSAL}


@cache
def translations(opset: int) -> Mapping[str, tuple[Any, ...]]:
    """Return dynamo's translations of each overload at an opset."""
    return {
        name: tuple(meta.onnx_function for meta in metas)
        for name, metas in _registry_for(opset).functions.items()
        if isinstance(name, str)
    }


def _registry_for(opset: int) -> ONNXRegistry:
    """Return the result of ``ONNXRegistry.from_torchlib`` for an opset."""
    from buildsys.backends.parsed_torchlib import TORCHLIB  # takes a second

    registry = ONNXRegistry()
    registry._opset_version = opset
    registry.functions = dict(TORCHLIB.functions)
    registry._cleanup_registry_based_on_opset_version()
    return registry


def _newer_operators(function: Any, depth: int = 0) -> Iterator[int]:
    """Yield the opsets of a translation's ONNX operators newer than torchlib's opset."""
    plain = getattr(function, "func", None) or getattr(function, "function", None) or function
    code = getattr(plain, "__code__", None)
    if code is None or depth > _MAX_CALL_DEPTH:
        return
    for name in code.co_names:
        since = abs(operator_versions().get(("", name), (0,))[0])
        if since > DYNAMO_OPSETS[0]:
            yield since
        called = plain.__globals__.get(name)
        is_onnx = callable(called) and "onnx" in str(getattr(called, "__module__", ""))
        if is_onnx and called is not function:
            yield from _newer_operators(called, depth + 1)


@lru_cache(maxsize=1)
def _decomposed() -> frozenset[str]:
    translated = set(_decomp.get_onnx_implemented_overloads(_registry_for(DYNAMO_OPSETS[0])))
    table = _decomp.create_onnx_friendly_decomposition_table(translated)
    overloads: list[Any] = [key for key in table if isinstance(key, torch._ops.OpOverload)]
    return frozenset(str(overload.name()) for overload in overloads)


def _is_decomposed(operator: str) -> bool:
    if operator in _decomposed():
        return True
    try:
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        return bool(has_kernel(operator, "CompositeImplicitAutograd"))
    except RuntimeError:  # unknown to the dispatcher
        return False


_NAMESPACES = ("aten", "torchvision", "prims", "quantized")


def _torch_rows() -> dict[str, Any]:
    with suppress(ImportError, RuntimeError):
        import torchvision  # noqa: F401 (registers its operators)

    overloads: dict[str, list[str]] = {}
    translated = {name for opset in DYNAMO_OPSETS for name in translations(opset)}
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
    load_symbolics()
    names |= overloads.keys() | registry.all_functions()
    rows: dict[str, Any] = {}
    for name in sorted(names):
        if name.startswith(("onnx::", "onnx_symbolic::")):
            continue
        opsets = [dynamo_opset(overload) for overload in overloads.get(name, [name])]
        lowest = [opset for opset in opsets if opset is not None]
        rows[name] = {
            "torchscript": torchscript_from(name),
            "dynamo": min(filter(None, lowest), default=0 if lowest else None),
            "schemas": schemas.get(name, []),
        }
    return rows


def make_table() -> dict[str, Any]:
    """Make the table for the installed libraries, as JSON values.

    ``torch``: operator -> {torchscript: opset or None, dynamo: opset, 0 or None, schemas}.
    ``onnx``: operator -> {opsets, onnxruntime: [{opset, types, body}]}, and a bool or None for each
    of ``TENSORRTS``.
    """
    from buildsys.backends.onnxruntime import graphs

    rows: dict[str, Any] = {}
    for (domain, name), since in operator_versions().items():
        rows[f"{domain}::{name}" if domain else name] = {
            "opsets": list(since),
            "onnxruntime": ort_support(domain, name, since),
            **{module: parser_supports(module, name) for module in TENSORRTS},
        }
    for operator, opsets in sorted(graphs.schema_versions().items()):
        if operator.domain not in (*_ONNX_DOMAINS, *_OTHER_ONNX_DOMAINS):
            types = {t for version in opsets for t in graphs.kernel_types(operator, version)}
            support = [{"opset": 1, "types": sorted(types), "body": False}]
            row = {"opsets": [], "onnxruntime": support, **dict.fromkeys(TENSORRTS, False)}
            rows[f"{operator.domain}::{operator.name}"] = row
    return {"torch": _torch_rows(), "onnx": rows}


def write_table(descriptor: int) -> None:
    """Write the table as JSON to an open file and end the process."""
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(make_table(), file)
    os._exit(0)  # the teardown of torch takes a second
