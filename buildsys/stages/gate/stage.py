"""The gate stage: an engine's figures against limits and a baseline.

An earlier build that can run here is measured next to this one, in rounds of fresh processes.
Otherwise its libraries have changed: then the last nights of this build are compared with those of
earlier builds on this machine. Another environment is not comparable, which is never a pass.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from buildsys.backends.measurement.gpu import GpuTiming
from buildsys.errors import StageError
from buildsys.history.gates import (
    CONFIRMING,
    LEAST_EARLIER,
    LOOKS,
    Change,
    compare_nights,
    compare_rounds,
    compare_values,
)
from buildsys.history.statistics import CONFIDENCE, median
from buildsys.report import formatting as q
from buildsys.report.gates import SHOWN
from buildsys.report.results.engine import EngineResult
from buildsys.report.results.gate import INCOMPARABLE, GateCheck
from buildsys.report.results.reader import FAILED, NOISY, PASSED, parse, read_result
from buildsys.report.results.verify import VerifyResult
from buildsys.stages.gate.rounds import Conditions, TimedFile, measure_rounds
from buildsys.stages.operators.implementation import implementation_of
from buildsys.system.cpu import OtherLoad, load_average
from buildsys.system.interpreters.toolchain import Toolchain
from buildsys.workers.job import Job, StageResult

_TIMED = ("latency", "throughput", "memory")
_RISES = ("throughput",)  # figures of which more is better
_NOW, _BEFORE = "this build", "baseline"
_SOURCES = {"build_time": "engine", "error": "verify", "size": "engine"}  # stages
Rounds = dict[str, dict[str, list[float]]]  # side -> figure -> one value per round
_TITLES = {"build_time": "build time", "error": "relative error"}


@dataclass
class _Baseline:
    """The build to compare with, as far as it is known."""

    description: str
    reason: str = ""  # why it cannot run here; empty if it can
    engine: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    nights: Mapping[str, Mapping[str, list[float]]] = field(default_factory=dict)
    missing: str = ""  # why there is none
    hint: str = ""  # what makes it comparable
    is_this_build: bool = False


@dataclass(frozen=True)
class _Comparison:
    """The change of a figure, and its words."""

    change: Change
    against: str  # "that of the build of …", after "worse than"
    method: str


def run(job: Job) -> StageResult:
    """Check every gate.

    ``failed``: a regression. ``noisy``: one may be hidden. ``unavailable``: not comparable.
    """
    if "engine" not in job.inputs:
        return StageResult("unavailable", "there is no engine: see the result of its engine target")
    gates, baseline = job.options["gates"], _find_baseline(job)
    figures = _figures_of_files(job, "")
    others, rounds = OtherLoad(), Rounds()
    given = job.options.get("rounds")
    timed = [
        metric
        for metric, gate in gates.items()
        if metric in _TIMED and (gate["limit"] is not None or not baseline.is_this_build)
    ]
    for count, confidence in ((given, CONFIDENCE),) if given else LOOKS:
        if timed:
            rounds = _measure(job, baseline, rounds, count)
            known = rounds[_NOW].items()
            figures |= {name: median(v) for name, v in known if all(map(math.isfinite, v))}
        checks = [
            _check(metric, gate, figures, baseline, rounds, confidence)
            for metric, gate in gates.items()
        ]
        statuses = {check["status"] for check in checks}
        if NOISY not in statuses or FAILED in statuses or _BEFORE not in rounds:
            break
    result = {
        "engine": (job.baseline or {}).get("current", ""),
        "baseline": {
            "description": baseline.missing or baseline.description,
            "method": _method(baseline, rounds),
            **((job.baseline or {}).get("identity") or {}),
        },
        "checks": checks,
        "figures": figures,
        "engine_options": dict(job.options["engine"]),
        "rounds": rounds,
        "load": {
            "average": load_average(),
            "others_share": others.share(),
            "exclusive": [*job.exclusive],
        },
    }
    for status, ending in ((FAILED, "failed"), (NOISY, NOISY), (INCOMPARABLE, "unavailable")):
        found = [check for check in checks if check["status"] == status]
        if found:
            first, *further = found
            names = ", ".join(_title(check["metric"]) for check in further)
            more = f" (also: {names})" if names else ""
            hint = f"measure again: buildsys build --remeasure {job.model}"
            if status == FAILED:  # which is stale
                hint = f"measure again: doit {job.target}"
            if status == INCOMPARABLE:  # which is up to date
                hint = baseline.hint or "the next build is compared with this one"
                if first["after"] is None:
                    source = _SOURCES.get(first["metric"], job.stage)
                    hint = f"see `doit info {source}:{job.model}:{job.variant}`"
            return StageResult(ending, f"{first['text']}{more}", hint, result)
    return StageResult(figures=result)


def _title(metric: str) -> str:
    return _TITLES.get(metric, metric)


def _find_baseline(job: Job) -> _Baseline:
    if "baseline" in job.options:  # another engine
        other = job.options["baseline"]
        description = f"the engine {other['name']}"
        hint = f"see `doit info engine:{job.model}:{other['name']}`"
        if "baseline.engine" not in job.inputs:
            return _Baseline(description, missing=f"there is no engine {other['name']}", hint=hint)
        engine, figures = job.inputs["baseline.engine"], _figures_of_files(job, "baseline.")
        return _Baseline(description, "", engine, other["engine"], figures, hint=hint)
    found = job.baseline or {}
    if found.get("missing") or not found:
        missing = found.get("missing") or "there is no earlier build"
        return _Baseline("", missing=missing, hint=found.get("hint", ""))
    return _Baseline(
        found["description"],
        found.get("reason", ""),
        job.inputs.get("baseline.engine"),
        found.get("options") or job.options["engine"],
        {**found.get("figures", {}), **_figures_of_files(job, "baseline.")},
        found.get("nights", {}),
        hint=found.get("hint", ""),
        is_this_build=_is_this_build(job, found),
    )


def _is_this_build(job: Job, found: Mapping[str, Any]) -> bool:
    """Check for a pinned revision that built this engine with these libraries and options."""
    engine = found.get("identity", {}).get("engine")
    is_same = engine == found.get("current", "") and found.get("options") == job.options["engine"]
    return is_same and not found.get("reason")


def _method(baseline: _Baseline, rounds: Mapping[str, Any]) -> str:
    if baseline.missing or baseline.is_this_build:
        return ""
    return "rounds" if _BEFORE in rounds else "nights" if rounds else "figures"


def _figures_of_files(job: Job, prefix: str) -> dict[str, float]:
    """Return size, build time and error from the files of one side."""
    figures: dict[str, float] = {}
    files = [
        job.inputs[name]
        for name in (f"{prefix}engine", f"{prefix}engine.data")
        if name in job.inputs
    ]
    if files:
        figures["size"] = float(sum(path.stat().st_size for path in files))
    name = job.options["baseline"]["name"] if prefix and "baseline" in job.options else job.variant
    if path := job.inputs.get(f"{prefix}built"):
        built = parse(read_result(f"engine:{job.model}:{name}", path, "").content, EngineResult)
        if (seconds := built.get("build_seconds")) is not None:
            figures["build_time"] = seconds
    if path := job.inputs.get(f"{prefix}verified"):
        found = parse(read_result(f"verify:{job.model}:{name}", path, "").content, VerifyResult)
        errors = [
            error
            for outputs in found.get("cases", {}).values()
            for comparison in outputs.values()
            if (error := comparison.get("relative")) is not None
        ]
        if errors:
            figures["error"] = math.nan if any(map(math.isnan, errors)) else max(errors)
    return figures


def _measure(job: Job, baseline: _Baseline, rounds: Rounds, count: int) -> Rounds:
    """Continue to ``count`` rounds of this build and a runnable baseline."""
    options, gpu = job.options, job.options.get("gpu")
    backend = options["engine"]["backend"]
    uses = implementation_of(job, backend).uses
    timing = GpuTiming(**{**gpu, "cuda_graph": tuple(gpu["cuda_graph"])}) if gpu else None
    conditions = Conditions(
        toolchain=job.toolchain or Toolchain("default", Path(sys.executable), {}),
        case=job.inputs[f"case.{options['case']}"],
        timing=timing,
        warmup_s=options["warmup"],
        duration_s=options["duration"],
        project=job.project,
        folder=job.outputs["result"].parent,
    )
    sides = {_NOW: TimedFile(job.inputs["engine"], options["engine"], backend, uses)}
    is_runnable = not (baseline.reason or baseline.missing or baseline.is_this_build)
    if baseline.engine is not None and is_runnable:
        before = TimedFile(
            baseline.engine, baseline.options, str(baseline.options["backend"]), uses
        )
        sides = {_BEFORE: before, **sides}
    measured = max((len(values) for values in rounds.get(_NOW, {}).values()), default=0)
    try:
        more = measure_rounds(sides, conditions, range(measured, count), job.progress)
    except StageError as error:
        if _BEFORE not in sides:
            raise
        del sides[_BEFORE]
        alone = measure_rounds(sides, conditions, range(count), job.progress)  # if it can run
        baseline.reason = f"it does not run here: {error.problem}"
        return alone
    return {
        side: {name: [*rounds.get(side, {}).get(name, []), *values] for name, values in new.items()}
        for side, new in more.items()
    }


def _check(
    metric: str,
    gate: Mapping[str, Any],
    figures: Mapping[str, float],
    baseline: _Baseline,
    rounds: Rounds,
    confidence: float,
) -> GateCheck:
    title, show = _title(metric), SHOWN[metric]
    now, limit, tolerance = figures.get(metric), gate["limit"], gate["tolerance"]
    check: GateCheck = {
        "metric": metric, "status": PASSED, "before": None, "after": now, "change": None,
        "low": None, "high": None, "confidence": None, "tolerance": tolerance, "limit": limit,
        "text": f"{title} {show(now) if now is not None else 'not known'}",
    }  # fmt: skip
    rises = metric in _RISES
    if baseline.is_this_build and limit is None:
        text = f"{title} is not compared: this build is {baseline.description}"
        return {**check, "text": text}
    if now is None or now != now:
        text = f"the {title} of this build is not known"
        return {**check, "status": INCOMPARABLE, "after": None, "text": text}
    if limit is not None and (now < limit if rises else now > limit):
        bound = "at least" if rises else "at most"
        text = f"{title} is {show(now)}; {bound} {show(limit)} is allowed"
        return {**check, "status": FAILED, "text": text}
    if tolerance is None or baseline.is_this_build:
        return check
    try:
        found = _compare(metric, tolerance, now, baseline, rounds, confidence)
    except ValueError as error:
        found = f"{error}"
    if isinstance(found, str):
        return {**check, "status": INCOMPARABLE, "text": f"{title} is not comparable: {found}"}
    change = found.change
    check |= {
        "before": change.before, "after": change.after, "change": change.change,
        "low": change.low, "high": change.high, "confidence": change.confidence,
    }  # fmt: skip
    word = "worse" if change.change >= 0 else "better"
    interval, allowed = "an unknown interval", f"{q.percent(tolerance)} is allowed"
    if change.low is not None and change.high is not None:
        confidence = round(100 * (change.confidence or 0))
        interval = f"{confidence} % interval {q.change(change.low)} to {q.change(change.high)}"
    within = f" ({interval})" if change.confidence is not None else ""
    check["text"] = (
        f"{title} is {q.percent(abs(change.change))} {word}{within} than {found.against}:"
        f" {show(change.before)} before, {show(change.after)} now, {found.method}; {allowed}"
    )
    if change.is_regression:
        check["status"] = FAILED
    elif change.is_unconfirmed:
        check["status"] = NOISY
        check["text"] += f", and {CONFIRMING} nights have to confirm it"
    elif change.is_undecided:
        check["status"] = NOISY
        check["text"] = (
            f"{title} is undecided: its change from {found.against} has the {interval},"
            f" {found.method}; {allowed}"
        )
    return check


def _compare(
    metric: str,
    tolerance: float,
    now: float,
    baseline: _Baseline,
    rounds: Rounds,
    confidence: float,
) -> _Comparison | str:
    """Return the change with its words, or the reason for none."""
    rises, against = metric in _RISES, f"that of {baseline.description}"
    if baseline.missing:
        return baseline.missing
    if metric in _TIMED and _BEFORE in rounds:
        pairs = rounds[_BEFORE].get(metric, []), rounds[_NOW].get(metric, [])
        change = compare_rounds(*pairs, tolerance, more_is_better=rises, confidence=confidence)
        return _Comparison(change, against, f"in {len(pairs[0])} pairs of processes")
    if metric in _TIMED and not baseline.nights:
        return baseline.reason
    if metric in _TIMED:
        nights = {name: values.get(metric, []) for name, values in baseline.nights.items()}
        earlier, recent = nights.get("earlier", []), nights.get("recent", [])
        recent = [median([now, *nights.get("tonight", [])]), *recent]
        found = compare_nights(earlier, recent, tolerance, more_is_better=rises)
        count = q.plural(len(earlier), "earlier night")
        if found is None:
            return f"{baseline.reason}, and {count} on this machine are fewer than {LEAST_EARLIER}"
        method = f"the median of {q.plural(len(recent), 'night')} because {baseline.reason}"
        return _Comparison(found, f"in {count}", method)
    before = baseline.figures.get(metric)
    if before is None:
        return f"the figure of {baseline.description} is not known"
    return _Comparison(compare_values(before, now, tolerance), against, "both as built")
