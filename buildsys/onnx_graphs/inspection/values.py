"""Values of the constants of a graph: initializers and outputs of Constant nodes."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, SparseTensorProto, TensorProto, helper, numpy_helper

from buildsys.onnx_graphs.inspection.graph import CONSTANT
from buildsys.onnx_graphs.onnx_file import content_of, subgraphs
from buildsys.onnx_graphs.tensors import Array, tensor_of

_MOST_VALUES = 1000
_STATISTICS = ("min", "max", "mean", "std")


def describe_values(proto: ModelProto, pattern: str, data: Path) -> dict[str, Any]:
    """Describe the values of constants by name; ``data`` is the file of large ones, or its folder.

    Raises: StageError: the file of values is missing or truncated.
    """
    values: dict[str, Any] = {}
    for name, constant in _constants(proto.graph):
        if name not in values and (name == pattern or fnmatchcase(name, pattern)):
            values[name] = _summary(_array(constant, data))
    return values


def _constants(graph: GraphProto) -> Iterator[tuple[str, Any]]:
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for node in graph.node:
        if node.op_type == CONSTANT:
            value = helper.get_attribute_value(node.attribute[0])
            if not isinstance(value, SparseTensorProto):
                yield node.output[0], value
        for body in subgraphs(node):
            yield from _constants(body)


def _array(constant: Any, data: Path) -> Array:
    if isinstance(constant, TensorProto):
        if constant.data_location == TensorProto.EXTERNAL:
            stored = TensorProto(data_type=constant.data_type, dims=constant.dims)
            stored.raw_data = content_of(constant, data).tobytes()
            constant = stored
        constant = numpy_helper.to_array(constant)
    return tensor_of(constant).values()


def _summary(array: Array) -> dict[str, Any]:
    summary: dict[str, Any] = {"count": array.size}
    if array.size and array.dtype.kind in "fiu":
        finite = array[np.isfinite(array)]
        summary |= {"zeros": int((array == 0).sum()), "not_finite": array.size - finite.size}
        if finite.size:
            exact = finite.astype(np.float64)
            summary |= {name: float(getattr(exact, name)()) for name in _STATISTICS}
    return summary | {"first": [_plain(value) for value in array.reshape(-1)[:_MOST_VALUES]]}


def _plain(value: Any) -> Any:
    """Convert an element for JSON, which has no NaN, infinity and complex numbers."""
    plain = value.item()
    is_number = isinstance(plain, (bool, int)) or (isinstance(plain, float) and np.isfinite(plain))
    return plain if is_number else str(plain)
