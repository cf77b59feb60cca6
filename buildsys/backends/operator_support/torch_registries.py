"""Translations in the registries of PyTorch's two exporters."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property, lru_cache
from types import FunctionType
from typing import Any, NamedTuple

import torch
from onnxscript._internal.values import TracedOnnxFunction
from torch.onnx._internal import torchscript_exporter
from torch.onnx._internal.exporter import _decomp, _schemas
from torch.onnx._internal.exporter._registration import ONNXRegistry
from torch.onnx._internal.torchscript_exporter.registration import registry

from buildsys.backends.operator_support.onnx_operators import versions

TORCHSCRIPT_OPSETS = range(7, 24)  # accepted by the exporter
DYNAMO_OPSETS = range(18, 27)
_REFUSAL = "_onnx_opset_unsupported"  # some symbolic functions only raise this
_BLOCKED = "_block_list_in_opset"
_MAX_CALL_DEPTH = 4


class Translation(NamedTuple):
    """Dynamo's translation of an operator."""

    opset: int | None  # the lowest with a translation and all its operators; None: only by parts
    operators: tuple[str, ...] = ()  # of ONNX, newer than torchlib's own opset
    by_parts: bool = False  # below that opset torch decomposes it and translates the parts


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


def dynamo_translation(operator: str) -> Translation | None:
    """Return dynamo's translation of an overload (``aten::add.Tensor``), if any.

    A translation registered for an opset may write operators newer than that, an invalid file
    there; so their opsets count as well.
    """
    for opset in DYNAMO_OPSETS:
        functions = translations(opset).get(operator, ())
        if functions:
            newer = {
                name: since for function in functions for name, since in _newer_operators(function)
            }
            lowest = max([opset, *newer.values()])
            by_parts = lowest > DYNAMO_OPSETS[0] and _is_decomposed(operator)
            return Translation(lowest, tuple(sorted(newer)), by_parts)
    return Translation(None, by_parts=True) if _is_decomposed(operator) else None


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


class _EveryOpset(ONNXRegistry):
    """Torchlib's functions for all opsets."""

    def _cleanup_registry_based_on_opset_version(self) -> None:
        """Keep all functions."""


def parse_torchlib() -> ONNXRegistry:
    """Parse torchlib's 500 functions once; every dynamo export would parse them again.

    It would also read their signatures again.
    """
    parsed = vars(TracedOnnxFunction).get("function_ir")
    if isinstance(parsed, property) and parsed.fget is not None:
        kept = cached_property(parsed.fget)
        kept.__set_name__(TracedOnnxFunction, "function_ir")
        TracedOnnxFunction.function_ir = kept  # type: ignore[method-assign, assignment]
    read_signature = getattr(_schemas, "op_signature_from_function", None)
    if isinstance(read_signature, FunctionType):
        _schemas.op_signature_from_function = cache(read_signature)
    return _EveryOpset.from_torchlib()


@lru_cache(maxsize=1)
def _torchlib() -> ONNXRegistry:
    return parse_torchlib()


def _registry_for(opset: int) -> ONNXRegistry:
    """Return the result of ``ONNXRegistry.from_torchlib`` for an opset."""
    registry = ONNXRegistry()
    registry._opset_version = opset
    registry.functions = dict(_torchlib().functions)
    registry._cleanup_registry_based_on_opset_version()
    return registry


def _newer_operators(function: Any, depth: int = 0) -> Iterator[tuple[str, int]]:
    """Yield a translation's ONNX operators newer than torchlib's opset."""
    plain = getattr(function, "func", None) or getattr(function, "function", None) or function
    code = getattr(plain, "__code__", None)
    if code is None or depth > _MAX_CALL_DEPTH:
        return
    for name in code.co_names:
        since = abs(versions().get(("", name), (0,))[0])
        if since > DYNAMO_OPSETS[0]:
            yield name, since
        called = plain.__globals__.get(name)
        is_onnx = callable(called) and "onnx" in str(getattr(called, "__module__", ""))
        if is_onnx and called is not function:
            yield from _newer_operators(called, depth + 1)


@lru_cache(maxsize=1)
def _decomposed() -> frozenset[str]:
    known = set(_decomp.get_onnx_implemented_overloads(_registry_for(DYNAMO_OPSETS[0])))
    table = _decomp.create_onnx_friendly_decomposition_table(known)
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
