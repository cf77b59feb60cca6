"""The calibrate stage: the value range of every tensor on calibration batches."""

from __future__ import annotations

from collections.abc import Iterator

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import load_model
from buildsys.stages.calibrate.batches import (
    Batch,
    draw_batches,
    load_batches,
    save_batches,
)
from buildsys.stages.calibrate.ranges import (
    Ranges,
    measure,
    save_ranges,
)
from buildsys.stages.common.intermediate_tensors import IntermediateTensors
from buildsys.stages.common.node_patterns import matching_pattern, named_nodes, tensor_origin
from buildsys.stages.convert.quantizers import HEAVY
from buildsys.workers.job import Job, StageResult


def run(job: Job) -> StageResult:
    """Write ``batches`` (arrays ``INDEX/INPUT``) and ``ranges`` (low, high, limit).

    Raises: StageError: the data does not match the inputs, or a tensor is NaN or has no range.
    """
    options = job.options["calibration"]
    dtypes = {name: port["dtype"] for name, port in job.options["inputs"].items()}
    job.progress(f"drawing {options['batches']} calibration batches")
    for _ in save_batches(job.outputs["batches"], draw_batches(job)):
        pass
    model = load_model(job.inputs["model"])
    named_nodes(model)
    tensors = IntermediateTensors(job, model)
    job.progress(f"measuring {len(tensors.names)} tensors on {options['batches']} batches")

    def batches() -> Iterator[Batch]:
        for number, batch in enumerate(load_batches(job.outputs["batches"], dtypes), start=1):
            yield batch
            job.count(number, options["batches"], "batches")

    needed = {name for node in tensors.nodes if node.op_type in HEAVY for name in node.input}
    counted = options["algorithm"] != "minmax"
    ranges = {
        name: magnitudes.range(options["algorithm"], options.get("percentile"))
        for name, magnitudes in measure(tensors, batches, needed, counted=counted).items()
    }
    _require_ranges(tensors, ranges, job.options["exclude"])
    about = {field: options[field] for field in ("algorithm", "percentile") if field in options}
    save_ranges(job.outputs["ranges"], ranges, about)
    warnings = [
        f"the ranges come from random values of the input {name}: calibrate on real data"
        for name, data in options["data"].items()
        if not data or "random" in data
    ]
    figures = {"batches": options["batches"], "tensors": len(ranges), "warnings": warnings}
    return StageResult(figures={**about, **figures})


def _require_ranges(tensors: IntermediateTensors, ranges: Ranges, exclude: list[str]) -> None:
    """Raise StageError if an input of an expensive node is always zero."""
    for node in tensors.nodes:
        zeros = [name for name in node.input if name in ranges and ranges[name].largest == 0.0]
        if zeros and node.op_type in HEAVY and not matching_pattern(node.name, exclude):
            raise StageError(
                f"{tensor_origin(zeros[0], tensors.nodes)} is zero in all calibration batches, so"
                f" {node.op_type} (node {node.name}) has no scale for it",
                "use data that reaches it, or exclude the node:"
                f" quantize: {{exclude: [{node.name}]}}",
            )
