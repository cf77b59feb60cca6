"""Steps on inputs and outputs: other names, fixed and free dimensions, another input type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from onnx import ModelProto, ValueInfoProto, helper

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import elem_type
from buildsys.stages.surgery.tensor_names import (
    input_names,
    output_names,
    rename_tensors,
    rename_uses,
    require_known,
)
from buildsys.stages.surgery.tensor_names import tensor_names as all_names

Step = Mapping[str, Any]
Inputs = Mapping[str, Mapping[str, Any]]


def rename(model: ModelProto, step: Step) -> ModelProto:
    """Give inputs and outputs other names. Raises: StageError: no such name, or the new one is taken."""
    names: Mapping[str, str] = step["rename"]
    for old in names:
        require_known(old, [*input_names(model), *output_names(model)], "input or output")
    taken = [name for name in all_names(model.graph) if name not in names]
    for old, new in names.items():
        if new in taken:
            raise StageError(
                f"{old} cannot be named {new}: the graph has a tensor of this name",
                "choose another name",
            )
        taken.append(new)
    rename_tensors(model.graph, names)
    return model


def fix_dims(model: ModelProto, step: Step, inputs: Inputs) -> ModelProto:
    """Give dynamic dimensions one value; ``inputs`` says where the manifest's names stand."""
    values: dict[str, int] = dict(step["fix_dims"])
    for value in model.graph.input:
        for axis, size in enumerate(inputs[value.name]["shape"] if value.name in inputs else ()):
            dim = value.type.tensor_type.shape.dim[axis]
            if size in step["fix_dims"]:
                values.setdefault(
                    dim.dim_param, step["fix_dims"][size]
                )  # the file may have its own name for it
                dim.dim_value = step["fix_dims"][size]
    values.pop("", None)
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in values:
                dim.dim_value = values[dim.dim_param]
    return model


def free_dims(model: ModelProto, step: Step) -> ModelProto:
    """Give fixed dimensions a name; the shapes of other outputs are worked out again.

    Raises: StageError: no such input, output or axis.
    """
    named: Mapping[str, Mapping[str, str]] = step["free_dims"]
    for name in named:
        require_known(name, [*input_names(model), *output_names(model)], "input or output")
    for value in (*model.graph.input, *model.graph.output):
        if value.name in named:
            _name_axes(value, named[value.name])
    for value in model.graph.output:
        if value.name not in named:
            for dim in value.type.tensor_type.shape.dim:
                dim.Clear()
    return model


def cast(model: ModelProto, step: Step) -> ModelProto:
    """Let inputs be of another type, with a Cast to the old one behind them. Raises: StageError: no such input."""
    types: Mapping[str, str] = step["cast"]
    for name in types:
        require_known(name, input_names(model), "input")
    taken = set(all_names(model.graph))
    for number, value in enumerate(
        value for value in list(model.graph.input) if value.name in types
    ):
        tensor = value.type.tensor_type
        inside = _free_name(f"{value.name}_as_it_was", taken)
        if value.name in output_names(model):
            raise StageError(
                f"the input {value.name} is an output as well, and cannot be of another type"
            )
        rename_uses(model.graph, {value.name: inside})
        node = helper.make_node(
            "Cast",
            [value.name],
            [inside],
            name=_free_name(f"Cast_{value.name}", taken),
            to=tensor.elem_type,
        )
        model.graph.node.insert(number, node)
        tensor.elem_type = elem_type(types[value.name])
    return model


def _name_axes(value: ValueInfoProto, axes: Mapping[str, str]) -> None:
    dims = value.type.tensor_type.shape.dim
    for axis, name in axes.items():
        if not -len(dims) <= int(axis) < len(dims):
            raise StageError(f"{value.name} has no axis {axis}: it has {len(dims)} dimensions")
        dims[int(axis)].dim_param = name


def _free_name(wanted: str, taken: Iterable[str]) -> str:
    number, name = 1, wanted
    while name in taken:
        number, name = number + 1, f"{wanted}_{number}"
    return name
