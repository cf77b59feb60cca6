"""The newest versions of ONNX files readable by the installed ONNX Runtime.

It does not list them, so graphs of one node are tried. A library onnx newer than ONNX Runtime
writes files that it refuses, although most of them use nothing new.
"""

from __future__ import annotations

from functools import lru_cache

import onnx
from onnx import ModelProto, TensorProto, helper, version_converter

from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import first_line, opsets

_IR_VERSION, _OPSET = 8, 17  # read by every supported ONNX Runtime


@lru_cache(maxsize=1)
def newest_ir_version() -> int:
    """Return the newest IR version."""
    versions = range(onnx.IR_VERSION, _IR_VERSION, -1)
    return next((v for v in versions if _is_read(v, _OPSET)), _IR_VERSION)


@lru_cache(maxsize=1)
def newest_opset() -> int:
    """Return the newest opset."""
    versions = range(onnx.defs.onnx_opset_version(), _OPSET, -1)
    return next((v for v in versions if _is_read(newest_ir_version(), v)), _OPSET)


def fit_versions(model: ModelProto, title: str) -> tuple[ModelProto, list[str]]:
    """Return a model readable by ONNX Runtime, and the changes."""
    changes = []
    opset = opsets(model).get("ai.onnx", 0)
    if model.ir_version > newest_ir_version():
        changes.append(f"IR version {model.ir_version} is lowered to {newest_ir_version()}")
        model.ir_version = newest_ir_version()
    if opset > newest_opset():
        try:
            if len(model.functions) > 0:
                raise version_converter.ConvertError("it has local functions")
            model = version_converter.convert_version(model, newest_opset())
        except (version_converter.ConvertError, RuntimeError, ValueError) as error:
            raise StageError(
                f"{title} has opset {opset}, the installed ONNX Runtime reads up to"
                f" {newest_opset()}, and it cannot be converted: {first_line(error)}",
                f"save it with opset {newest_opset()}, or pip install -U onnxruntime",
            ) from error
        model.ir_version = min(model.ir_version, newest_ir_version())
        changes.append(f"opset {opset} is lowered to {newest_opset()}")
    newest = "the newest that the installed ONNX Runtime reads"
    return model, [f"{title}: {change}, {newest}" for change in changes]


def _is_read(ir_version: int, opset: int) -> bool:
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "probe", [port], [result])
    model = helper.make_model(
        graph, ir_version=ir_version, opset_imports=[helper.make_opsetid("", opset)]
    )
    try:
        OrtGraph(model.SerializeToString())
    except StageError:
        return False
    return True
