"""Versions of ONNX files that the installed ONNX Runtime reads and computes.

It does not list them, so graphs of one node are tried. A library onnx newer than ONNX Runtime
writes files that it refuses, although most of them use nothing new; its kernels often lag behind
the opset that it reads, and those for operators of opsets below 7 are missing.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import onnx
from onnx import ModelProto, TensorProto, helper

from buildsys.backends.onnxruntime.graphs import Operator, kernel_types
from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import STANDARD, all_nodes, opsets
from buildsys.onnx_graphs.opset_changes import convert_opset
from buildsys.onnx_graphs.opset_six import raise_to_seven

_IR_VERSION, _OPSET = 8, 17  # read by every supported ONNX Runtime
_OLDEST_IR_VERSION = 4  # before it, parameters are inputs as well, which tools do not expect
_OLDEST_KERNELS = 7  # most operators have no kernels for older opsets


class Versions(NamedTuple):
    """The versions of a file."""

    ir: int
    opset: int


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


def versions_of(model: ModelProto) -> Versions:
    """Read the versions of a file."""
    return Versions(model.ir_version, opsets(model).get("ai.onnx", 0))


def readable_versions(model: ModelProto) -> Versions:
    """Choose the nearest versions that ONNX Runtime reads and computes."""
    ir, opset = versions_of(model)
    ir = _IR_VERSION if ir < _OLDEST_IR_VERSION else min(ir, newest_ir_version())
    if 0 < opset < _OLDEST_KERNELS:
        return Versions(ir, _OPSET)
    nearest = min(opset, newest_opset())
    computed = (v for v in range(nearest, _OPSET - 1, -1) if _has_kernels(model, v))
    return Versions(ir, next(computed, nearest))


def fit_versions(model: ModelProto, title: str) -> tuple[ModelProto, list[str]]:
    """Return a model readable by ONNX Runtime, and the changes.

    Raises: StageError: it cannot be converted.
    """
    versions, fitting = versions_of(model), readable_versions(model)
    if fitting.opset != versions.opset:
        model, problem = _converted(model, versions.opset, fitting.opset)
        if problem:
            upgrade = ", or pip install -U onnxruntime" if fitting.opset < versions.opset else ""
            raise StageError(
                f"{title} has opset {versions.opset}, which the installed ONNX Runtime does not"
                f" read or compute, and it cannot be converted to {fitting.opset}: {problem}",
                f"save it with opset {fitting.opset}{upgrade}",
            )
    if versions.ir < _OLDEST_IR_VERSION:
        stored = {tensor.name for tensor in model.graph.initializer}
        inputs = [port for port in model.graph.input if port.name not in stored]
        del model.graph.input[:]
        model.graph.input.extend(inputs)
    model.ir_version = fitting.ir
    changes = [
        f"{title}: {what} {before} is {'lowered' if after < before else 'raised'} to {after},"
        " which the installed ONNX Runtime reads and computes"
        for what, before, after in zip(("IR version", "opset"), versions, fitting, strict=True)
        if before != after
    ]
    return model, changes


def _converted(model: ModelProto, before: int, after: int) -> tuple[ModelProto, str]:
    """Convert a model; give the reason if it stays."""
    if before >= _OLDEST_KERNELS:
        return convert_opset(model, after)
    model, problem = convert_opset(model, 6)
    if problem:
        return model, problem
    model = ModelProto.FromString(model.SerializeToString())  # the file stays as it was
    try:
        raise_to_seven(model)
    except StageError as error:
        return model, error.problem
    return convert_opset(model, after)


def _has_kernels(model: ModelProto, opset: int) -> bool:
    """Check for kernels of all operators as they are in an opset; functions need none."""
    names = {node.op_type for node in all_nodes(model.graph) if node.domain in STANDARD}
    for name in names - {"Constant"}:  # never computed
        try:
            schema: Any = onnx.defs.get_schema(name, opset, "")
        except onnx.defs.SchemaError:
            return False
        is_function = schema.has_function or schema.has_context_dependent_function
        if not is_function and not kernel_types(Operator("", name), schema.since_version):
            return False
    return True


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
