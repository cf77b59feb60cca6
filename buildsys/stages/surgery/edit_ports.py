"""Steps on inputs and outputs: names, dimensions, types, and cuts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from onnx import ModelProto, NodeProto, ValueInfoProto, helper, shape_inference

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import elem_type, operator_name
from buildsys.onnx_graphs.tensor_types import rename_uses
from buildsys.stages.surgery.tensor_names import (
    input_names,
    output_names,
    rename_tensors,
    replace_messages,
    require_known,
    tensor_names,
    used_by,
)

Step = Mapping[str, Any]
Inputs = Mapping[str, Mapping[str, Any]]
Kinds = Mapping[str, tuple[str, int]]  # tensor -> dtype and number of dimensions


def rename(model: ModelProto, step: Step) -> ModelProto:
    """Rename inputs and outputs.

    Raises: StageError: there is no such name, or the new one is in use.
    """
    names: Mapping[str, str] = step["rename"]
    for old in names:
        require_known(old, [*input_names(model), *output_names(model)], "input or output")
    used = [name for name in tensor_names(model.graph) if name not in names]
    for old, new in names.items():
        if new in used:
            raise StageError(
                f"{old} cannot be renamed to {new}: the graph has a tensor of this name",
                "choose another name",
            )
        used.append(new)
    rename_tensors(model.graph, names)
    return model


def fix_dims(model: ModelProto, step: Step, inputs: Inputs) -> ModelProto:
    """Set dynamic dimensions to one value; ``inputs`` has the manifest's names."""
    values: dict[str, int] = dict(step["fix_dims"])
    for value in model.graph.input:
        for axis, size in enumerate(inputs[value.name]["shape"] if value.name in inputs else ()):
            if size in step["fix_dims"]:
                dim = value.type.tensor_type.shape.dim[axis]
                values.setdefault(dim.dim_param, step["fix_dims"][size])  # the file's own name
                dim.dim_value = step["fix_dims"][size]
    values.pop("", None)
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in values:
                dim.dim_value = values[dim.dim_param]
    return model


def cast(model: ModelProto, step: Step) -> ModelProto:
    """Change input types, with a Cast to the old type.

    Raises: StageError: there is no such input, or it is an output as well.
    """
    types: Mapping[str, str] = step["cast"]
    for name in types:
        require_known(name, input_names(model), "input")
    used = set(tensor_names(model.graph))
    chosen = [value for value in model.graph.input if value.name in types]
    for number, value in enumerate(chosen):
        tensor = value.type.tensor_type
        if value.name in output_names(model):
            raise StageError(
                f"the input {value.name} is also an output, so its type cannot be changed",
                "put an Identity node between them in the network",
            )
        inner = _unused_name(f"{value.name}_as_it_was", used)
        rename_uses(model.graph, {value.name: inner})
        name = _unused_name(f"Cast_{value.name}", used)
        node = helper.make_node("Cast", [value.name], [inner], name=name, to=tensor.elem_type)
        model.graph.node.insert(number, node)
        tensor.elem_type = elem_type(types[value.name])
    return model


def _unused_name(name: str, used: Iterable[str]) -> str:
    number, found = 1, name
    while found in used:
        number, found = number + 1, f"{name}_{number}"
    return found


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
    needed, kept = set(outputs) - set(inputs), []
    for node in reversed(graph.node):  # topologically sorted
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(name for name in used_by(node) if name not in inputs)
    kept.reverse()
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

    stored = (used | set(outputs)) - set(inputs)
    new_outputs = [known.get(name) or port(name, [None] * kinds[name][1]) for name in outputs]
    replace_messages(graph.node, kept)
    replace_messages(graph.initializer, [t for t in graph.initializer if t.name in stored])
    replace_messages(graph.input, [port(name, shapes[name]) for name in inputs])
    replace_messages(graph.output, new_outputs)
    by_name = {f"{function.domain}::{function.name}": function for function in model.functions}
    waiting, called = [operator_name(node) for node in graph.node], set[str]()
    while waiting:  # local functions called by nodes or by other kept functions
        name = waiting.pop()
        if name in by_name and name not in called:
            called.add(name)
            waiting += [operator_name(node) for node in by_name[name].node]
    replace_messages(model.functions, [f for name, f in by_name.items() if name in called])
    return model


def add_outputs(model: ModelProto, names: Sequence[str]) -> ModelProto:
    """Add outputs; ONNX Runtime infers their types."""
    known = output_names(model)
    model.graph.output.extend(ValueInfoProto(name=name) for name in names if name not in known)
    return model


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
