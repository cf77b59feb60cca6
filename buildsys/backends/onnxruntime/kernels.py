"""What this build of ONNX Runtime has schemas and kernels for, by operator, opset and type."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

CPU = "CPUExecutionProvider"
_OPEN = 2**31 - 1  # a kernel for this version and, until a newer one is registered, no other


class Operator(NamedTuple):
    """An operator by its domain, "" for ONNX's own, and its name."""

    domain: str
    name: str


class Kernel(NamedTuple):
    """An implementation: for which versions of the operator's schema and which types it is."""

    first: int
    last: int
    types: Mapping[
        str, frozenset[str]
    ]  # type parameter, input or output -> e.g. tensor(float); none for all types

    def takes_version(self, since_version: int) -> bool:
        """Tell whether it implements that version of the operator, as ONNX Runtime's registry decides."""
        return self.first == since_version or (
            self.last != _OPEN and self.first <= since_version <= self.last
        )

    def takes_types(self, types: Mapping[str, str]) -> bool:
        """Tell whether it implements the operator for these types; what is not known is taken to fit."""
        return all(
            name not in types or types[name] in allowed for name, allowed in self.types.items()
        )


@lru_cache(maxsize=1)
def kernels(provider: str = CPU) -> Mapping[Operator, tuple[Kernel, ...]]:
    """Return the kernels of an execution provider; nothing where this build does not tell them."""
    tell = getattr(ort_state, "get_all_opkernel_def", None)
    found: dict[Operator, list[Kernel]] = {}
    for kernel in tell() if tell else ():
        if kernel.provider == provider:
            types = {name: frozenset(allowed) for name, allowed in kernel.type_constraints.items()}
            operator = Operator(_domain(kernel.domain), kernel.op_name)
            first, last = kernel.version_range
            found.setdefault(operator, []).append(Kernel(first, last, types))
    return {operator: tuple(several) for operator, several in found.items()}


@lru_cache(maxsize=1)
def schema_versions() -> Mapping[Operator, tuple[int, ...]]:
    """Return the opsets at which each operator came or changed, as far as this build knows them."""
    found: dict[Operator, set[int]] = {}
    for schema in ort_state.get_all_operator_schema():
        found.setdefault(Operator(_domain(schema.domain), schema.name), set()).add(
            int(schema.since_version)
        )
    return {operator: tuple(sorted(versions)) for operator, versions in found.items()}


def newest_opset() -> int:
    """Return the newest opset of ONNX's own domain in which this build knows an operator."""
    return max(
        versions[-1] for operator, versions in schema_versions().items() if not operator.domain
    )


def knows(operator: Operator) -> bool:
    """Tell whether it has a schema, or one of its kernels names the operator."""
    return operator in schema_versions() or operator in kernels()


def has_kernel(operator: Operator, since_version: int, types: Mapping[str, str]) -> bool:
    """Tell whether the CPU provider implements that version of an operator for these types."""
    return any(
        kernel.takes_version(since_version) and kernel.takes_types(types)
        for kernel in kernels().get(operator, ())
    )


def kernel_types(operator: Operator, since_version: int) -> tuple[str, ...]:
    """Return the types of the first type parameter for which a version is implemented: float, double."""
    found: dict[str, None] = {}
    for kernel in kernels().get(operator, ()):
        if kernel.takes_version(since_version):
            for allowed in list(kernel.types.values())[:1] or [frozenset({"all"})]:
                found.update(
                    dict.fromkeys(
                        sorted(name.removeprefix("tensor(").removesuffix(")") for name in allowed)
                    )
                )
    return tuple(sorted(found))


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else str(domain)
