"""Steps on inputs and outputs: names, fixed and free dimensions, input types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from onnx import ModelProto, helper

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import elem_type
from buildsys.stages.surgery.tensor_names import (
    input_names,
    output_names,
    rename_tensors,
    rename_uses,
    require_known,
    tensor_names,
)

Step = Mapping[str, Any]
Inputs = Mapping[str, Mapping[str, Any]]


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


def free_dims(model: ModelProto, step: Step) -> ModelProto:
    """Name fixed dimensions; the shapes of other outputs are inferred later.

    Raises: StageError: there is no such input, output or axis.
    """
    named: Mapping[str, Mapping[str, str]] = step["free_dims"]
    for name in named:
        require_known(name, [*input_names(model), *output_names(model)], "input or output")
    for value in (*model.graph.input, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        for axis, name in named.get(value.name, {}).items():
            if not -len(dims) <= int(axis) < len(dims):
                raise StageError(f"{value.name} has no axis {axis}: it has {len(dims)} dimensions")
            dims[int(axis)].dim_param = name
    for value in model.graph.output:
        if value.name not in named:
            for dim in value.type.tensor_type.shape.dim:
                dim.Clear()
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
                f"the input {value.name} is also an output, so its type cannot be changed"
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
