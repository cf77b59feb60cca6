"""The convert stage for int8 and fp8: explicit quantizers.

ONNX Runtime rounds at every quantizer as the file says, so the result equals that of a device that
computes in int8 or fp8 and accumulates exactly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from onnx import ModelProto

from buildsys.errors import CheckFailed, StageError
from buildsys.onnx_graphs.onnx_file import (
    check_file,
    dtype_name,
    file_bytes,
    load_model,
    opsets,
    save_model,
)
from buildsys.onnx_graphs.tensors import Case, load_case
from buildsys.report.formatting import error, percent
from buildsys.stages.common.golden_check import (
    OutputCheck,
    and_more,
    check_outputs,
    judge_agreement,
    summarize_checks,
)
from buildsys.stages.common.kept_nodes import REASON, kept_nodes
from buildsys.stages.common.node_patterns import named_nodes
from buildsys.stages.convert.cast_graph import raise_opset
from buildsys.stages.operators.implementation import implementation_of
from buildsys.stages.operators.open_graph import open_graph
from buildsys.stages.quantize.batches import Batch, load_batches
from buildsys.stages.quantize.insert_qdq import (
    GRIDS,
    insert_by_onnxruntime,
    insert_quantizers,
    limits_of,
    set_kernel_shapes,
)
from buildsys.stages.quantize.node_selection import HEAVY, Selection, select_nodes
from buildsys.stages.quantize.ranges import IntermediateTensors, load_ranges
from buildsys.workers.job import Job, StageResult

_OPSETS = {
    "int8": (13, 8),
    "fp8": (19, 9),
}  # the first with scales per channel, with float8; and their IR versions
_SHOWN_LOSSES = 3
_KEPT_LOSSES = 20
_BEYOND = 1.5  # times the calibrated range


def run(job: Job) -> StageResult:
    """Write the graph with explicit quantizers; inputs and outputs keep their types.

    A failure states output, case, index, both values and the layers of largest error. The tensors
    of each failed case are saved as ``failed/PRECISION-CASE.npz`` next to the result.
    Raises: StageError: no node can be quantized, or the tool fails. CheckFailed: the result is
    invalid.
    """
    searched = kept_nodes(job).names
    if searched:
        section = job.options["quantize"]
        options = {**section, "exclude": [*section["exclude"], *searched]}
        job = replace(job, options={**job.options, "quantize": options})
    figures = _convert(job)
    figures["kept_reasons"] |= dict.fromkeys(searched, REASON)
    golden = {case: load_case(job.inputs[f"case.{case}"]) for case in job.options["cases"]}
    failed, numbers = summarize_checks(job, _check(job, golden, job.outputs["model"]), golden)
    figures |= numbers
    uncovered = list(_uncovered_inputs(job, golden))
    figures["warnings"] += uncovered
    if not failed:
        return StageResult(figures=figures)
    # the smallest failed case, as all its tensors are compared
    size = {
        name: sum(t.array.nbytes for t in case.inputs.values()) for name, case in golden.items()
    }
    worst = min(failed, key=lambda check: size[check.case])
    case = golden[worst.case]
    losses = _losses(job, case, figures["quantized"])
    figures["largest_losses"] = [loss.figures() for loss in losses[:_KEPT_LOSSES]]
    algorithm, tool = job.options["quantize"]["algorithm"], job.options["quantize"]["tool"]
    is_cut = algorithm == "percentile" or (
        (algorithm, job.options["precision"]) == ("entropy", "int8")
    )
    uncut = _uncut(job, worst, golden) if is_cut and tool != "modelopt" else None
    figures["with_minmax"] = None if uncut is None else uncut.comparison.figures()
    hint = "; ".join([*uncovered, *_hints(job, worst, uncut, losses)])
    return StageResult("failed", failed[0].sentence() + and_more(failed), hint, figures)


def _uncut(job: Job, worst: OutputCheck, golden: Mapping[str, Case]) -> OutputCheck:
    """Return the check of the same output with unclipped ranges."""
    job.progress("trying whole ranges")
    original = load_model(job.inputs["model"])
    named_nodes(original)
    with TemporaryDirectory(dir=job.outputs["model"].parent) as scratch:
        model, _ = _quantized(job, original, Path(scratch), algorithm="minmax")
        path = Path(scratch) / "model.onnx"
        save_model(model, path)
        checks, _ = judge_agreement(job, _check(job, golden, path), golden)
    return max(
        (check for check in checks if (check.case, check.output) == (worst.case, worst.output)),
        key=lambda check: not check.comparison.passed,
    )


def _convert(job: Job) -> dict[str, Any]:
    precision, source, target = job.options["precision"], job.inputs["model"], job.outputs["model"]
    original = load_model(source)
    named_nodes(original)
    with TemporaryDirectory(dir=target.parent) as scratch:
        model, selection = _quantized(job, original, Path(scratch))
    save_model(model, target)
    try:
        check_file(target, f"the graph quantized to {precision}")
    except StageError as error:
        raise CheckFailed(error.problem, error.hint) from error
    written = load_model(target, external_data=False)
    quantized = quantized_nodes(written)
    heavy = [node.name for node in original.graph.node if node.op_type in HEAVY]
    if not quantized:
        raise StageError(
            f"{job.options['quantize']['tool']} quantized no node of the graph", "use tool: builtin"
        )
    options = job.options["quantize"]
    counts = Counter(node.op_type for node in written.graph.node)
    stored = Counter(dtype_name(tensor.data_type) for tensor in written.graph.initializer)
    scales = "output channel of a weight" if options["per_channel"] else "tensor"
    warnings = []
    if precision == "fp8" and options["algorithm"] == "entropy":
        warnings = ["ranges are by minmax: the entropy method assumes the levels of int8"]
    return {
        "precision": precision,
        "tool": options["tool"],
        "method": f"explicit quantizers by {options['tool']}, one scale per {scales}; "
        "inputs and outputs keep their types",
        "opset": opsets(written)["ai.onnx"],
        "algorithm": options["algorithm"],
        "initializers": dict(sorted(stored.items())),
        "casts": counts["Cast"],
        "quantizers": counts["QuantizeLinear"],
        "dequantizers": counts["DequantizeLinear"],
        "warnings": warnings,
        "quantized": quantized,
        "kept_fp32": [name for name in heavy if name not in quantized],
        "kept_reasons": {
            name: selection.skipped.get(name, "the tool skipped it")
            for name in dict.fromkeys((*heavy, *selection.chosen, *selection.skipped))
            if name not in quantized
        },
        "bytes_before": file_bytes(source),
        "bytes_after": file_bytes(target),
    }


def quantized_graph(
    job: Job, original: ModelProto, scratch: Path, exclude: Sequence[str]
) -> ModelProto:
    """Return the graph with quantizers, except at nodes that match ``exclude``.

    Raises: StageError: there is nothing to quantize, or the tool fails.
    """
    options = {**job.options["quantize"], "exclude": exclude}
    changed = replace(job, options={**job.options, "quantize": options})
    return _quantized(changed, original, scratch)[0]


def _quantized(
    job: Job, original: ModelProto, scratch: Path, algorithm: str | None = None
) -> tuple[ModelProto, Selection]:
    """Return the graph with quantizers, and the selected nodes."""
    precision, options = job.options["precision"], job.options["quantize"]
    ranges = load_ranges(job.inputs["ranges"])
    selection = select_nodes(original, ranges, options)
    job.progress(f"quantizing {len(selection.chosen)} nodes to {precision} with {options['tool']}")
    model, why = raise_opset(original, *_OPSETS[precision])
    if why:
        version = _OPSETS[precision][0]
        raise StageError(
            f"{precision} needs opset {version}, not {opsets(original)['ai.onnx']}: {why}",
            f"set export.opset to {version} or higher",
        )
    set_kernel_shapes(model)
    limits = limits_of(ranges, precision, algorithm or options["algorithm"])
    wanted = {"per_channel": options["per_channel"], "outputs": options["outputs"]}
    if options["tool"] == "modelopt":
        return _by_modelopt(job, model, selection, scratch), selection
    if options["tool"] == "onnxruntime":
        return insert_by_onnxruntime(model, selection, limits, **wanted), selection
    insert_quantizers(model, selection, limits, GRIDS[precision], **wanted)
    return model, selection


def _by_modelopt(job: Job, model: ModelProto, selection: Selection, scratch: Path) -> ModelProto:
    from buildsys.stages.quantize.modelopt import quantize_by_modelopt  # an extra

    source = scratch / "model.onnx"
    save_model(model, source)
    dtypes = {
        value.name: dtype_name(value.type.tensor_type.elem_type) for value in model.graph.input
    }
    batches = load_batches(job.inputs["batches"], dtypes)
    operators = sorted({node.op_type for node in model.graph.node if node.name in selection.chosen})
    options = {**job.options["quantize"], "operators": operators}
    return quantize_by_modelopt(
        source, job.options["precision"], batches, options, list(selection.skipped), scratch
    )


def quantized_nodes(model: ModelProto) -> list[str]:
    """Return the main graph's nodes with a dequantized input, in order."""
    pairs = ("QuantizeLinear", "DequantizeLinear")
    given = {
        name
        for node in model.graph.node
        if node.op_type == "DequantizeLinear"
        for name in node.output
    }
    nodes = (node for node in model.graph.node if node.op_type not in pairs)
    return [node.name for node in nodes if any(name in given for name in node.input)]


