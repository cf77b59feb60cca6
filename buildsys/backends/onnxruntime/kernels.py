"""Schemas and kernels of ONNX Runtime by operator, opset and type."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import onnx.defs
import onnx.shape_inference
import onnxruntime as ort
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from buildsys.backends.interface import UnsupportedNode
from buildsys.backends.onnxruntime.session import session_options
from buildsys.onnx_graphs.graph_reader import inline_all
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


_DEFAULT_DOMAIN = ("", "ai.onnx")
_IR_VERSION = 10  # supported by every ONNX Runtime here
_NO_KERNEL = "Could not find an implementation"


def refused_nodes(model_file: Path, provided: Collection[str] = ()) -> list[UnsupportedNode]:
    """List all nodes with unknown operators or without a CPU kernel.

    ``provided`` are operators of custom libraries, as DOMAIN::NAME. A file that is not a model has
    no nodes.
    """
    try:
        model = onnx.load(str(model_file), load_external_data=False)
    except (OSError, DecodeError):
        return []
    implemented = {f"{function.domain}::{function.name}" for function in model.functions}
    implemented |= {*provided}
    refused = []
    groups = [
        ((), model.graph.node),
        *(((function.name,), function.node) for function in model.functions),
    ]
    for inside, nodes in groups:
        for index, node in _nodes(nodes):
            operator = Operator("" if node.domain in _DEFAULT_DOMAIN else node.domain, node.op_type)
            if f"{node.domain}::{node.op_type}" in implemented or operator in schema_versions():
                continue
            domain = operator.domain or "ai.onnx"
            reason = (
                f"not an operator of the domain {domain} in this ONNX Runtime, and no function of"
                " the model"
            )
            output = next(iter(node.output), "")
            refused.append(
                UnsupportedNode(index, node.name, node.op_type, reason, inside, output=output)
            )
    return [*refused, *_without_kernel(model)]


def _without_kernel(model: onnx.ModelProto) -> list[UnsupportedNode]:
    """List the nodes of ONNX's operators without a kernel.

    Each is tried in a session of its own: ONNX Runtime may run it with casts around float16 or
    with the function body that ONNX gives some operators.
    """
    with suppress(Exception):  # any class; nodes of unknown types are skipped
        model = inline_all(model) if model.functions else model
        model = onnx.shape_inference.infer_shapes(model)
    opsets = [entry.version for entry in model.opset_import if entry.domain in _DEFAULT_DOMAIN]
    opset = max(opsets, default=0)
    types = dict(_tensor_types(model.graph))
    results: dict[bytes, UnsupportedNode | None] = {}
    refused = []
    for index, node in _nodes(model.graph.node):
        if not _can_try(node, opset, types):
            continue
        kind = onnx.NodeProto(op_type=node.op_type, attribute=node.attribute)
        kind.input.extend(str(types.get(name, "")) for name in node.input)
        key = bytes(kind.SerializeToString(deterministic=True))
        if key not in results:
            results[key] = _tried(node, opset, types)
        if result := results[key]:
            output = next(iter(node.output), "")
            refused.append(replace(result, index=index, name=node.name, output=output))
    return refused


def _tensor_types(graph: Any) -> Iterator[tuple[str, int]]:
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.HasField("tensor_type"):
            yield value.name, value.type.tensor_type.elem_type
    yield from ((tensor.name, tensor.data_type) for tensor in graph.initializer)
    for node in graph.node:
        for body in subgraphs(node):
            yield from _tensor_types(body)


def _nodes(nodes: Any) -> Iterator[tuple[int, Any]]:
    """Yield nodes of all levels with their outermost node's index."""
    for index, node in enumerate(nodes):
        yield index, node
        for body in subgraphs(node):
            yield from ((index, inner) for _, inner in _nodes(body.node))


def _can_try(node: Any, opset: int, tensors: Mapping[str, int]) -> bool:
    """Check for an operator of ONNX without bodies and with known types."""
    has_types = all(tensors.get(name) for name in node.input if name)
    is_onnx = node.domain in _DEFAULT_DOMAIN and onnx.defs.has(node.op_type, opset, "")
    return has_types and is_onnx and not any(subgraphs(node))


def _tried(node: Any, opset: int, tensors: Mapping[str, int]) -> UnsupportedNode | None:
    """Return the refused node, None if ONNX Runtime loads it."""
    if _loads(node, opset, tensors):
        return None
    types = dict.fromkeys(_type_name(tensors[name]) for name in node.input if name)
    reason = f"ONNX Runtime has no CPU kernel for it in {', '.join(types) or 'its types'}"
    versions = schema_versions().items()
    newest = max(opsets[-1] for operator, opsets in versions if not operator.domain)
    changed: set[int] = set()  # opsets with a new version or function body of the operator
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain and schema.name == node.op_type:
            version: Any = schema
            changed |= {version.since_version, *version.function_opset_versions}
            changed |= {*version.context_dependent_function_opset_versions}
    newest = min(newest, onnx.defs.onnx_opset_version())
    later = (at for at in sorted(changed) if opset < at <= newest)
    since = next((at for at in later if _loads(node, at, tensors, strictly=True)), None)
    return UnsupportedNode(None, node.name, node.op_type, reason, since=since)


def _loads(node: Any, opset: int, tensors: Mapping[str, int], *, strictly: bool = False) -> bool:
    """Check whether a session loads the node alone.

    Unless ``strictly``, failures for other reasons than a kernel count as loaded.
    """
    inputs, outputs = (
        [
            helper.make_tensor_value_info(name, tensors[name], None)
            if tensors.get(name)
            else helper.make_empty_tensor_value_info(name)
            for name in dict.fromkeys(names)
            if name
        ]
        for names in (node.input, node.output)
    )
    graph = helper.make_graph([node], "one", inputs, outputs)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=_IR_VERSION
    )
    try:
        ort.InferenceSession(
            model.SerializeToString(),
            session_options(severity=4),
            providers=["CPUExecutionProvider"],
        )
    except Exception as refusal:  # many classes
        return not strictly and _NO_KERNEL not in str(refusal)
    return True


def _type_name(elem_type: int) -> str:
    return str(TensorProto.DataType.Name(elem_type)).lower()
