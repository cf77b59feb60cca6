"""Run a graph in ONNX Runtime with its custom operators implemented."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import onnxruntime as ort
from onnx import ModelProto

from buildsys.backends.onnxruntime.graph_facts import known_operators
from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import load_model, opsets
from buildsys.stages.operators.implementation import Implementation
from buildsys.stages.operators.nodes import nodes_of, operator_of, split_operator
from buildsys.stages.remedies.remedies import OnnxOperator, format_remedies, refusal_remedies


def open_graph(
    path: Path, implementation: Implementation, options: ort.SessionOptions, scratch: Path
) -> OrtGraph:
    """Load the graph of ``path``; a changed copy is kept in a folder of its own in ``scratch`` while it is loaded.

    Raises: StageError: ONNX Runtime refuses it; an operator that nothing implements is named with what to add.
    """
    with TemporaryDirectory(dir=scratch) as folder:
        file = implementation.graph(path, Path(folder))
        try:
            return OrtGraph(file, options, libraries=implementation.libraries)
        except StageError:
            refuse_unimplemented(load_model(file, external_data=False), implementation)
            raise


def refuse_unimplemented(model: ModelProto, implementation: Implementation) -> None:
    """Raise StageError where a graph has operators of no domain of ONNX Runtime's that nothing implements."""
    given = {use.op for use in implementation.uses} | {
        operator_of(function) for function in model.functions
    }
    domains = {domain for domain, _ in known_operators()}
    found = [node for node in nodes_of(model) if node.domain not in ("ai.onnx", *domains)]
    lacking = [node for node in found if operator_of(node) not in given]
    if not lacking:
        return
    op = operator_of(lacking[0])
    count = sum(operator_of(node) == op for node in lacking)
    others = len({operator_of(node) for node in lacking}) - 1
    more = f" and {others} more operator{'s' * (others > 1)}" if others else ""
    declared = {"ops"} if implementation.is_declared else set()
    remedies = refusal_remedies(
        OnnxOperator(*split_operator(op)),
        "onnxruntime",
        opsets(model).get("ai.onnx", 0),
        declared=declared,
    )
    raise StageError(
        f"nothing implements {op}{more} for ONNX Runtime ({count} node{'s' * (count > 1)}, the first is"
        f" {lacking[0].name or lacking[0].output[0]})",
        format_remedies([("", remedies)]),
    )
