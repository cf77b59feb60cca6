"""The evaluate stage: an engine against the original model on the same samples."""

from __future__ import annotations

import json
from typing import cast

from blake3 import blake3

from buildsys.errors import Unavailable
from buildsys.evaluation.metric import Metric
from buildsys.evaluation.metrics import load_metric
from buildsys.evaluation.recording import Recorded, load_recorded, record, require_same_samples
from buildsys.evaluation.statistics import (
    Interval,
    find_flips,
    judge,
    paired_interval,
    samples_needed,
)
from buildsys.report.formatting import percent
from buildsys.stages.bench.timed_engine import open_engine
from buildsys.stages.evaluate.calibration import check_calibration
from buildsys.stages.evaluate.result import ClassAccuracy, EvaluateResult, FlippedSample
from buildsys.workers.job import Job, StageResult


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
    half = options.get("half", "")  # of samples that no search has seen
    original = original.half(half) if half else original
    metric = load_metric(options["metric"], options, job.project)
    try:
        job.progress("running the engine")
        recorded = record(options, inputs, job.project, metric, engine.run, job.count, job.parts)
    finally:
        engine.close()
    require_same_samples(original, recorded)
    job.progress("comparing the predictions")
    interval = paired_interval(metric, original.records, recorded.records)
    drop = job.options["drop"]
    verdict = judge(interval, drop)
    figures = _figures(metric, original, recorded, interval)
    figures |= {"drop": drop, "verdict": verdict, "identity": _identity(job, recorded)}
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
    files = [job.project / name.rpartition(":")[0] for name in functions if name]
    fields = [own, options["output"], options["postprocess"], options["classes"]]
    parts = [json.dumps(fields).encode(), *(file.read_bytes() for file in files)]
    parts.append("".join(recorded.digests).encode())
    return blake3(b"\0".join(parts)).hexdigest(16)


def _figures(
    metric: Metric, original: Recorded, engine: Recorded, interval: Interval
) -> EvaluateResult:
    flips = find_flips(metric, engine.names, original.records, engine.records)
    before, after = metric.per_class(original.records), metric.per_class(engine.records)
    return EvaluateResult(
        title=metric.title,
        is_share=metric.is_share,
        higher_is_better=metric.higher_is_better,
        value=metric.value(engine.records),
        original=metric.value(original.records),
        loss=interval.loss,
        low=interval.low,
        high=interval.high,
        samples=interval.samples,
        method=interval.method,
        flips=[cast(FlippedSample, flip._asdict()) for flip in flips],
        classes=[
            ClassAccuracy(
                name=name,
                samples=figure.labels,
                original=figure.value,
                engine=after[name].value if name in after else None,
            )
            for name, figure in before.items()
        ],
    )


def _reason(job: Job, figures: EvaluateResult) -> tuple[str, str]:
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
