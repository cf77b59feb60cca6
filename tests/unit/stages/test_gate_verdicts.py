"""The gate stage with given rounds: verdicts and their sentences."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buildsys.errors import StageError
from buildsys.report.key_figures import key_figure
from buildsys.report.result_files import Result, parse
from buildsys.stages.gate import stage as gate
from buildsys.stages.gate.report import table
from buildsys.stages.gate.result import GateResult
from buildsys.workers.job import Job, StageResult
from buildsys.workers.result_file import format_figures

BASELINE = {
    "description": "the build of 2026-11-21 02:00 UTC (engine 3fa2c1d4e5f6)",
    "reason": "",
    "options": {"backend": "onnxruntime", "intra_op_threads": 1},
    "figures": {"latency": 0.002, "size": 1000.0},
    "identity": {"engine": "3fa2", "started": "2026-11-21T02:00:00Z"},
}
LATENCY = {"latency": {"tolerance": 0.05, "limit": None}}
ACCEPT = (
    'measure again: buildsys build gate:m:ort; accept it: buildsys gate accept m:ort --reason "…"'
)
RunGate = Callable[..., StageResult]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunGate:
    """Return a function that runs the stage with a slowdown of this build."""

    def run_gate(
        gates: dict[str, Any],
        *,
        slower: float = 0.0,
        baseline: dict[str, Any] | None = None,
        size: int = 1000,
        **files: Any,
    ) -> StageResult:
        def measure(sides: Any, conditions: Any, numbers: range, progress: Any) -> Any:
            del conditions, progress
            if "old.engine" in str(sides.get("baseline", "")) and files.get("broken"):
                raise StageError("it cannot be loaded")
            noise = [1 + 0.002 * ((number * 7) % 5 - 2) for number in numbers]
            spread = files.get("spread", 0.0)
            odd = [1 + spread * ((number * 5) % 7 - 3) for number in numbers]
            factor = {"baseline": 1.0, "this build": 1 + slower}
            return {
                name: {
                    "latency": [
                        0.002 * factor[name] * a * (b if name == "baseline" else 1.0)
                        for a, b in zip(noise, odd, strict=True)
                    ],
                    "throughput": [
                        (500 if number else files.get("odd_one", 500)) / factor[name] * a
                        for number, a in enumerate(noise)
                    ],
                    "memory": [1e8 * factor[name] * a for a in noise],
                    "load_time": [
                        0.2 * factor[name] * a * (b if name == "baseline" else 1.0)
                        for a, b in zip(noise, odd, strict=True)
                    ],
                }
                for name in sides
            }

        monkeypatch.setattr(gate, "measure_rounds", measure)
        inputs = {"case.opt": tmp_path / "opt.npz"}
        names = {"engine": "new.engine", **({"baseline.engine": "old.engine"} if baseline else {})}
        for role, name in names.items():
            inputs[role] = tmp_path / name
            inputs[role].write_bytes(bytes(size if role == "engine" else 1000))
        for role, content in files.get("results", {}).items():
            inputs[role] = tmp_path / f"{role}.json"
            inputs[role].write_text(json.dumps({"status": "passed", **content}))
        options: dict[str, Any] = {"gates": gates, "engine": {"backend": "onnxruntime"}}
        if any(metric in gates for metric in ("latency", "throughput", "memory", "load_time")):
            options |= {"case": "opt", "duration": 0.1, "warmup": 0.0}
            options["rounds"] = files.get("rounds", 10)
        if other := files.get("other"):
            options["baseline"] = {"name": other, "engine": {"backend": "onnxruntime"}}
            inputs["baseline.engine"] = tmp_path / "old.engine"
            inputs["baseline.engine"].write_bytes(bytes(1000))
            if files.get("absent"):
                del inputs["baseline.engine"]
        job = Job(
            "gate:m:ort", "gate", "m", "ort", options, inputs, {"result": tmp_path / "ort.json"},
            tmp_path, baseline=baseline or {"missing": "there is no earlier build"},
        )  # fmt: skip
        result = gate.run(job)
        assert json.loads("".join(format_figures(dict(result.figures))))
        return result

    return run_gate


def test_equal_engines_pass(run: RunGate) -> None:
    result = run(LATENCY, baseline=BASELINE)
    assert (result.status, result.reason) == ("passed", "")
    assert result.figures["baseline"]["engine"] == "3fa2"
    assert result.figures["figures"]["latency"] == pytest.approx(0.002)
    assert key_figure("gate", result.figures) == "latency +0.0 %"


def test_a_slower_engine_fails_with_one_sentence(run: RunGate) -> None:
    result = run(LATENCY, baseline=BASELINE, slower=0.06)
    assert result.status == "failed"
    assert result.reason == (
        "latency is 6.0 % worse (90 % interval +6.0 % to +6.0 %) than that of the build of"
        " 2026-11-21 02:00 UTC (engine 3fa2c1d4e5f6): 2.00 ms before, 2.12 ms now,"
        " in 10 pairs of processes; 5.0 % is allowed"
    )
    assert result.hint == ACCEPT


@pytest.mark.parametrize("title", ["latency", "load time"])
def test_a_comparison_that_proves_nothing_is_undecided_and_no_pass(
    run: RunGate, title: str
) -> None:
    gates = {title.replace(" ", "_"): LATENCY["latency"]}
    result = run(gates, baseline=BASELINE, spread=0.05)
    assert result.status == "noisy"
    assert re.fullmatch(
        rf"{title} is undecided, 0.\d % worse \(90 % interval -\d+\.\d % to \+\d+\.\d %\) than that"
        r" of the build of .*, in 10 pairs of processes; 5\.0 % is allowed",
        result.reason,
    )
    assert result.hint == "measure again: buildsys build --remeasure m"
    assert result.figures["checks"][0]["high"] > 0.05
    assert key_figure("gate", result.figures) == f"{title} noisy"
    (row,) = table([Result("gate:m:ort", "noisy", parse(result.figures, GateResult))]).rows
    assert row[2:6:3] == ("noisy", "—")  # no change is claimed


def test_a_noisy_comparison_takes_more_rounds(run: RunGate) -> None:
    steady = run(LATENCY, baseline=BASELINE, rounds=None)
    assert steady.status == "passed"
    assert len(steady.figures["rounds"]["this build"]["latency"]) == 10
    noisy = run(LATENCY, baseline=BASELINE, rounds=None, spread=0.05)
    assert noisy.status == "passed"
    assert len(noisy.figures["rounds"]["baseline"]["latency"]) == 40
    assert noisy.figures["checks"][0]["confidence"] == pytest.approx(0.9)
    hopeless = run(LATENCY, baseline=BASELINE, rounds=None, spread=0.2)
    assert hopeless.status == "noisy"


def test_a_certain_regression_ends_the_rounds_of_other_noisy_figures(run: RunGate) -> None:
    gates = {**LATENCY, "throughput": {"tolerance": 0.05, "limit": None}}
    result = run(gates, baseline=BASELINE, rounds=None, slower=0.2, spread=0.2)
    assert result.status == "failed"
    assert len(result.figures["rounds"]["this build"]["latency"]) == 10


def results(role: str, target: str, seconds: float, error: float) -> dict[str, Any]:
    """Return what the results of an engine have for gates."""
    cases = {"opt": {"y": {"relative": error}, "z": {"relative": error / 2}}}
    return {
        f"{role}built": {"target": f"engine:m:{target}", "build_seconds": seconds},
        f"{role}verified": {"target": f"verify:m:{target}", "cases": cases},
    }


BEFORE = {"size": 1000.0, "build_time": 10.0, "error": 1e-3, "memory": 1e8}
WORSE = {
    "latency": ({"slower": 0.1}, "2.00 ms before, 2.20 ms now, in 10 pairs of processes"),
    "throughput": ({"slower": 0.1}, "500/s before, 455/s now, in 10 pairs of processes"),
    "memory": ({"slower": 0.1}, "100 MB before, 110 MB now, in 10 pairs of processes"),
    "load_time": ({"slower": 0.1}, "200 ms before, 220 ms now, in 10 pairs of processes"),
    "size": ({"size": 1100}, "1.00 kB before, 1.10 kB now, both as built"),
    "build_time": ({"seconds": 11.0}, "10.0 s before, 11.0 s now, both as built"),
    "error": ({"error": 1.1e-3}, "1.0e-03 before, 1.1e-03 now, both as built"),
}


@pytest.mark.parametrize("metric", WORSE)
@pytest.mark.parametrize("kind", ["build", "engine"])
def test_every_figure_is_compared_with_a_build_and_with_an_engine(
    run: RunGate, metric: str, kind: str
) -> None:
    gates = {metric: {"tolerance": 0.05, "limit": None}}
    changes, words = WORSE[metric]
    given: dict[str, Any] = {"baseline": {**BASELINE, "figures": BEFORE}}
    described = BASELINE["description"]
    if kind == "engine":
        given, described = {"other": "fast"}, "the engine fast"
    earlier = results("baseline.", "fast", 10.0, 1e-3) if kind == "engine" else {}

    def gate_of(seconds: float = 10.0, error: float = 1e-3, **more: Any) -> StageResult:
        own = results("", "ort", seconds, error)
        return run(gates, **given, results={**own, **earlier}, **more)

    assert gate_of().status == "passed"
    result = gate_of(**changes)
    assert result.status == "failed"
    title = {"error": "relative error"}.get(metric, metric.replace("_", " "))
    share = "9.1" if metric == "throughput" else "10.0"  # 455 of 500 items per second
    assert result.reason.startswith(f"{title} is {share} % worse")
    assert f"than that of {described}: {words}; 5.0 % is allowed" in result.reason
    assert ("90 % interval" in result.reason) == ("pairs" in words)
    assert result.hint == ACCEPT
    better = {"slower": -0.1, "size": 900, "seconds": 9.0, "error": 9e-4}
    assert gate_of(**{name: better[name] for name in changes}).status == "passed"
    (check,) = result.figures["checks"]
    assert (check["metric"], check["tolerance"]) == (metric, 0.05)


@pytest.mark.parametrize(
    ("change", "reason"),
    [("absent", "there is no engine fast"), ("broken", "it does not run here: it cannot")],
)
def test_another_engine_that_is_absent_or_does_not_run_is_not_comparable(
    run: RunGate, change: str, reason: str
) -> None:
    result = run(LATENCY, other="fast", **{change: True})
    assert result.status == "unavailable"
    assert result.reason.startswith(f"latency is not comparable: {reason}")
    assert result.hint == "see `buildsys explain engine:m:fast`"


def test_an_unknown_figure_of_this_build_is_never_a_pass(run: RunGate) -> None:
    own = results("", "ort", 10.0, math.nan)
    for results_of_build in (own, {}):
        gates = {"error": {"tolerance": 0.05, "limit": 1.0}}
        given = {**BASELINE, "figures": BEFORE}
        result = run(gates, baseline=given, results=results_of_build)
        assert result.status == "unavailable"
        assert result.reason == "the relative error of this build is not known"
        assert result.hint == "see `buildsys explain verify:m:ort`"


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_a_round_with_an_impossible_figure_is_never_a_pass(run: RunGate, value: float) -> None:
    gates = {"throughput": {"tolerance": 0.05, "limit": 1.0}}
    result = run(gates, baseline=BASELINE, odd_one=value)
    assert result.status == "unavailable"
    assert result.reason.startswith(
        "throughput is not comparable: a figure is not a positive number"
        if math.isfinite(value)
        else "the throughput of this build is not known"
    )


def test_absolute_limits_need_no_baseline(run: RunGate) -> None:
    limits = {
        "latency": {"tolerance": None, "limit": 0.001},
        "size": {"tolerance": None, "limit": 999},
    }
    result = run(limits)
    assert result.status == "failed"
    assert result.reason == "latency is 2.00 ms; at most 1.00 ms is allowed (also: size)"
    assert run({"size": {"tolerance": None, "limit": 1000}}).status == "passed"
    near = run({"latency": {"tolerance": None, "limit": 0.0019999}})
    assert near.reason == "latency is 2.00 ms (0.005 % beyond); at most 2.00 ms is allowed"


def test_without_a_baseline_nothing_passes_that_is_relative(run: RunGate) -> None:
    result = run({**LATENCY, "size": {"tolerance": 0.02, "limit": None}})
    assert result.status == "unavailable"
    assert result.reason == "latency is not comparable: there is no earlier build (also: size)"
    assert result.hint == "the next build is compared with this one"  # this gate is up to date
    assert result.figures["figures"] == {"size": 1000}  # for the next build
    assert result.figures["rounds"] == {}  # whose gate measures this one again


def test_an_earlier_build_with_other_libraries_is_not_comparable_in_time(run: RunGate) -> None:
    changed = {**BASELINE, "reason": "onnxruntime changed since the baseline was built"}
    result = run({**LATENCY, "size": {"tolerance": 0.02, "limit": None}}, baseline=changed)
    assert result.status == "unavailable"
    assert result.reason == (
        "latency is not comparable: onnxruntime changed since the baseline was built"
    )
    assert result.hint == "the next build is compared with this one"
    latency, size = result.figures["checks"]
    assert (latency["status"], size["status"]) == ("not comparable", "passed")
    assert result.figures["rounds"] == {}


def test_an_accepted_build_is_compared_with_its_limits_only(run: RunGate) -> None:
    accepted = {"current": "3fa2", "accepted": "a wider network"}
    result = run(LATENCY, baseline=accepted, slower=0.5)
    assert (result.status, result.figures["rounds"]) == ("passed", {})
    assert result.figures["baseline"]["description"] == "a wider network"
    assert key_figure("gate", result.figures) == "latency accepted: a wider network"
    given = Result("gate:m:ort", "passed", parse(result.figures, GateResult))
    assert table([given]).notes == ("ort is accepted: a wider network",)
    limited = {"latency": {"tolerance": 0.05, "limit": 0.001}}
    assert run(limited, baseline=accepted).status == "failed"


def test_without_an_engine_the_gate_is_unavailable(tmp_path: Path) -> None:
    job = Job("gate:m:ort", "gate", "m", "ort", {"gates": {}}, {}, {}, tmp_path)
    assert gate.run(job).status == "unavailable"


def evaluated(value: float, *, name: str = "ort", **fields: Any) -> dict[str, Any]:
    """Return the result of an evaluation."""
    shared = {"is_share": True, "higher_is_better": True, "identity": "samples"}
    return {"target": f"evaluate:m:{name}", "value": value, **shared, **fields}


ERRORS = {"is_share": False, "higher_is_better": False}
LOSSES = [  # before, within 1 %, beyond, its words
    ({}, 0.97, 0.961, 0.959, "1.1 % worse than that of BEFORE: 0.9700 before, 0.9590 now"),
    ({"higher_is_better": False}, 0.2, 0.209, 0.211, "1.1 % worse"),
    (ERRORS, 20.0, 20.1, 20.3, "1.5 % worse than that of BEFORE: 20.00 before, 20.30 now"),
    ({"is_share": False}, -2.0, -2.01, -2.1, "5.0 % worse"),
    (ERRORS, 0.0, 0.0, 0.1, "inf % worse"),
]


@pytest.mark.parametrize(("fields", "before", "within", "beyond", "words"), LOSSES)
@pytest.mark.parametrize("kind", ["build", "engine"])
def test_a_metric_may_lose_its_drop_against_the_baseline(
    run: RunGate, fields: dict[str, Any], before: float, within: float, beyond: float, words: str,
    kind: str,
) -> None:  # fmt: skip
    figures = {"figures": {"accuracy": before}, "evaluated": "samples"}
    given: dict[str, Any] = {"baseline": {**BASELINE, **figures}}
    files, described = {}, BASELINE["description"]
    if kind == "engine":
        given, described = {"other": "fast"}, "the engine fast"
        files = {"baseline.evaluated": evaluated(before, name="fast", **fields)}

    def gate_of(value: float) -> StageResult:
        own = {"evaluated": evaluated(value, **fields), **files}
        return run({"accuracy": {"drop": 0.01}}, **given, results=own)

    for passing in (before, within, before + (before - beyond)):
        assert gate_of(passing).status == "passed"
    result = gate_of(beyond)
    assert result.status == "failed"
    assert words.replace("BEFORE", str(described)) in result.reason
    assert "1.0 % is allowed" in result.reason
    assert result.figures["figures"]["accuracy"] == beyond
    assert result.figures["evaluated"] == "samples"  # for the next build


def test_metrics_of_other_samples_are_not_comparable(run: RunGate) -> None:
    gates = {"accuracy": {"drop": 0.01}}
    earlier = {**BASELINE, "figures": {"accuracy": 0.9}, "evaluated": "others"}
    result = run(gates, baseline=earlier, results={"evaluated": evaluated(0.5)})
    assert result.status == "unavailable"
    assert result.reason.endswith("was evaluated on other samples or by another metric")
    without = run(gates, baseline=BASELINE, results={"evaluated": evaluated(0.5)})
    assert without.reason.endswith("(engine 3fa2c1d4e5f6) is not known")
    first = run(gates, results={"evaluated": evaluated(0.5)})
    assert first.reason == "accuracy is not comparable: there is no earlier build"
    unknown = run(gates, baseline=earlier, results={"evaluated": {"target": "evaluate:m:ort"}})
    assert unknown.reason == "the accuracy of this build is not known"
    assert unknown.hint == "see `buildsys explain evaluate:m:ort`"
