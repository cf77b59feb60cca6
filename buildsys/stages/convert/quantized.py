"""Conversion of a graph to int8 or fp8: explicit quantizers.

ONNX Runtime rounds at every quantizer as the file says, so the result equals that of a device that
computes in int8 or fp8 and accumulates exactly.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from onnx import ModelProto

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import opsets
from buildsys.onnx_graphs.opset_changes import raise_opset
from buildsys.onnx_graphs.tensors import Case
from buildsys.stages.calibrate.ranges import load_ranges
from buildsys.stages.common.node_patterns import load_named_model
from buildsys.stages.convert.quantizers import (
    HEAVY,
    Selection,
    are_clipped,
    insert_quantizers,
    select_nodes,
    set_kernel_shapes,
)
from buildsys.stages.convert.stage import Converted
from buildsys.stages.search.result import REASON
from buildsys.workers.job import Job

Golden = Mapping[str, Case]
# the first opsets with scales per channel and with float8, and their IR versions
_OPSETS = {"int8": (13, 8), "fp8": (19, 9)}
_BEYOND = 1.5  # times the calibrated range


def convert(job: Job, in_fp32: Sequence[str], golden: Golden) -> Converted:
    """Insert quantizers, except at the nodes that a search keeps ``in_fp32``.

    Raises: StageError: no node can be quantized, or the tool fails.
    """
    precision, options = job.options["precision"], job.options["quantize"]
    original = load_named_model(job.inputs["model"])
    heavy = [node.name for node in original.graph.node if node.op_type in HEAVY]
    model, selection = insert(job, original, [*options["exclude"], *in_fp32])
    quantized = quantized_nodes(model)
    if not quantized:
        raise StageError(f"{options['tool']} quantized no node of the graph", "use tool: builtin")
    uncovered = list(_uncovered_inputs(job, golden))
    remedies = [*uncovered, f"precision: auto-{precision} keeps the fewest nodes in fp32"]
    if not options["per_channel"]:
        remedies.append("set quantize.per_channel: true")
    if are_clipped(precision, options["algorithm"]):
        remedies.append("calibration.algorithm: minmax clips nothing")
    reasons = {
        name: selection.skipped.get(name, "the tool skipped it")
        for name in dict.fromkeys((*heavy, *selection.chosen, *selection.skipped))
        if name not in quantized
    }
    figures = {
        "warnings": uncovered,
        "quantized": quantized,
        "kept_reasons": {**reasons, **dict.fromkeys(in_fp32, REASON)},
    }
    return Converted(model, figures, remedies)


def insert(job: Job, original: ModelProto, exclude: Sequence[str]) -> tuple[ModelProto, Selection]:
    """Insert quantizers, except at nodes that match ``exclude``; ``original`` may change.

    Raises: StageError: there is nothing to quantize, or the tool fails.
    """
    precision, options = job.options["precision"], {**job.options["quantize"], "exclude": exclude}
    ranges = load_ranges(job.inputs["ranges"])
    selection = select_nodes(original, ranges, options)
    job.progress(f"quantizing {len(selection.chosen)} nodes to {precision} with {options['tool']}")
    model, problem = raise_opset(original, *_OPSETS[precision])
    if problem:
        version = _OPSETS[precision][0]
        raise StageError(
            f"{precision} needs opset {version}, not {opsets(original)['ai.onnx']}: {problem}",
            f"set export.opset to {version} or higher",
        )
    set_kernel_shapes(model)
    if options["tool"] == "modelopt":
        from buildsys.stages.convert.modelopt import quantize_by_modelopt  # an extra

        return quantize_by_modelopt(job, model, selection), selection
    clipped = are_clipped(precision, options["algorithm"])
    limits = {name: span.limit if clipped else span.largest for name, span in ranges.items()}
    places = {"per_channel": options["per_channel"], "outputs": options["outputs"]}
    insert_quantizers(model, selection, limits, precision, **places)
    return model, selection


def quantized_nodes(model: ModelProto) -> list[str]:
    """List the main graph's nodes with a dequantized input, in order."""
    nodes = model.graph.node
    dequantized = {node.output[0] for node in nodes if node.op_type == "DequantizeLinear"}
    return [
        node.name
        for node in nodes
        if dequantized.intersection(node.input)
        and node.op_type not in ("QuantizeLinear", "DequantizeLinear")
    ]


def _uncovered_inputs(job: Job, golden: Golden) -> Iterator[str]:
    """Yield a remedy for each input with golden values far beyond the calibrated range."""
    ranges = load_ranges(job.inputs["ranges"])
    for name in ranges.keys() & next(iter(golden.values())).inputs.keys():
        calibrated = ranges[name].largest
        largest = max(
            float(np.abs(case.inputs[name].values()).max(initial=0.0)) for case in golden.values()
        )
        if largest > _BEYOND * calibrated:
            yield (
                f"the golden input {name} reaches {largest:.3g}, the calibration data only"
                f" {calibrated:.3g}: calibrate on similar data"
            )
