"""The gate stage: an engine's figures against limits and a baseline.

An earlier build that can run here is measured next to this one, in rounds of fresh processes.
Builds with other libraries or from another environment are not comparable; such a gate never
passes.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.backends.measurement import GpuTiming
from buildsys.errors import StageError
from buildsys.history.statistics import (
    CONFIDENCE,
    LOOKS,
    Change,
    compare_rounds,
    compare_values,
    median,
)
from buildsys.onnx_graphs.result_types import ResultHeader
from buildsys.onnx_graphs.tensors import load_case
from buildsys.report import formatting as q
from buildsys.report.formatting import worst_comparison
from buildsys.report.report_types import fill
from buildsys.report.result_files import FAILED, NOISY, PASSED, read_result
from buildsys.stages.bench.timed_engine import RemoteEngine
from buildsys.stages.engine.result import EngineResult
from buildsys.stages.evaluate.result import EvaluateResult
from buildsys.stages.gate.result import INCOMPARABLE, RISES, GateCheck
from buildsys.stages.operators.implementation import implementation_of
from buildsys.stages.verify.result import VerifyResult
from buildsys.system.cpu import OtherLoad
from buildsys.system.processes import resident_memory
from buildsys.system.toolchains import Toolchain, this_interpreter
from buildsys.workers.job import Job, StageResult

OpenEngine = Callable[[], RemoteEngine]  # starts a process with the engine of one side
Rounds = dict[str, dict[str, list[float]]]  # side -> figure -> one value per round
_LEAST_RUNS = 10
_TIMED = ("latency", "throughput", "memory", "load_time", "first_call")
_NOW, _BEFORE = "this build", "baseline"
_ACCURACY = "accuracy"
_ROUNDING = 1e-9
_SOURCES = {"build_time": "engine", "error": "verify", "size": "engine", _ACCURACY: "evaluate"}
_EVALUATED = "evaluated", "evaluate", EvaluateResult  # role, stage and result of the accuracy
_TITLES = {"error": "relative error"}


@dataclass
class _Baseline:
    """The build to compare with, as far as it is known."""

    description: str = ""
    missing: str = ""  # why there is none
    hint: str = ""  # what makes it comparable
    reason: str = ""  # why it cannot run here; empty if it can
    engine: Path | None = None
    options: Mapping[str, Any] | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    evaluated: str = ""  # the samples and the metric of its accuracy
    accepted: str = ""  # why a person has made this build its own baseline
    toolchain: Mapping[str, Any] | None = None  # if another one than for this build

    @property
    def can_run(self) -> bool:
        """True for an engine that can be measured next to this one."""
        return self.engine is not None and not (self.reason or self.missing or self.accepted)


class _Build(NamedTuple):
    """The build to check, with the confidence of this look at its rounds."""

    figures: Mapping[str, float]
    rounds: Rounds
    confidence: float
    evaluated: Mapping[str, Any]


def run(job: Job) -> StageResult:
    """Check every gate.

    ``failed``: a regression. ``noisy``: undecided. ``unavailable``: not comparable.
    """
    if "engine" not in job.inputs:
        return StageResult("unavailable", "there is no engine: see the result of its engine target")
    gates, baseline = job.options["gates"], _find_baseline(job)
    figures, others, rounds = _figures_of_files(job, ""), OtherLoad(), Rounds()
    evaluated = _read(job, "", *_EVALUATED)
    fixed = job.options.get("rounds")
    for count, confidence in ((fixed, CONFIDENCE),) if fixed else LOOKS:
        # without a limit and an engine to compare with, there is nothing to measure
        if any(m in _TIMED and (baseline.can_run or gates[m]["limit"]) for m in gates):
            rounds = _measure(job, baseline, rounds, count)
            measured = rounds[_NOW].items()
            figures |= {name: median(v) for name, v in measured if all(map(math.isfinite, v))}
        own = _Build(figures, rounds, confidence, evaluated)
        checks = [_check(metric, gate, own, baseline) for metric, gate in gates.items()]
        statuses = {check["status"] for check in checks}
        if NOISY not in statuses or FAILED in statuses or _BEFORE not in rounds:
            break
    result = {
        "baseline": {
            "description": baseline.missing or baseline.description or baseline.accepted,
            "method": "rounds" if _BEFORE in rounds else "" if baseline.missing else "figures",
            "accepted": baseline.accepted,
            **((job.baseline or {}).get("identity") or {}),
        },
        "checks": checks,
        "figures": figures,
        "evaluated": evaluated.get("identity", ""),
        "engine_options": dict(job.options["engine"]),
        "rounds": rounds,
        "load": {"others_share": others.share(), "exclusive": [*job.exclusive]},
    }
    for status, ending in ((FAILED, "failed"), (NOISY, NOISY), (INCOMPARABLE, "unavailable")):
        concerned = [check for check in checks if check["status"] == status]
        if concerned:
            names = ", ".join(_title(c["metric"]) for c in concerned[1:])
            reason = concerned[0]["text"] + (f" (also: {names})" if names else "")
            hint = _hint(job, status, concerned[0], baseline)
            return StageResult(ending, reason, hint, result)
    return StageResult(figures=result)


def _hint(job: Job, status: str, check: GateCheck, baseline: _Baseline) -> str:
    if status == FAILED:
        accept = f'buildsys gate accept {job.model}:{job.variant} --reason "…"'
        return f"measure again: buildsys build {job.target}; accept it: {accept}"
    if status == NOISY:
        return f"measure again: buildsys build --remeasure {job.model}"
    if check["after"] is None and (source := _SOURCES.get(check["metric"])):
        return f"see `buildsys explain {source}:{job.model}:{job.variant}`"
    return baseline.hint or "the next build is compared with this one"


def _find_baseline(job: Job) -> _Baseline:
    """Find another engine, or the earlier build that the executor has found."""
    engine, figures = job.inputs.get("baseline.engine"), _figures_of_files(job, "baseline.")
    if other := job.options.get("baseline"):
        return _Baseline(
            description=f"the engine {other['name']}",
            missing="" if engine else f"there is no engine {other['name']}",
            hint=f"see `buildsys explain engine:{job.model}:{other['name']}`",
            engine=engine,
            options=other["engine"],
            figures=figures,
            evaluated=_read(job, "baseline.", *_EVALUATED).get("identity", ""),
        )
    facts: Mapping[str, Any] = job.baseline or {"missing": "there is no earlier build"}
    figures = {**facts.get("figures", {}), **figures}
    return fill(_Baseline, facts, engine=engine, figures=figures)


def _figures_of_files(job: Job, prefix: str) -> dict[str, float]:
    """Read size, build time and error from the files of one side."""
    figures: dict[str, float] = {}
    files = [job.inputs.get(f"{prefix}{name}") for name in ("engine", "engine.data")]
    if files[0] is not None:
        figures["size"] = float(sum(path.stat().st_size for path in files if path is not None))
    built = _read(job, prefix, "built", "engine", EngineResult)
    if (seconds := built.get("build_seconds")) is not None:
        figures["build_time"] = seconds
    verified = _read(job, prefix, "verified", "verify", VerifyResult)
    if worst := worst_comparison({"": verified.get("cases", {})}):
        figures["error"] = worst[0]
    if (accuracy := _read(job, prefix, *_EVALUATED).get("value")) is not None:
        figures[_ACCURACY] = accuracy
    return figures


def _read(
    job: Job, prefix: str, role: str, stage: str, kind: type[ResultHeader]
) -> Mapping[str, Any]:
    """Read the result of a stage of one side, {} without any."""
    if (path := job.inputs.get(f"{prefix}{role}")) is None:
        return {}
    name = job.options["baseline"]["name"] if prefix and "baseline" in job.options else job.variant
    content: Mapping[str, Any] = read_result(f"{stage}:{job.model}:{name}", path, "", kind).content
    return content


def _measure(job: Job, baseline: _Baseline, rounds: Rounds, count: int) -> Rounds:
    """Continue to ``count`` rounds of this build and a runnable baseline."""
    options, gpu = job.options, job.options.get("gpu")
    toolchain = job.toolchain or this_interpreter()
    uses = implementation_of(job, options["engine"]["backend"]).uses
    timing = GpuTiming(**{**gpu, "cuda_graph": tuple(gpu["cuda_graph"])}) if gpu else None
    case = job.inputs[f"case.{options['case']}"]
    pace = RoundPace(case, timing, options["warmup"], options["duration"])

    def opens(toolchain: Toolchain, engine: Path, settings: Mapping[str, Any]) -> OpenEngine:
        folder = job.outputs["result"].parent  # free of modules
        place = {"project": job.project, "folder": folder}
        return partial(
            RemoteEngine, toolchain, settings["backend"], engine, settings, uses, **place
        )

    sides = {_NOW: opens(toolchain, job.inputs["engine"], options["engine"])}
    if baseline.engine is not None and baseline.can_run:
        if other := baseline.toolchain:
            toolchain = Toolchain(other["name"], Path(other["python"]), other["env"])
        earlier = opens(toolchain, baseline.engine, baseline.options or options["engine"])
        sides = {_BEFORE: earlier, **sides}
    measured = max((len(values) for values in rounds.get(_NOW, {}).values()), default=0)
    try:
        more = measure_rounds(sides, pace, range(measured, count), job.progress)
    except StageError as error:
        if _BEFORE not in sides:
            raise
        baseline.reason = f"it does not run here: {error.problem}"
        del sides[_BEFORE]
        return measure_rounds(sides, pace, range(count), job.progress)  # if it can run
    return {
        side: {name: [*rounds.get(side, {}).get(name, []), *values] for name, values in new.items()}
        for side, new in more.items()
    }


def _check(metric: str, gate: Mapping[str, Any], own: _Build, baseline: _Baseline) -> GateCheck:
    title, show, rises = _title(metric), q.GATED_FIGURES[metric], metric in RISES
    now, limit = own.figures.get(metric), gate.get("limit")
    tolerance = gate["drop"] if metric == _ACCURACY else gate["tolerance"]
    check: GateCheck = {
        "metric": metric, "status": PASSED, "before": None, "after": now, "change": None,
        "low": None, "high": None, "confidence": None, "tolerance": tolerance, "limit": limit,
        "text": "",
    }  # fmt: skip
    is_measured = metric not in _TIMED or bool(own.rounds)
    if is_measured and (now is None or math.isnan(now)):
        text = f"the {title} of this build is not known"
        return {**check, "status": INCOMPARABLE, "after": None, "text": text}
    if now is not None and limit is not None and (now < limit if rises else now > limit):
        bound = "at least" if rises else "at most"
        text = f"{title} is {q.beyond(now, limit, show)}; {bound} {show(limit)} is allowed"
        return {**check, "status": FAILED, "text": text}
    check["text"] = title if now is None else f"{title} {show(now)}"
    if tolerance is None:
        return check
    if baseline.accepted:
        return {**check, "text": f"{check['text']}; this build was accepted: {baseline.accepted}"}
    try:
        change = _compare(metric, tolerance, own, baseline)
    except ValueError as error:
        return {**check, "status": INCOMPARABLE, "text": f"{title} is not comparable: {error}"}
    check |= {
        "before": change.before, "after": change.after, "change": change.change,
        "low": change.low, "high": change.high, "confidence": change.confidence,
        "status": NOISY if change.is_undecided else FAILED if change.is_regression else PASSED,
    }  # fmt: skip
    pairs = len(own.rounds.get(_NOW, {}).get(metric, ()))
    method = f"in {pairs} pairs of processes" if metric in _TIMED else "both as built"
    interval = ""
    if change.low is not None and change.high is not None:
        share = round(100 * (change.confidence or 0))
        interval = f" ({share} % interval {q.change(change.low)} to {q.change(change.high)})"
    word = "worse" if change.change >= 0 else "better"
    text = (
        f"{q.percent(abs(change.change))} {word}{interval} than that of {baseline.description}:"
        f" {show(change.before)} before, {show(change.after)} now, {method};"
        f" {q.percent(tolerance)} is allowed"
    )
    verb = "is undecided," if change.is_undecided else "is"
    return {**check, "text": f"{title} {verb} {text}"}


def _title(metric: str) -> str:
    return _TITLES.get(metric, metric.replace("_", " "))


def _compare(metric: str, tolerance: float, own: _Build, baseline: _Baseline) -> Change:
    """Compare a figure with the baseline's. Raises: ValueError: they are not comparable."""
    if baseline.missing:
        raise ValueError(baseline.missing)
    if metric in _TIMED:
        if _BEFORE not in own.rounds:
            raise ValueError(baseline.reason)
        earlier, later = (own.rounds[side].get(metric, []) for side in (_BEFORE, _NOW))
        return compare_rounds(
            earlier, later, tolerance, more_is_better=metric in RISES, confidence=own.confidence
        )
    build, now, evaluated = baseline.description, own.figures[metric], own.evaluated
    if (before := baseline.figures.get(metric)) is None:
        raise ValueError(f"the figure of {build} is not known")
    if metric != _ACCURACY:
        return compare_values(before, now, tolerance)
    if baseline.evaluated != evaluated["identity"]:
        raise ValueError(f"{build} was evaluated on other samples or by another metric")
    loss = before - now if evaluated["higher_is_better"] else now - before
    if not evaluated["is_share"] and loss:
        loss = loss / abs(before) if before else math.copysign(math.inf, loss)
    return Change(before, now, loss, None, None, loss > tolerance + _ROUNDING)


