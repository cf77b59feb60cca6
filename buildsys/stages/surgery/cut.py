"""The part of a graph between named tensors."""

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
Kinds = Mapping[str, tuple[str, int]]  # tensor -> dtype and number of dimensions


def cut_tensors(model: ModelProto, step: Step) -> tuple[list[str], list[str]]:
    """Return the inputs and outputs of the part.

    Raises: StageError: there is no such tensor.
    """
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
    """Reduce the model to the nodes between the step's tensors.

    ``shapes`` are those of the new inputs, ``kinds`` those of all cut tensors, as computed.
    Raises: StageError: nothing is left, an input is unused, or another input is still needed.
    """
    inputs, outputs = cut_tensors(model, step)
    graph = model.graph
    kept = _needed_nodes(graph, inputs, outputs)
    used = {name for node in kept for name in used_by(node)}
    _check_cut(model, kept, used, inputs, outputs)
    try:
        inferred = shape_inference.infer_shapes(model).graph
        values = (*inferred.output, *inferred.value_info)
    except (ValueError, RuntimeError):  # 2 GiB and more; use the computed types
        values = ()
    known = {value.name: value for value in values if value.type.tensor_type.elem_type}

    def port(name: str, shape: Sequence[Any]) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, elem_type(kinds[name][0]), list(shape))

    fields: dict[str, list[Any]] = {
        "node": kept,
        "initializer": [
            tensor
            for tensor in graph.initializer
            if tensor.name in used | set(outputs) and tensor.name not in inputs
        ],
        "input": [port(name, shapes[name]) for name in inputs],
        "output": [known.get(name) or port(name, [None] * kinds[name][1]) for name in outputs],
    }
    for field, messages in fields.items():
        copies = [_copy(message) for message in messages]
        graph.ClearField(field)
        getattr(graph, field).extend(copies)
    _drop_unused_functions(model)
    return model


def add_outputs(model: ModelProto, names: Sequence[str]) -> ModelProto:
    """Add outputs; ONNX Runtime infers their types."""
    known = output_names(model)
    model.graph.output.extend(ValueInfoProto(name=name) for name in names if name not in known)
    return model


def _needed_nodes(
    graph: GraphProto, inputs: Sequence[str], outputs: Sequence[str]
) -> list[NodeProto]:
    needed = set(outputs) - set(inputs)
    kept = []
    for node in reversed(graph.node):  # topologically sorted
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(name for name in used_by(node) if name not in inputs)
    return kept[::-1]


def _check_cut(
    model: ModelProto,
    kept: Sequence[NodeProto],
    used: set[str],
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> None:
    shown = ", ".join(outputs)
    if not kept:
        raise StageError(
            f"the cut leaves no node: {shown} is not computed from"
            f" {', '.join(inputs) or 'any input'}",
            "name outputs downstream of the inputs",
        )
    if unused := [name for name in inputs if name not in used]:
        raise StageError(
            f"{shown} does not depend on {unused[0]}", "list only needed tensors in cut.inputs"
        )
    if needed := [name for name in input_names(model) if name in used and name not in inputs]:
        raise StageError(
            f"the cut part still needs the input {needed[0]}", "name it in cut.inputs as well"
        )
    made = {name for node in kept for name in node.output}
    if dead := [name for name in outputs if name not in made]:
        raise StageError(
            f"the cut leaves no node before its output {dead[0]}", "name another output"
        )


def _copy(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _drop_unused_functions(model: ModelProto) -> None:
    """Keep the local functions called by nodes or by other kept functions."""
    by_name = {f"{function.domain}::{function.name}": function for function in model.functions}
    waiting, called = [operator_name(node) for node in model.graph.node], set[str]()
    while waiting:
        name = waiting.pop()
        if name in by_name and name not in called:
            called.add(name)
            waiting += [operator_name(node) for node in by_name[name].node]
    kept = [_copy(function) for name, function in by_name.items() if name in called]
    model.ClearField("functions")
    model.functions.extend(kept)
