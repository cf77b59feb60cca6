"""The evaluate stage: an engine against the original model on the same samples."""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from buildsys.errors import Unavailable
from buildsys.evaluation.metric import Metric, Records
from buildsys.evaluation.metrics import load_metric
from buildsys.evaluation.recording import Recorded, load_recorded, record, require_same_samples
from buildsys.evaluation.statistics import judge, paired_interval, samples_needed
from buildsys.models.user_code import located
from buildsys.report.formatting import percent
from buildsys.stages.bench.timed_engine import open_engine
from buildsys.stages.evaluate.calibration import check_calibration
from buildsys.stages.evaluate.result import ClassAccuracy, FlippedSample
from buildsys.system.user_modules import source_of
from buildsys.workers.job import Job, StageResult

_MOST_FLIPS = 24


def run(job: Job) -> StageResult:
    """Compare the metric of the engine with that of the original model.

    Raises: StageError: the samples changed, or samples or outputs do not fit.
    """
    if "engine" not in job.inputs:
        return StageResult("unavailable", "there is no engine: see the result of its engine target")
    original = load_recorded(job.inputs["original"])
    check_calibration(job, original)
    try:
        engine = open_engine(job)
    except Unavailable as reason:
        return StageResult("unavailable", reason.problem, reason.hint)
    options, inputs = job.options["evaluate"], job.options["inputs"]
    half = options["half"]  # of samples that no search has seen
    original = original.half(half) if half else original
    metric = load_metric(options["metric"], options, job.project)
    with closing(engine):
        job.progress("running the engine")
        recorded = record(
            options, inputs, job.project, metric, engine.run, job.count, job.parts,
            job.options.get("images", ()),
        )  # fmt: skip
    require_same_samples(original, recorded)
    job.progress("comparing the predictions")
    interval = paired_interval(metric, original.records, recorded.records)
    drop = job.options["drop"]
    verdict = judge(interval, drop)
    classes = metric.per_class(recorded.records)
    figures: dict[str, Any] = {
        "title": metric.title,
        "is_share": metric.is_share,
        "higher_is_better": metric.higher_is_better,
        "identity": _identity(job, recorded),
        "value": metric.value(recorded.records),
        "original": metric.value(original.records),
        **interval._asdict(),
        "drop": drop,
        "verdict": verdict,
        "flips": find_flips(metric, recorded.names, original.records, recorded.records),
        "classes": [
            ClassAccuracy(
                name=name, samples=count, original=value, engine=classes.get(name, (0, None))[1]
            )
            for name, (count, value) in metric.per_class(original.records).items()
        ],
    }
    if verdict == "passed":
        return StageResult(figures=figures)
    if verdict == "undecided":
        figures["needed"] = samples_needed(interval, drop) * (2 if half else 1)
    problem, hint = _reason(job, figures)
    return StageResult("failed", problem, hint, figures)


def _identity(job: Job, recorded: Recorded) -> str:
    """Digest samples and metric."""
    options = job.options["evaluate"]
    own = options["metric"]
    functions = [own["python"] if isinstance(own, dict) else None, options["postprocess"]]
    files = [located(source_of(name), job.project).file for name in functions if name]
    fields = [own, options["output"], options["postprocess"], options["classes"]]
    parts = [json.dumps(fields).encode(), *(Path(file).read_bytes() for file in files)]
    parts.append("".join(recorded.digests).encode())
    return blake3(b"\0".join(parts)).hexdigest(16)


def find_flips(
    metric: Metric, names: Sequence[str], original: Records, engine: Records
) -> list[FlippedSample]:
    """List the predictions that change most, of equal changes the worse first."""
    changes = metric.errors(engine) - metric.errors(original)
    flips = []
    for row in np.lexsort((-changes, -abs(changes)))[:_MOST_FLIPS].tolist():
        if change := float(changes[row]):
            before, label = metric.describe(original, row)
            after, _ = metric.describe(engine, row)
            flip = FlippedSample(
                sample=names[row], label=label, original=before, engine=after, change=change
            )
            flips.append(flip)
    return flips


def _reason(job: Job, figures: Mapping[str, Any]) -> tuple[str, str]:
    """Explain a verdict other than passed, with the next step."""
    interval = f"95 % interval {percent(figures['low'])} to {percent(figures['high'])}"
    loss = f"{figures['title']} loses {percent(figures['loss'])} ({interval})"
    allowed = f"{percent(figures['drop'])} is allowed"
    raised = "raise search.margin or" if job.options["engine"].get("auto") else "raise"
    if figures["verdict"] == "failed":
        hint = f"calibrate on data like these, keep more nodes in fp32, or {raised} evaluate.drop"
        return f"the engine {job.variant} of {job.model}: {loss}, {allowed}", hint
    needed, samples = figures["needed"], figures["samples"]
    problem = f"undecided: {loss} of {samples:,} samples, {allowed}"
    return problem, f"evaluate about {needed:,} samples, or {raised} evaluate.drop"