@dataclass(frozen=True)
class RoundPace:
    """What every process runs, and for how long."""

    case: Path
    timing: GpuTiming | None
    warmup_s: float
    duration_s: float


def measure_rounds(
    sides: Mapping[str, OpenEngine],
    pace: RoundPace,
    numbers: range,
    progress: Callable[[str], None] = lambda _: None,
) -> Rounds:
    """Measure each side in a process per round; the order of the sides alternates.

    Raises: Unavailable, StageError: a side cannot run.
    """
    rounds: Rounds = {name: {} for name in sides}
    for number in numbers:
        progress(f"round {number + 1} of {numbers.stop}")
        for name in list(sides)[:: -1 if number % 2 else 1]:
            for figure, value in measure_process(sides[name], pace).items():
                rounds[name].setdefault(figure, []).append(value)
    return rounds


def measure_process(open_engine: OpenEngine, pace: RoundPace) -> dict[str, float]:
    """Measure an engine in a fresh process: seconds, items per second and bytes."""
    with closing(open_engine()) as engine:
        start = engine.start(pace.case)
        contender = next(iter(engine.bind(pace.case, pace.timing).values()))
        contender.block(pace.warmup_s, 1)
        samples = contender.block(pace.duration_s, _LEAST_RUNS)
        facts = engine.facts()
        _, peak = resident_memory(engine.processes[0]) or (None, None)
        memory = facts.get("memory_taken_bytes") or peak
    first = next(iter(load_case(pace.case).inputs.values()), None)
    batch = first.shape[0] if first is not None and first.shape else 1
    figures = {
        "latency": median(samples.gpu_ns or samples.wall_ns) / 1e9,
        "throughput": batch * len(samples.wall_ns) * 1e9 / samples.elapsed_ns,
        **start,
    }
    return figures if memory is None else {**figures, "memory": float(memory)}
