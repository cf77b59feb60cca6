"""Schemas and kernels of ONNX Runtime by operator, opset and type."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import onnx
from google.protobuf.message import DecodeError
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from buildsys.backends.interface import UnsupportedNode
from buildsys.onnx_graphs.onnx_file import subgraphs

_DOMAINS = {"ai.onnx": ""}
_CRASHES_LIST = "OpenVINOExecutionProvider"  # built in (onnxruntime-openvino 1.24.1)
_OPEN = 2**31 - 1  # a kernel for this version until a newer one is registered


class Operator(NamedTuple):
    """An operator by its domain, "" for ONNX's own, and its name."""

    domain: str
    name: str


@lru_cache(maxsize=1)
def _kernel_definitions() -> Mapping[Operator, list[Any]]:
    """Collect the CPU provider's kernels by operator; none if they are not listed."""
    list_kernels = getattr(ort_state, "get_all_opkernel_def", None)
    if list_kernels is None or _CRASHES_LIST in ort_state.get_available_providers():
        return {}
    definitions: dict[Operator, list[Any]] = {}
    for kernel in list_kernels():
        if kernel.provider == "CPUExecutionProvider":
            operator = Operator(_DOMAINS.get(kernel.domain, kernel.domain), kernel.op_name)
            definitions.setdefault(operator, []).append(kernel)
    return definitions


@lru_cache(maxsize=1)
def schema_versions() -> Mapping[Operator, tuple[int, ...]]:
    """Return the known opsets with a new version of each operator."""
    opsets: dict[Operator, set[int]] = {}
    for schema in ort_state.get_all_operator_schema():
        operator = Operator(_DOMAINS.get(schema.domain, schema.domain), schema.name)
        opsets.setdefault(operator, set()).add(int(schema.since_version))
    return {operator: tuple(sorted(versions)) for operator, versions in opsets.items()}


def kernel_types(operator: Operator, since_version: int) -> tuple[str, ...]:
    """List the implemented types of the first type parameter, e.g. float, double.

    A kernel for an open range of versions is for the version that it begins with.
    """
    types: set[str] = set()
    for kernel in _kernel_definitions().get(operator, ()):
        first, last = kernel.version_range
        if first == since_version or (last != _OPEN and first <= since_version <= last):
            types.update(next(iter(kernel.type_constraints.values()), ("all",)))
    return tuple(sorted(name.removeprefix("tensor(").removesuffix(")") for name in types))


_NO_KERNEL = re.compile(r"Could not find an implementation for (\w+)\(\d+\) node with name '(.*?)'")


def refused_nodes(
    model_file: Path, provided: Collection[str], refusal: str
) -> list[UnsupportedNode]:
    """List all nodes with unknown operators, else the one without a kernel in ``refusal``.

    ``provided`` are operators of custom libraries, as DOMAIN::NAME; ``refusal`` is ONNX Runtime's
    text. A file that is not a model has no nodes.
    """
    try:
        model = onnx.load(str(model_file), load_external_data=False)
    except (OSError, DecodeError):
        return []
    implemented = {f"{function.domain}::{function.name}" for function in model.functions}
    implemented |= {*provided}
    unknown, without_kernel = [], []
    groups = [
        ((), model.graph.node),
        *(((function.name,), function.node) for function in model.functions),
    ]
    kernel = _NO_KERNEL.search(refusal)
    for inside, nodes in groups:
        for index, node in _nodes(nodes):
            operator = Operator(_DOMAINS.get(node.domain, node.domain), node.op_type)
            output = next(iter(node.output), "")
            if kernel and (node.op_type, node.name) == (kernel[1], kernel[2]):
                reason = "ONNX Runtime has no CPU kernel for it with its types"
                without_kernel.append(
                    UnsupportedNode(index, node.name, node.op_type, reason, inside, output=output)
                )
            if (
                f"{node.domain}::{node.op_type}" not in implemented
                and operator not in schema_versions()
            ):
                reason = (
                    f"not an operator of the domain {operator.domain or 'ai.onnx'} in this ONNX"
                    " Runtime, and no function of the model"
                )
                unknown.append(
                    UnsupportedNode(index, node.name, node.op_type, reason, inside, output=output)
                )
    return unknown or without_kernel


def _nodes(nodes: Any) -> Iterator[tuple[int, Any]]:
    """Yield nodes of all levels with their outermost node's index."""
    for index, node in enumerate(nodes):
        yield index, node
        for body in subgraphs(node):
            yield from ((index, inner) for _, inner in _nodes(body.node))
