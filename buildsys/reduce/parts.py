"""Parts of a graph, with the values at their borders from a reference."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import dtype_name, elem_type
from buildsys.onnx_graphs.tensor_types import NOT_A_TENSOR, element_types, outer_names
from buildsys.onnx_graphs.tensors import Array, Tensor, tensor_of
from buildsys.stages.common.graph_runs import open_graph
from buildsys.workers.job import Job

Tensors = Mapping[str, Tensor]
_FLOATS = ("float16", "float32", "float64")
_SMALL = 8  # elements: scales, axes and epsilons keep their values
_SIZES = {  # inputs that a builder expects to be constants
    "Reshape": (1,), "Expand": (1,), "Slice": (1, 2, 3, 4), "Resize": (1, 2, 3), "Tile": (1,),
    "Pad": (1, 2), "Unsqueeze": (1,), "Squeeze": (1,), "TopK": (1,), "Split": (1,),
    "ConstantOfShape": (0,), "ReduceSum": (1,), "ReduceMean": (1,), "ReduceMax": (1,),
    "ReduceMin": (1,), "Range": (0, 1, 2), "OneHot": (1,), "Upsample": (1,),
}  # fmt: skip


def borders(model: ModelProto, numbers: Collection[int]) -> tuple[list[str], list[str]]:
    """List the tensors that some nodes read from outside, and those that are read outside."""
    nodes, chosen = model.graph.node, set(numbers)
    stored = {"", *(tensor.name for tensor in model.graph.initializer)}
    made = [name for number in sorted(chosen) for name in nodes[number].output if name]
    read = [name for number in sorted(chosen) for name in _reads(nodes[number])]
    outside = {output.name for output in model.graph.output}
    for number, node in enumerate(nodes):
        if number not in chosen:
            outside.update(_reads(node))
    inputs = dict.fromkeys(name for name in read if name not in {*made, *stored})
    return [*inputs], [name for name in made if name in outside] or made


def _reads(node: NodeProto) -> list[str]:
    return [*filter(None, node.input), *sorted(outer_names(node))]


def part_of(
    model: ModelProto, numbers: Sequence[int], inputs: Tensors, outputs: Tensors
) -> tuple[ModelProto, Tensors]:
    """Cut nodes out of a graph; return it with its inputs. Sizes become constants."""
    nodes = [model.graph.node[number] for number in numbers]
    sizes = {
        node.input[place]
        for node in nodes
        for place in _SIZES.get(node.op_type, ())
        if place < len(node.input)
    }
    sizes -= {value.name for value in model.graph.input}
    read = {name for node in nodes for name in _reads(node)}
    part = ModelProto()
    part.CopyFrom(model)
    graph = part.graph
    stored = [tensor for tensor in model.graph.initializer if tensor.name in read]
    for field in ("node", "initializer", "input", "output", "value_info", "sparse_initializer"):
        graph.ClearField(field)
    graph.node.extend(nodes)
    graph.initializer.extend(stored)
    graph.initializer.extend(
        numpy_helper.from_array(inputs[name].typed(), name) for name in inputs if name in sizes
    )
    inputs = {name: tensor for name, tensor in inputs.items() if name not in sizes}
    for tensors, ports in ((inputs, graph.input), (outputs, graph.output)):
        for name, tensor in tensors.items():
            kind = elem_type(tensor.dtype)
            ports.append(helper.make_tensor_value_info(name, kind, tensor.shape))
    return part, inputs


def values_of(
    job: Job, model: ModelProto, names: Collection[str], feeds: Tensors
) -> dict[str, Tensor]:
    """Compute tensors inside a graph. Raises: StageError: ONNX Runtime cannot."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer if tensor.name in names}
    values = {name: tensor_of(numpy_helper.to_array(each)) for name, each in stored.items()}
    values |= {name: feeds[name] for name in names if name in feeds}
    types = element_types(model)
    missing = [name for name in names if name not in values]
    if any(types.get(name, TensorProto.FLOAT) == NOT_A_TENSOR for name in missing):
        raise StageError("a border of the part is not a tensor", "another part is tried")
    if missing:
        copy = ModelProto()
        copy.CopyFrom(model)
        copy.graph.ClearField("output")
        copy.graph.output.extend(
            helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), None)
            for name in missing
        )
        values |= open_graph(job, copy).run(feeds)
    return values


def own_weights(model: ModelProto) -> list[TensorProto]:
    """List the float weights that may be the user's."""
    return [
        tensor
        for tensor in model.graph.initializer
        if dtype_name(tensor.data_type) in _FLOATS and np.prod(tensor.dims) > _SMALL
    ]


def draw_weights(model: ModelProto) -> None:
    """Replace larger float weights by numbers of the same mean, deviation and range."""
    rng = np.random.default_rng(0)
    for tensor in own_weights(model):
        drawn = _like(numpy_helper.to_array(tensor), rng)
        tensor.CopyFrom(numpy_helper.from_array(drawn, tensor.name))


def drawn_inputs(inputs: Tensors) -> dict[str, Tensor]:
    """Replace inputs of numpy's numeric types by numbers of the same range."""
    rng = np.random.default_rng(1)
    return {
        name: Tensor(_like(tensor.array, rng), tensor.dtype)
        if tensor.dtype in _FLOATS or tensor.dtype.startswith("int")
        else tensor
        for name, tensor in inputs.items()
    }


def _like(array: Array, rng: np.random.Generator) -> Array:
    wide = array.astype(np.float64)
    if not array.size or not np.isfinite(wide).all():
        return array
    drawn = rng.normal(wide.mean(), wide.std(), array.shape)
    return np.clip(drawn, wide.min(), wide.max()).astype(array.dtype)
