"""What PyTorch's two exporters translate, by their registries. Imports torch."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple

import onnx.defs
import torch
from torch.onnx._internal import torchscript_exporter
from torch.onnx._internal.exporter import _decomp
from torch.onnx._internal.exporter._registration import ONNXRegistry
from torch.onnx._internal.torchscript_exporter.registration import registry

TORCHSCRIPT_OPSETS = range(7, 24)  # what the exporter accepts
DYNAMO_OPSETS = range(18, 27)
_REFUSES = "_onnx_opset_unsupported"  # all that some symbolic functions do is to raise this
_BLOCKED = "_block_list_in_opset"
_DEEPEST = 4  # functions that call functions


class Translation(NamedTuple):
    """How dynamo translates an operator."""

    opset: (
        int | None
    )  # the lowest that it is registered for and its operators exist in; None: it has none of its own
    operators: tuple[str, ...] = ()  # of ONNX, that are younger than torchlib's own opset
    by_parts: bool = (
        False  # torch takes it apart below that opset: the translations of the parts count then
    )


def schemas() -> dict[str, list[str]]:
    """Return operator -> schemas of every operator that this process has: aten::asinh -> [aten::asinh(Tensor self) …].

    Variants in place (``add_``) are translated as the operator without the underscore.
    """
    found: dict[str, list[str]] = {}
    for schema in torch._C._jit_get_all_schemas():
        found.setdefault(schema.name, []).append(str(schema))
    return found


def operator_schemas(operator: str) -> tuple[str, ...]:
    """Return the schemas of one operator; nothing for those that torch does not know."""
    return tuple(str(schema) for schema in torch._C._jit_get_schemas_for_operator(operator))


def torchscript_operators() -> list[str]:
    """Return the operators for which TorchScript's exporter has a symbolic function at all."""
    _load_symbolics()
    return sorted(registry.all_functions())


def torchscript_from(operator: str) -> int | None:
    """Return the lowest opset from which on TorchScript's exporter translates an operator; None: it does not."""
    _load_symbolics()
    group = registry.get_function_group(operator.removesuffix("_"))
    lowest = None
    if group is None:
        return None
    for opset in reversed(TORCHSCRIPT_OPSETS):
        function = group.get(opset)
        if function is None or _only_refuses(function):
            break
        lowest = opset
    return lowest


def dynamo_operators() -> list[str]:
    """Return the operators, with overloads, for which dynamo has a translation at some opset."""
    return sorted({name for opset in DYNAMO_OPSETS for name in _translations(opset)})


def dynamo_translation(operator: str) -> Translation | None:
    """Return how dynamo translates an overload (``aten::add.Tensor``); None: there is no way.

    A translation that writes operators younger than the opset which it is registered for makes an invalid file there,
    so these count as well.
    """
    for opset in DYNAMO_OPSETS:
        functions = _translations(opset).get(operator, ())
        if functions:
            young = {
                name: since for function in functions for name, since in _young_operators(function)
            }
            lowest = max([opset, *young.values()])
            by_parts = lowest > DYNAMO_OPSETS[0] and _is_taken_apart(operator)
            return Translation(lowest, tuple(sorted(young)), by_parts)
    return Translation(None, by_parts=True) if _is_taken_apart(operator) else None


@lru_cache(maxsize=1)
def _load_symbolics() -> None:
    """Import the modules that register symbolic functions: the exporter does so when it is first used."""
    for module in pkgutil.iter_modules(torchscript_exporter.__path__):
        if module.name.startswith("symbolic_opset"):
            importlib.import_module(f"{torchscript_exporter.__name__}.{module.name}")


def _only_refuses(function: Callable[..., Any]) -> bool:
    if _BLOCKED in getattr(function, "__qualname__", ""):
        return True
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    return (
        code is not None
        and _REFUSES in code.co_names
        and set(code.co_names) <= {"symbolic_helper", _REFUSES}
    )


@cache
def _translations(opset: int) -> Mapping[str, tuple[Any, ...]]:
    found = ONNXRegistry.from_torchlib(opset).functions
    return {
        name: tuple(meta.onnx_function for meta in metas)
        for name, metas in found.items()
        if isinstance(name, str)
    }


def _young_operators(function: Any, depth: int = 0) -> Iterator[tuple[str, int]]:
    """Yield the ONNX operators that came after torchlib's opset among all that a translation calls by name."""
    plain = getattr(function, "func", None) or getattr(function, "function", None) or function
    code = getattr(plain, "__code__", None)
    if code is None or depth > _DEEPEST:
        return
    for name in code.co_names:
        since = _first_versions().get(name, 0)
        if since > DYNAMO_OPSETS[0]:
            yield name, since
        called = plain.__globals__.get(name)
        if (
            callable(called)
            and "onnx" in str(getattr(called, "__module__", ""))
            and called is not function
        ):
            yield from _young_operators(called, depth + 1)


@lru_cache(maxsize=1)
def _first_versions() -> Mapping[str, int]:
    first: dict[str, int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            first[schema.name] = min(
                first.get(schema.name, schema.since_version), schema.since_version
            )
    return first


@lru_cache(maxsize=1)
def _taken_apart() -> frozenset[str]:
    known = set(_decomp.get_onnx_implemented_overloads(ONNXRegistry.from_torchlib()))
    table = _decomp.create_onnx_friendly_decomposition_table(known)
    overloads: list[Any] = [
        overload for overload in table if isinstance(overload, torch._ops.OpOverload)
    ]
    return frozenset(str(overload.name()) for overload in overloads)


def _is_taken_apart(operator: str) -> bool:
    if operator in _taken_apart():
        return True
    try:
        return bool(
            torch._C._dispatch_has_kernel_for_dispatch_key(operator, "CompositeImplicitAutograd")
        )
    except RuntimeError:  # not an operator of the dispatcher
        return False