def _check(job: Job, golden: Mapping[str, Case], quantized: Path) -> list[OutputCheck]:
    precision = job.options["precision"]
    job.progress(f"running the {precision} graph in {len(golden)} cases")
    model = load_model(quantized)
    named_nodes(model)
    return check_outputs(job, precision, open_graph(job, model), golden)


def _losses(job: Job, case: Case, quantized: list[str]) -> list[Loss]:
    job.progress("comparing the tensors of both graphs")
    implementation, scratch = implementation_of(job), job.outputs["model"].parent
    graphs = []
    for path in (job.inputs["model"], job.outputs["model"]):
        model = load_model(path)
        named_nodes(model)
        implementation.apply(model)
        graphs.append(IntermediateTensors(model, scratch, job.threads, implementation.libraries))
    return largest_losses(graphs[0], graphs[1], quantized, dict(case.inputs))


def _uncovered_inputs(job: Job, golden: Mapping[str, Case]) -> Iterator[str]:
    """Yield a remedy for each input with golden values far beyond the calibrated range."""
    ranges = load_ranges(job.inputs["ranges"])
    for name in ranges.keys() & next(iter(golden.values())).inputs.keys():
        largest = max(
            float(np.abs(case.inputs[name].values()).max(initial=0.0)) for case in golden.values()
        )
        if largest > _BEYOND * ranges[name].largest:
            yield (
                f"the golden input {name} reaches {largest:.3g}, the calibration data only"
                f" {ranges[name].largest:.3g}: calibrate on similar data"
            )


