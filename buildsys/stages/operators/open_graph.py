"""Graphs with custom operators, opened in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import onnxruntime as ort
from onnx import ModelProto

from buildsys.backends.onnxruntime.kernels import schema_versions
from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import load_model, opsets
from buildsys.stages.operators.implementation import Implementation
from buildsys.stages.operators.nodes import nodes_of, operator_of, split_operator
from buildsys.stages.remedies.remedies import OnnxOperator, format_remedies, refusal_remedies


def open_graph(
    path: Path, implementation: Implementation, options: ort.SessionOptions, scratch: Path
) -> OrtGraph:
    """Load a graph into ONNX Runtime, adapted in ``scratch`` if necessary.

    Raises: StageError: ONNX Runtime refuses it, e.g. for an operator without an implementation.
    """
    with TemporaryDirectory(dir=scratch) as folder:
        file = implementation.graph(path, Path(folder))
        try:
            return OrtGraph(file, options, libraries=implementation.libraries)
        except StageError:
            refuse_unimplemented(load_model(file, external_data=False), implementation)
            raise


def refuse_unimplemented(model: ModelProto, implementation: Implementation) -> None:
    """Raise StageError if the graph has custom operators without an implementation."""
    implemented = {use.op for use in implementation.uses}
    implemented |= {operator_of(function) for function in model.functions}
    domains = {"ai.onnx", *(domain for domain, _ in schema_versions())}
    missing = [
        node
        for node in nodes_of(model)
        if node.domain not in domains and operator_of(node) not in implemented
    ]
    if not missing:
        return
    op = operator_of(missing[0])
    count = sum(operator_of(node) == op for node in missing)
    others = len({operator_of(node) for node in missing}) - 1
    more = f" and {others} more operator{'s' * (others > 1)}" if others else ""
    declared = {"ops"} if implementation.is_declared else set()
    operator, opset = OnnxOperator(*split_operator(op)), opsets(model).get("ai.onnx", 0)
    remedies = refusal_remedies(operator, "onnxruntime", opset, declared=declared)
    raise StageError(
        f"nothing implements {op}{more} for ONNX Runtime ({count} node{'s' * (count > 1)},"
        f" the first is {missing[0].name or missing[0].output[0]})",
        format_remedies([("", remedies)]),
    )
