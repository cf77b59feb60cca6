"""Keep the part of a graph between named tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper, shape_inference

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import elem_type, operator_name
from buildsys.stages.surgery.tensor_names import (
    input_names,
    output_names,
    require_known,
    tensor_names,
    used_by,
)

Step = Mapping[str, Any]
Kinds = Mapping[str, tuple[str, int]]  # tensor -> its dtype and its number of dimensions


def cut_tensors(model: ModelProto, step: Step) -> tuple[list[str], list[str]]:
    """Return the inputs and outputs of the part to keep. Raises: StageError: there is no such tensor."""
    cut = step["cut"]
    inputs = list(input_names(model) if cut["inputs"] is None else cut["inputs"])
    outputs = list(output_names(model) if cut["outputs"] is None else cut["outputs"])
    known = tensor_names(model.graph)
    for name in (*inputs, *outputs):
        require_known(name, known, "tensor")
    return inputs, outputs


def cut(
    model: ModelProto, step: Step, shapes: Mapping[str, Sequence[Any]], kinds: Kinds
) -> ModelProto:
    """Return the model with the nodes between the step's tensors alone.

    ``shapes`` are those of the new inputs, ``kinds`` those of all cut tensors, as they were computed.
    Raises: StageError: nothing is left, an input is not used, or another input is still needed.
    """
    inputs, outputs = cut_tensors(model, step)
    kept = _needed_nodes(model.graph, inputs, outputs)
    _check_ends(model, kept, inputs, outputs)
    inferred = _value_infos(model)
    graph = model.graph
    used = {name for node in kept for name in used_by(node)} | set(outputs)
    new_inputs = [_port(name, kinds[name][0], shapes[name]) for name in inputs]
    new_outputs = [
        inferred.get(name) or _port(name, kinds[name][0], [None] * kinds[name][1])
        for name in outputs
    ]
    stored = [
        tensor for tensor in graph.initializer if tensor.name in used and tensor.name not in inputs
    ]
    for field, values in (
        ("node", kept),
        ("initializer", stored),
        ("input", new_inputs),
        ("output", new_outputs),
    ):
        copies = [_copied(value) for value in values]
        graph.ClearField(field)
        getattr(graph, field).extend(copies)
    _drop_unused_functions(model)
    return model


def with_outputs(model: ModelProto, names: Sequence[str]) -> ModelProto:
    """Return the model with further outputs, whose types ONNX Runtime works out."""
    model.graph.output.extend(
        ValueInfoProto(name=name) for name in names if name not in output_names(model)
    )
    return model


def _needed_nodes(
    graph: GraphProto, inputs: Sequence[str], outputs: Sequence[str]
) -> list[NodeProto]:
    wanted = set(outputs) - set(inputs)
    kept = []
    for node in reversed(graph.node):  # makers stand before users
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(name for name in used_by(node) if name not in inputs)
    return kept[::-1]


def _check_ends(
    model: ModelProto, kept: Sequence[NodeProto], inputs: Sequence[str], outputs: Sequence[str]
) -> None:
    used = {name for node in kept for name in used_by(node)}
    if not kept:
        raise StageError(
            f"the cut leaves no node: {', '.join(outputs)} is not made from {', '.join(inputs) or 'any input'}",
            "name outputs that lie behind the inputs",
        )
    for name in inputs:
        if name not in used:
            raise StageError(
                f"{', '.join(outputs)} does not depend on {name}",
                "list the needed ones in cut.inputs",
            )
    needed = [name for name in input_names(model) if name in used and name not in inputs]
    if needed:
        raise StageError(
            f"the cut part still needs the input {needed[0]}", "name it in cut.inputs as well"
        )
    dead = [name for name in outputs if not any(name in node.output for node in kept)]
    if dead:
        raise StageError(f"the cut leaves no node before its output {dead[0]}")


def _value_infos(model: ModelProto) -> dict[str, ValueInfoProto]:
    try:
        inferred = shape_inference.infer_shapes(model)
    except (ValueError, RuntimeError):  # 2 GiB and more: the types are taken from what was computed
        return {}
    values = (*inferred.graph.output, *inferred.graph.value_info)
    return {value.name: _copied(value) for value in values if value.type.tensor_type.elem_type}


def _port(name: str, dtype: str, shape: Sequence[Any]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type(dtype), list(shape))


def _copied(value: Any) -> Any:
    copy = type(value)()
    copy.CopyFrom(value)
    return copy


def _drop_unused_functions(model: ModelProto) -> None:
    """Keep the local functions that nodes call, directly or from another function."""
    by_name = {f"{function.domain}::{function.name}": function for function in model.functions}
    waiting, called = [operator_name(node) for node in model.graph.node], set[str]()
    while waiting:
        name = waiting.pop()
        if name in by_name and name not in called:
            called.add(name)
            waiting += [operator_name(node) for node in by_name[name].node]
    kept = [_copied(function) for name, function in by_name.items() if name in called]
    model.ClearField("functions")
    model.functions.extend(kept)
