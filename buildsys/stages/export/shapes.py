"""Shapes of exported graphs and of files from elsewhere: inferred, not believed.

Exporters write sizes of their example where a size is dynamic, such as the time of dynamo's GRU,
and files may say anything. Engines that plan their memory by a wrong shape break.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import onnx
from onnx import ModelProto, ValueInfoProto, helper, shape_inference

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import STANDARD, port_of
from buildsys.onnx_graphs.tensor_types import without_weights

Declared = Mapping[str, Mapping[str, Any]]  # name -> {shape, dtype} of the manifest
Size = int | str | None  # None is unknown


def settle_shapes(model: ModelProto, inputs: Declared, outputs: Declared, title: str) -> None:
    """Replace the shapes of outputs by inferred sizes, then names, then declared sizes.

    A fixed size whose axis is not inferred stays if all inputs are fixed, or nothing is known about
    the shape, as after a custom operator. Inner tensors lose theirs.
    Raises: StageError: an output has no shape anywhere.
    """
    stored = {tensor.name for tensor in model.graph.initializer}
    ports = [port for port in model.graph.input if port.name not in stored]
    for port in (*model.graph.input, *model.graph.output):
        for dim in port.type.tensor_type.shape.dim if _has_shape(port) else ():
            if dim.dim_value < 0:  # some exporters' unknown size
                dim.Clear()
    for port in ports:
        declared = (inputs.get(port.name) or {}).get("shape")
        if not _is_tensor(port) or declared is None:
            continue
        written = port_of(port)["shape"] or declared
        if len(written) == len(declared):  # else the signature is refused
            named = [d if isinstance(d, str) else None for d in declared]
            pairs = zip(written, named, strict=True)
            _set_shape(port, [name if size is None else size for size, name in pairs])
    sizes = [size for port in ports for size in port_of(port)["shape"] or (None,)]
    names = {size for size in sizes if isinstance(size, str)}
    is_fixed = all(isinstance(size, int) for size in sizes)
    # the types of others are inferred, and onnx takes a type without a shape for no elements
    nodes = (node for node in model.graph.node if node.domain not in STANDARD)
    custom = {name for node in nodes for name in node.output}
    values = [value for value in model.graph.value_info if value.name in custom]
    del model.graph.value_info[:]
    model.graph.value_info.extend(_without_shapes(values))
    inferred = _inferred_shapes(model)
    for port in filter(_is_tensor, model.graph.output):
        written, declared = port_of(port)["shape"], (outputs.get(port.name) or {}).get("shape")
        shapes, by_onnx = [], inferred.get(port.name)
        if by_onnx is not None:
            shapes.append([s if isinstance(s, int) or s in names else None for s in by_onnx])
        if written is not None:
            # an output without elements, perhaps of the example alone, would not be compared
            is_believed = (is_fixed or by_onnx is None) and (0 in sizes or 0 not in written)
            shapes.append([s if is_believed or isinstance(s, str) else None for s in written])
        if declared is not None:
            shapes.append(list(declared))
        if not shapes:
            raise StageError(
                f"the file {title} has no shape for {port.name}, and none can be inferred",
                f"declare it, with null for unknown sizes: outputs: {{{port.name}: {{shape:"
                " [batch, null]}}",
            )
        same_rank = [shape for shape in shapes if len(shape) == len(shapes[0])]
        axes = zip(*same_rank, strict=True)
        _set_shape(port, [next((size for size in s if size is not None), None) for s in axes])


def _is_tensor(port: ValueInfoProto) -> bool:
    return bool(port.type.HasField("tensor_type"))


def _has_shape(port: ValueInfoProto) -> bool:
    return _is_tensor(port) and bool(port.type.tensor_type.HasField("shape"))


def _set_shape(port: ValueInfoProto, shape: Sequence[Size]) -> None:
    kind = port.type.tensor_type.elem_type
    port.type.CopyFrom(helper.make_tensor_type_proto(kind, list(shape)))


def _inferred_shapes(model: ModelProto) -> dict[str, Sequence[Size] | None]:
    """Infer the shapes of all outputs from the inputs."""
    skeleton = without_weights(model)
    graph, outputs = skeleton.graph, [*_without_shapes(skeleton.graph.output)]
    del graph.output[:]
    graph.output.extend(outputs)
    with suppress(onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        graph = shape_inference.infer_shapes(skeleton, data_prop=True).graph
    return {port.name: port_of(port)["shape"] for port in graph.output}


def _without_shapes(values: Sequence[ValueInfoProto]) -> Iterator[ValueInfoProto]:
    """Yield copies that only have a type."""
    for value in values:
        copy = ValueInfoProto()
        copy.CopyFrom(value)
        if _is_tensor(copy):
            copy.type.tensor_type.ClearField("shape")
        yield copy
