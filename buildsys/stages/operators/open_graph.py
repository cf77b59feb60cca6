"""Graphs with custom operators, opened in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from onnx import ModelProto

from buildsys.backends.onnxruntime.graphs import schema_versions
from buildsys.backends.onnxruntime.session import OrtGraph, session_options
from buildsys.errors import StageError
from buildsys.onnx_graphs.emulation import emulate
from buildsys.onnx_graphs.onnx_file import load_model, opsets, save_model
from buildsys.onnx_graphs.tensor_types import float_types
from buildsys.stages.common.remedies import OnnxOperator, format_remedies, refusal_remedies
from buildsys.stages.operators.implementation import Implementation, implementation_of
from buildsys.stages.operators.local_functions import nodes_of, operator_of, split_operator
from buildsys.workers.job import Job


def open_graph(job: Job, graph: Path | ModelProto) -> OrtGraph:
    """Load a graph with the job's custom operators; a model may change.

    ONNX Runtime's optimizations are off, so each node is computed as the file says. A fusion could
    hide differences that other runtimes show, and a faulty one would be blamed on the graph; the
    optimized graph is checked when an ONNX Runtime engine is verified. A bfloat16 graph without
    kernels is emulated in float32, with every result rounded.

    Raises: StageError: ONNX Runtime refuses it, e.g. for an operator without an implementation.
    """
    implementation = implementation_of(job)
    options = session_options(optimization="disable", intra_op_threads=job.threads, few_runs=True)
    with TemporaryDirectory(dir=job.outputs["result"].parent) as folder:
        if isinstance(graph, Path):
            file = implementation.graph(graph, Path(folder))
        else:  # by path: a graph in memory is limited to 2 GiB
            implementation.apply(graph)
            file = Path(folder) / "model.onnx"
            save_model(graph, file)
        try:
            return OrtGraph(file, options, libraries=implementation.libraries)
        except StageError:
            model = load_model(file, external_data=False)
            _refuse_unimplemented(model, implementation)
            if "bfloat16" not in float_types(model):
                raise
        # ONNX Runtime has few bfloat16 kernels for the CPU
        emulated = Path(folder) / "emulated.onnx"
        save_model(emulate(load_model(file), "bf16"), emulated)
        return OrtGraph(emulated, options, libraries=implementation.libraries)


def _refuse_unimplemented(model: ModelProto, implementation: Implementation) -> None:
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
    operator, opset = OnnxOperator(*split_operator(op)), opsets(model).get("ai.onnx", 0)
    remedies = refusal_remedies(operator, "onnxruntime", opset)
    raise StageError(
        f"nothing implements {op}{more} for ONNX Runtime ({count} node{'s' * (count > 1)},"
        f" the first is {missing[0].name or missing[0].output[0]})",
        format_remedies([("", remedies)]),
    )
