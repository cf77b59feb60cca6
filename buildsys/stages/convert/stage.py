"""The convert stage: the simplified graph in the precision of an engine.

The result is typed ONNX for strongly typed builders. It runs here on the CPU with the rounding and
range of the precision, so a wrong conversion or an overflow is found without a GPU, and no engine
is built from it.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from onnx import ModelProto, TensorProto

from buildsys.errors import CheckFailed
from buildsys.onnx_graphs.onnx_file import (
    check_file,
    dtype_name,
    file_bytes,
    load_model,
    opsets,
    save_model,
)
from buildsys.onnx_graphs.quantizers import refuse_quantized
from buildsys.onnx_graphs.tensor_comparison import DIFFER
from buildsys.onnx_graphs.tensor_types import DTYPES, emulate
from buildsys.onnx_graphs.tensors import Case
from buildsys.report.formatting import percent
from buildsys.stages.common.difference_hints import integer_hint
from buildsys.stages.common.golden_check import (
    and_more,
    golden_limits,
    load_golden,
    summarize_checks,
)
from buildsys.stages.common.graph_runs import GraphCheck
from buildsys.stages.common.intermediate_tensors import largest_losses
from buildsys.stages.common.node_patterns import load_named_model
from buildsys.stages.operators.implementation import implementation_of
from buildsys.stages.search.result import read_kept_nodes
from buildsys.workers.job import Job, StageResult

_FOR_ONNX_RUNTIME = {"optimize", "quantize_weights"}
_MOST_LOSSES = _MOST_REMEDIES = 3
Figures = dict[str, Any]


class Converted(NamedTuple):
    """A graph in another precision, its figures, and remedies if it is wrong."""

    model: ModelProto
    figures: dict[str, Any]
    remedies: list[str]


def run(job: Job) -> StageResult:
    """Write the graph in ``precision``; inputs and outputs keep their types.

    Every case runs with the rounding of the precision. A failure states output, case, index, both
    values and remedies. The tensors of each failed case are saved as ``failed/PRECISION-CASE.npz``
    (keys ``in.``, ``expected.``, ``actual.``) next to the result.

    Raises: StageError: nothing can be converted, or a tool fails. CheckFailed: the result is
    invalid.
    """
    if "lowered" in job.options:
        result: StageResult = import_module("buildsys.stages.convert.lowered").run(job)
        return result
    precision, in_fp32 = job.options["precision"], read_kept_nodes(job.inputs.get("nodes"))
    if precision != "fp32":  # which is fused only
        refuse_quantized(load_model(job.inputs["model"], external_data=False), precision)
    if in_fp32.all:
        # with any node in the precision the graph exceeds the limits
        warning = f"all nodes stay in fp32: no choice of nodes in {precision} is within the limits"
        model = load_model(job.inputs["model"])
        return StageResult(figures={**_write(job, model), "warnings": [warning]})
    converter = import_module(_converter(job.options))
    golden = load_golden(job)
    model, figures, remedies = converter.convert(job, in_fp32.names, golden)
    figures = {"warnings": [], **figures, **_write(job, model)}
    del model  # it may be large
    if missing := implementation_of(job).missing_operators(job.outputs["model"]):
        warning = f"nothing implements {' and '.join(missing)} for ONNX Runtime"
        figures["warnings"].append(f"{warning}: the numbers of the graph are not checked")
        return StageResult(figures=figures)
    job.progress(f"running the {job.variant} graph in {len(golden)} cases")
    written = load_model(job.outputs["model"])  # engines are built from it
    if precision in DTYPES:
        written = emulate(written, precision)
    checks = GraphCheck(job, written).compare(golden)
    failed, numbers = summarize_checks(job, precision, checks, golden_limits(job, golden))
    figures |= numbers
    if not failed:
        return StageResult(figures=figures)
    cause, changes = "", list[str]()
    if not job.options.keys() & _FOR_ONNX_RUNTIME:
        job.progress("comparing the tensors of both graphs")
        cause, text, changes = _explain(job, golden[failed[0].case], figures)
        remedies += [text] if text else []
    if DIFFER in failed[0].comparison.problem:
        remedies.insert(0, integer_hint(failed[0].output, checks[failed[0].case].compared))
    if not cause and len(remedies) < _MOST_REMEDIES:
        remedies.append(f"if this error is acceptable, raise verify.{precision}")
    reason = f"{cause}{failed[0].sentence()}{and_more(failed)}"
    return StageResult("failed", reason, "; ".join(remedies), figures, changes)


def _explain(job: Job, case: Case, figures: Figures) -> tuple[str, str, list[str]]:
    """Find where an overflow begins, or the nodes of largest error; name remedies."""
    precision, is_typed = job.options["precision"], job.options["precision"] in DTYPES
    exact, other = (load_named_model(paths["model"]) for paths in (job.inputs, job.outputs))
    nodes = figures.get("quantized", [node.name for node in exact.graph.node])
    losses = largest_losses(
        job, exact, emulate(other, precision) if is_typed else other, nodes, case
    )
    added = [loss for loss in losses if loss.added > 0][:_MOST_LOSSES]
    if is_typed and added and math.isinf(added[0].added):
        where = f"{added[0].result} is not finite in {precision}"
        remedy = "bf16 has the range of float32" if precision == "fp16" else ""
        return f"the {precision} graph overflows: {where}, and ", remedy, []
    if not added:
        return "", "", []
    first = f"{percent(added[0].before)} → {percent(added[0].error)} error"
    section, options = "convert", job.options
    if not is_typed:
        section, options = "quantize", job.options["quantize"]
    names = [*options.get("exclude", ()), *(loss.result.node for loss in added)]
    change = f"{section}: {{exclude: {json.dumps(names)}}}"
    return "", f"the largest error arises at {added[0].result.node} ({first})", [change]


def _converter(options: Mapping[str, Any]) -> str:
    """Choose a module by name, so that only its targets have its code in their keys."""
    if "quantize" in options:
        return "buildsys.stages.convert.quantized"
    if options.keys() & _FOR_ONNX_RUNTIME:
        return "buildsys.stages.convert.weights_only"
    if options.get("tool") == "autocast":
        return "buildsys.stages.convert.modelopt"
    return "buildsys.stages.convert.typed"


def _write(job: Job, model: ModelProto) -> Figures:
    """Save the graph, check the file and describe it."""
    source, target, precision = job.inputs["model"], job.outputs["model"], job.options["precision"]
    stored = Counter(
        dtype_name(tensor.data_type)
        for tensor in model.graph.initializer
        if tensor.data_type != TensorProto.UNDEFINED
    )
    opset = opsets(model)["ai.onnx"]
    save_model(model, target)
    check_file(target, f"the graph converted to {precision}", CheckFailed)
    return {
        "precision": precision,
        "opset": opset,
        "initializers": dict(sorted(stored.items())),
        "bytes_before": file_bytes(source),
        "bytes_after": file_bytes(target),
    }