def _hints(
    job: Job, worst: OutputCheck, uncut: OutputCheck | None, losses: list[Loss]
) -> Iterator[str]:
    """Yield the next steps, with the layers of largest error."""
    options, precision = job.options["quantize"], job.options["precision"]
    whole = None if uncut is None else uncut.comparison
    if whole and whole.cosine is not None and whole.relative < worst.comparison.relative:
        result = "passes" if whole.passed else "is closer"
        yield (
            f"calibration.algorithm: minmax, which clips nothing, {result} (relative error"
            f" {error(whole.relative)}, cosine {whole.cosine:.6g} in case {worst.case})"
        )
    if not options["per_channel"]:
        yield "set quantize.per_channel: true"
    added = [loss for loss in losses if loss.added > 0][:_SHOWN_LOSSES]
    if added:
        layers = ", ".join(
            f"{loss.node} ({loss.operator}, {percent(loss.before)} → {percent(loss.error)} error)"
            for loss in added
        )
        names = ", ".join(loss.node for loss in added)
        yield f"the largest errors arise at {layers}: quantize: {{exclude: [{names}]}}"
    yield f"precision: auto-{precision} keeps the fewest nodes in fp32"
    yield f"if this error is acceptable, raise verify.{precision}"


@dataclass(frozen=True)
class Loss:
    """Error of one quantized node's result, and of its inputs.

    Errors are the norm of the difference over the norm of the float32 tensor.
    """

    node: str
    operator: str
    error: float
    before: float

    @property
    def added(self) -> float:
        """The error added by this node; infinite where an overflow begins."""
        return self.error - self.before if math.isfinite(self.before) else 0.0

    def figures(self) -> dict[str, Any]:
        """Return the entry of a result file."""
        errors = {"error": self.error, "error_before": self.before}
        return {"node": self.node, "operator": self.operator, **errors}


def largest_losses(
    exact: IntermediateTensors,
    quantized: IntermediateTensors,
    quantized_nodes: Collection[str],
    batch: Batch,
) -> list[Loss]:
    """Return the losses of quantized nodes, largest first.

    Tensors without a counterpart in the other graph are left out.
    """
    errors: dict[str, float] = {}
    for name, expected, actual in exact.compared(quantized, batch):
        if actual.shape != expected.shape:
            continue
        if not np.isfinite(actual).all():
            errors[name] = math.inf if np.isfinite(expected).all() else 0.0
            continue
        scale = float(np.abs(expected).max(initial=0.0))
        if scale == 0.0:
            errors[name] = 0.0 if not actual.any() else float("inf")
        else:
            a, b = actual.astype(np.float64) / scale, expected.astype(np.float64) / scale
            errors[name] = float(np.linalg.norm(a - b) / np.linalg.norm(b))
    losses = []
    for node in exact.nodes:
        if node.name in quantized_nodes and node.output[0] in errors:
            before = max((errors.get(name, 0.0) for name in node.input), default=0.0)
            losses.append(Loss(node.name, node.op_type, errors[node.output[0]], before))
    return sorted(losses, key=lambda loss: -loss.added)
