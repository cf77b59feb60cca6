"""Schemas and kernels of ONNX Runtime by operator, opset and type."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

_DOMAINS = {"ai.onnx": ""}
_CRASHES_LIST = "OpenVINOExecutionProvider"  # built in (onnxruntime-openvino 1.24.1)
_OPEN = 2**31 - 1  # a kernel for this version until a newer one is registered


class Operator(NamedTuple):
    """An operator by its domain, "" for ONNX's own, and its name."""

    domain: str
    name: str


class Kernel(NamedTuple):
    """An implementation of some schema versions of an operator for some types."""

    first: int
    last: int
    # type parameter, input or output -> e.g. tensor(float); none for all types
    types: Mapping[str, frozenset[str]]

    def supports(self, since_version: int, types: Mapping[str, str]) -> bool:
        """Return True if ONNX Runtime selects it for version and types.

        Unknown types count as supported.
        """
        is_selected = self.first == since_version or (
            self.last != _OPEN and self.first <= since_version <= self.last
        )
        return is_selected and all(
            name not in types or types[name] in allowed for name, allowed in self.types.items()
        )


@lru_cache(maxsize=1)
def kernels() -> Mapping[Operator, tuple[Kernel, ...]]:
    """Return the CPU provider's kernels; none if they are not listed."""
    list_kernels = getattr(ort_state, "get_all_opkernel_def", None)
    if _CRASHES_LIST in ort_state.get_available_providers():
        list_kernels = None
    found: dict[Operator, list[Kernel]] = {}
    for kernel in list_kernels() if list_kernels else ():
        if kernel.provider == "CPUExecutionProvider":
            types = {name: frozenset(allowed) for name, allowed in kernel.type_constraints.items()}
            first, last = kernel.version_range
            operator = Operator(_DOMAINS.get(kernel.domain, kernel.domain), kernel.op_name)
            found.setdefault(operator, []).append(Kernel(first, last, types))
    return {operator: tuple(several) for operator, several in found.items()}


@lru_cache(maxsize=1)
def schema_versions() -> Mapping[Operator, tuple[int, ...]]:
    """Return the known opsets with a new version of each operator."""
    found: dict[Operator, set[int]] = {}
    for schema in ort_state.get_all_operator_schema():
        operator = Operator(_DOMAINS.get(schema.domain, schema.domain), schema.name)
        found.setdefault(operator, set()).add(int(schema.since_version))
    return {operator: tuple(sorted(versions)) for operator, versions in found.items()}


def kernel_types(operator: Operator, since_version: int) -> tuple[str, ...]:
    """Return the implemented types of the first type parameter, e.g. float, double."""
    found: set[str] = set()
    for kernel in kernels().get(operator, ()):
        if kernel.supports(since_version, {}):
            found |= next(iter(kernel.types.values()), frozenset({"all"}))
    return tuple(sorted(name.removeprefix("tensor(").removesuffix(")") for name in found))
