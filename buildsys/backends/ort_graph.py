"""What can be read from ONNX files for ONNX Runtime: nodes that it cannot take, and the facts of a saved graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnx
import onnx.defs
import onnx.inliner
import onnx.shape_inference
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper

from buildsys.backends import ort_kernels
from buildsys.backends.base import Figures, UnsupportedNode
from buildsys.backends.ort_kernels import Operator

_DEFAULT_DOMAIN = ("", "ai.onnx")
_INDEX_OPERATORS = ("Shape", "Size", "ArgMax", "ArgMin", "NonZero")
_BOOL_OPERATORS = (
    "And", "Or", "Xor", "Not", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsNaN", "IsInf",
)  # fmt: skip
_CONDITIONAL_OPERATORS = ("Where", "If", "Loop")  # their first input does not give their type


def refused_nodes(model_file: Path, provided: Collection[str] = ()) -> list[UnsupportedNode]:
    """Return the nodes, also of subgraphs and local functions, that ONNX Runtime on a CPU can have nothing for.

    Those whose operator has no schema in it, and those without a kernel for their types. A session names only the
    first. ``provided`` are operators that libraries bring along, as DOMAIN::NAME. A file that is no model has none.
    """
    try:
        model = onnx.load(str(model_file), load_external_data=False)
    except (OSError, DecodeError):
        return []
    known = {f"{function.domain}::{function.name}" for function in model.functions} | {*provided}
    found = [_unknown(index, node, (), known) for index, node in _nodes(model.graph.node)]
    for function in model.functions:
        found += [_unknown(index, node, (function.name,), known) for index, node in _nodes(function.node)]
    return [*(node for node in found if node is not None), *_without_kernel(model)]


def graph_facts(model_file: Path) -> Figures:
    """Return the tensors of a graph, its nodes per operator, and the share of each type in nodes and weights."""
    model = onnx.load(str(model_file), load_external_data=False)
    nodes = Counter(f"{node.domain}:{node.op_type}" if node.domain else node.op_type for node in model.graph.node)
    weights: Counter[str] = Counter()
    for initializer in model.graph.initializer:
        weights[_type_name(initializer.data_type)] += _size_bytes(initializer)
    return {
        "inputs": [_tensor_facts(value) for value in model.graph.input],
        "outputs": [_tensor_facts(value) for value in model.graph.output],
        "layers": dict(sorted(nodes.items())),
        "precision_shares": {"layers": _shares(_node_types(model.graph)), "weights": _shares(weights)},
    }


def _unknown(index: int, node: Any, inside: tuple[str, ...], known: Collection[str]) -> UnsupportedNode | None:
    operator = Operator("" if node.domain in _DEFAULT_DOMAIN else node.domain, node.op_type)
    if f"{node.domain}::{node.op_type}" in known or ort_kernels.knows(operator):
        return None
    domain = operator.domain or "ai.onnx"
    reason = f"not an operator of the domain {domain} in this ONNX Runtime, and no function of the model"
    return UnsupportedNode(index, node.name, node.op_type, reason, inside, output=next(iter(node.output), ""))


def _without_kernel(model: onnx.ModelProto) -> list[UnsupportedNode]:
    """Return the nodes of ONNX's own operators that have no kernel for their types, and no function to fall back on."""
    if not ort_kernels.kernels():
        return []
    typed = _inferred(model)
    version = max((entry.version for entry in typed.opset_import if entry.domain in _DEFAULT_DOMAIN), default=0)
    types = dict(_tensor_types(typed.graph))
    found = [_lacking(index, node, version, types) for index, node in _nodes(typed.graph.node)]
    return [node for node in found if node is not None]


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its functions in place and the types of its tensors, as far as ONNX can tell them."""
    with suppress(Exception):  # whatever either meets, nodes of unknown types are not judged
        model = onnx.inliner.inline_local_functions(model) if model.functions else model
        model = onnx.shape_inference.infer_shapes(model)
    return model


def _tensor_types(graph: Any) -> Iterator[tuple[str, str]]:
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.HasField("tensor_type"):
            yield value.name, _ort_type(value.type.tensor_type.elem_type)
    yield from ((tensor.name, _ort_type(tensor.data_type)) for tensor in graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _tensor_types(body)


def _ort_type(elem_type: int) -> str:
    return f"tensor({TensorProto.DataType.Name(elem_type).lower()})"


def _lacking(index: int, node: Any, version: int, tensors: Mapping[str, str]) -> UnsupportedNode | None:
    operator = Operator("", node.op_type)
    if node.domain not in _DEFAULT_DOMAIN or not onnx.defs.has(node.op_type, version, ""):
        return None
    schema = onnx.defs.get_schema(node.op_type, version, "")
    types = _parameter_types(schema, node, tensors)
    if _is_implemented(operator, schema, version, types):
        return None
    unique = ", ".join(dict.fromkeys(name[len("tensor(") : -1] for name in types.values())) or "these types"
    later = [found for found in _later_versions(operator, version) if _is_implemented_at(operator, found, types)]
    return UnsupportedNode(
        index,
        node.name,
        node.op_type,
        f"ONNX Runtime has no CPU kernel for it in {unique}",
        since=next(iter(later), None),
        output=next(iter(node.output), ""),
    )


def _is_implemented(operator: Operator, schema: Any, version: int, types: Mapping[str, str]) -> bool:
    bodies = (*schema.function_opset_versions, *schema.context_dependent_function_opset_versions)
    if any(opset <= version for opset in bodies):
        return True  # ONNX Runtime puts the body in its place
    since = int(schema.since_version)
    widened = {name: "tensor(float)" if kind == "tensor(float16)" else kind for name, kind in types.items()}
    # ONNX Runtime puts casts around float16 where there is a kernel for float only
    return ort_kernels.has_kernel(operator, since, types) or ort_kernels.has_kernel(operator, since, widened)


def _is_implemented_at(operator: Operator, version: int, types: Mapping[str, str]) -> bool:
    return _is_implemented(operator, onnx.defs.get_schema(operator.name, version, ""), version, types)


def _later_versions(operator: Operator, version: int) -> Iterator[int]:
    return (since for since in ort_kernels.schema_versions().get(operator, ()) if since > version)


def _parameter_types(schema: Any, node: Any, tensors: Mapping[str, str]) -> dict[str, str]:
    """Return type parameter and formal name -> type, of those inputs and outputs whose type is known."""
    types: dict[str, str] = {}
    for formals, names in ((schema.inputs, node.input), (schema.outputs, node.output)):
        for formal, name in zip(formals, names, strict=False):  # a variadic one stands for the rest
            if name in tensors:
                types.setdefault(formal.type_str, tensors[name])
                types.setdefault(formal.name, tensors[name])
    return types


def _nodes(nodes: Any) -> Iterator[tuple[int, Any]]:
    """Yield nodes with the index that their outermost node has in the graph."""
    for index, node in enumerate(nodes):
        yield index, node
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from ((index, inner) for _, inner in _nodes(graph.node))


def known_operators() -> frozenset[tuple[str, str]]:
    """Return domain and name of every operator that ONNX Runtime itself has; ONNX's own domain is empty."""
    return frozenset(ort_kernels.schema_versions())


