"""Reading of ONNX files to build engines, also in toolchains.

The skeleton of a file is its graph without the contents of its initializers: networks with equal
skeletons differ in their weights only.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.tensors import Array

if TYPE_CHECKING:
    from onnx import ModelProto

_DTYPES = {1: "float32", 10: "float16"}  # TensorProto's types that a network computes with
_NUMBERS = {  # attributes of a Constant
    "value_int": np.int64, "value_ints": np.int64, "value_float": np.float32,
    "value_floats": np.float32,
}  # fmt: skip


def require_onnx() -> None:
    """Check that this interpreter has onnx, which only running an engine does not need.

    Raises: Unavailable: it has not.
    """
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        problem = "engines are built with onnx, which is not installed in this interpreter"
        raise Unavailable(problem, f"{sys.executable} -m pip install onnx") from error


def read_graph(file: Path) -> ModelProto:
    """Read an ONNX file without its external data.

    Raises: StageError: it is not ONNX. Unavailable: this interpreter has no onnx.
    """
    require_onnx()
    from buildsys.onnx_graphs.onnx_file import load_model

    return load_model(file, external_data=False)


@dataclass(frozen=True)
class Weight:
    """The contents of an initializer."""

    dtype: str  # "" if it is neither float32 nor float16
    content: Array  # as bytes

    @property
    def digest(self) -> str:
        """The digest of the contents."""
        return hashlib.sha256(self.content.data).hexdigest()[:32]

    def array(self) -> Array:
        """Return the contents as a flat array."""
        return self.content.view(self.dtype or np.uint8)


@dataclass(frozen=True)
class WeightFile:
    """The initializers of an ONNX file by name, and the digest of everything else."""

    skeleton: str
    weights: Mapping[str, Weight]


def read_weights(onnx: Path) -> WeightFile:
    """Read all initializers; those in external data stay in the file until they are used.

    Contents in a typed field (``float_data``) are no weights: they belong to the skeleton.
    Raises: StageError: the file is not ONNX, or its external data is missing.
    """
    model, weights = read_graph(onnx), {}
    from buildsys.onnx_graphs.onnx_file import content_of

    try:
        for tensor in model.graph.initializer:
            if tensor.HasField("raw_data") or tensor.external_data:
                dtype = _DTYPES.get(tensor.data_type, "")
                weights[tensor.name] = Weight(dtype, content_of(tensor, onnx.parent))
            if tensor.HasField("raw_data"):
                tensor.raw_data = b""
    except (OSError, ValueError) as error:
        text = f"the weights of {onnx.name} cannot be read: {error}"
        raise StageError(text, "build the graph again") from error
    skeleton = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
    return WeightFile(skeleton, weights)


def inline_all(model: ModelProto) -> ModelProto:
    """Inline all local functions of a model, converted to its opset."""
    from onnx.inliner import inline_local_functions

    inlined: ModelProto = inline_local_functions(model, convert_version=True)
    return inlined


def inline_functions(source: Path, copy: Path) -> None:
    """Write ``source`` with its functions inlined to ``copy``; external weights stay outside.

    Functions for any type often have CastLike, which parsers without functions do not know either,
    and numbers as constants, of which TensorRT 8.6 reads integers as 0.
    """
    import onnx
    from onnx import helper, numpy_helper

    model = inline_all(onnx.load(str(source), load_external_data=False))
    graph = onnx.shape_inference.infer_shapes(model).graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        types[value.name] = value.type.tensor_type.elem_type
    for node in model.graph.node:
        if node.op_type == "CastLike" and not node.domain and types.get(node.input[1]):
            node.op_type = "Cast"
            node.attribute.append(helper.make_attribute("to", types[node.input.pop()]))
        elif node.op_type == "Constant" and not node.domain:
            (attribute,) = node.attribute
            if dtype := _NUMBERS.get(attribute.name):
                values = np.array(helper.get_attribute_value(attribute), dtype)
                tensor = numpy_helper.from_array(values)
                attribute.CopyFrom(helper.make_attribute("value", tensor))
    onnx.save(model, str(copy))