def _node_types(graph: Any) -> Counter[str]:
    """Count nodes by the type of their first output.

    A saved graph has no types for its inner tensors, and ONNX cannot infer them across ONNX Runtime's own
    operators, so they are told from the Casts and the weights on the way.
    """
    types: dict[str, int] = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for values in (graph.input, graph.value_info, graph.output):
        types.update({value.name: value.type.tensor_type.elem_type for value in values})
    counts: Counter[str] = Counter()
    for node in graph.node:
        found = types.get(node.output[0]) or _output_type(node, types)
        types.update({name: found for name in node.output if name not in types})
        counts[_type_name(found)] += 1
    return counts


def _output_type(node: Any, types: Mapping[str, int]) -> int:
    if node.op_type in _INDEX_OPERATORS:
        return int(TensorProto.INT64)
    if node.op_type in _BOOL_OPERATORS:
        return int(TensorProto.BOOL)
    for attribute in node.attribute:
        if node.op_type == "Cast" and attribute.name == "to":
            return int(attribute.i)
        if attribute.name == "value" and attribute.HasField("t"):
            return int(attribute.t.data_type)
    inputs = node.input[1:] if node.op_type in _CONDITIONAL_OPERATORS else node.input
    return next((types[name] for name in inputs if types.get(name)), 0)


def _tensor_facts(value: Any) -> dict[str, Any]:
    tensor = value.type.tensor_type
    shape = [size.dim_value if size.HasField("dim_value") else size.dim_param or "?" for size in tensor.shape.dim]
    return {"name": value.name, "dtype": _type_name(tensor.elem_type), "shape": shape}


def _type_name(elem_type: int) -> str:
    if elem_type == TensorProto.UNDEFINED:
        return "unknown"
    name = str(TensorProto.DataType.Name(elem_type)).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def _size_bytes(initializer: Any) -> int:
    count = 1
    for size in initializer.dims:
        count *= size
    return count * int(helper.tensor_dtype_to_np_dtype(initializer.data_type).itemsize)


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    return {name: count / total for name, count in sorted(counts.items())} if total else {}
