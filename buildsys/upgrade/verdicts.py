"""Verdicts on engines: what an upgrade has made of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from buildsys.report import formatting as q
from buildsys.report.result_files import NOISY, PASSED, Result, parse, read_result
from buildsys.stages.engine.result import EngineResult
from buildsys.stages.table import ENGINE, VERIFY, target_of
from buildsys.stages.verify.result import VerifyResult
from buildsys.upgrade.sides import Side

WRONG, UNAVAILABLE, LESS_PRECISE = "wrong", "unavailable", "precision lost"
SLOWER, LARGER, FASTER = "slower", "larger", "faster"
UNDECIDED, INCOMPARABLE, UNCHANGED = "undecided", "not comparable", "unchanged"
# the worst first
VERDICTS = (
    WRONG, UNAVAILABLE, LESS_PRECISE, SLOWER, LARGER, UNDECIDED, INCOMPARABLE, FASTER, UNCHANGED,
)  # fmt: skip
HELD = (WRONG, UNAVAILABLE, LESS_PRECISE, SLOWER, LARGER)  # the old version stays
_ERROR_GROWTH = 2.0
_ROUNDING = 1e-5  # an error that other kernels cause in fp32


@dataclass
class EngineChange:
    """An engine on both sides. Latencies in s, sizes and memory in bytes."""

    model: str
    engine: str
    verdicts: list[str] = field(default_factory=list)  # the worst first
    why: list[str] = field(default_factory=list)  # a text for each
    reasons: list[str] = field(default_factory=list)  # why its targets were stale
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)  # before, after, change, …

    @property
    def name(self) -> str:
        """The engine as on the command line."""
        return f"{self.model}:{self.engine}"

    @property
    def verdict(self) -> str:
        """The worst verdict."""
        return min(self.verdicts, key=VERDICTS.index, default=UNCHANGED)

    @property
    def is_held(self) -> bool:
        """True if the old version should stay."""
        return self.verdict in HELD

    def add(self, verdict: str, why: str = "") -> None:
        """Add a verdict."""
        self.verdicts.append(verdict)
        self.why += [why] if why else []


def compare_ends(change: EngineChange, old: Side, new: Side, targets: Sequence[str]) -> bool:
    """Judge how the targets of an engine have ended; tell if both sides have a good one."""
    _, before = old.problem(targets)
    status, after = new.problem(targets)
    if before:
        change.add(INCOMPARABLE, f"before the upgrade, {before}")
    elif after:
        change.add(UNAVAILABLE if status == UNAVAILABLE else WRONG, after)
    return not (before or after)


def compare_results(
    change: EngineChange,
    old: Side,
    new: Side,
    checked: Mapping[str, Any] | None,
    tolerance: float,
) -> bool:
    """Judge errors, precision and size; tell if the engine's files have changed.

    ``checked`` is the result of the new engine's check against the old golden outputs, None if
    these have not changed.
    """
    verified = [_read(change, side, VERIFY, VerifyResult).content for side in (old, new)]
    if checked is not None:
        verified[1] = parse(checked, VerifyResult)
        if checked["status"] != PASSED:
            text = f"against the golden outputs with {old.title}: {checked['reason']}"
            change.add(WRONG, text)
            return True
    built = [_read(change, side, ENGINE, EngineResult).content for side in (old, new)]
    worst = [q.worst_comparison({"": result.get("cases", {})}) for result in verified]
    compare_errors(change, *(error[0] if error else None for error in worst))
    layers = [result.get("int8_layers", {}) for result in built]
    counts = [each.get("int8", 0) for each in layers]
    if counts[1] < counts[0]:
        texts = (
            f"{count} of {each.get('all', 0)}" for count, each in zip(counts, layers, strict=True)
        )
        change.add(LESS_PRECISE, f"layers in int8: {' → '.join(texts)}")
    files: list[dict[str, Any]] = [result.get("files", {}) for result in built]
    sizes = [sum(file["bytes"] for file in each.values()) for each in files]
    change.figures["size"] = {"before": sizes[0], "after": sizes[1]}
    if sizes[1] > sizes[0] * (1 + tolerance):
        change.add(LARGER, f"size {q.size(sizes[0])} → {q.size(sizes[1])}")
    return files[0] != files[1]


def compare_errors(change: EngineChange, first: float | None, second: float | None) -> None:
    """Judge the worst relative errors, unless one is not finite."""
    if first is None or second is None or not math.isfinite(first + second):
        return
    change.figures["error"] = {"before": first, "after": second}
    if second > _ERROR_GROWTH * first and second - first > _ROUNDING:
        change.add(LESS_PRECISE, f"relative error {q.error(first)} → {q.error(second)}")


def needs_more_rounds(checks: Mapping[str, Mapping[str, Any]], tolerance: float) -> bool:
    """Tell if the rounds of a gate leave open what the latency is.

    They are too noisy, or stopped once nothing was worse though they suggest an improvement.
    """
    check, limit = checks.get("latency", {}), _least_gain(tolerance)
    if check.get("high") is None:
        return False
    is_suspected = check["status"] == PASSED and check["change"] < limit <= check["high"]
    return bool(check["status"] == NOISY or is_suspected)


def _least_gain(tolerance: float) -> float:
    """Compute the change back from one by the tolerance."""
    return -tolerance / (1 + tolerance)


def compare_timings(
    change: EngineChange, checks: Mapping[str, Mapping[str, Any]], tolerance: float
) -> None:
    """Judge latency and memory by the checks of a gate."""
    for metric, worse, noisy in (("latency", SLOWER, UNDECIDED), ("memory", LARGER, "")):
        check = checks.get(metric)
        if check is None or check["change"] is None:
            if noisy:
                change.add(INCOMPARABLE, check["text"] if check else "it was not timed")
            continue
        names = ("before", "after", "change", "low", "high", "confidence", "status")
        change.figures[metric] = {name: check[name] for name in names}
        high = check["high"]
        if check["status"] == "failed":
            change.add(worse, check["text"])
        elif check["status"] == NOISY and noisy:
            change.add(noisy, check["text"])
        elif metric == "latency" and high is not None and high < _least_gain(tolerance):
            change.add(FASTER, check["text"])


def _read(change: EngineChange, side: Side, stage: str, kind: Any) -> Result[Any]:
    name = "engine.json" if stage == ENGINE else ""
    folder = side.build / change.model / stage
    file = folder / change.engine / name if name else folder / f"{change.engine}.json"
    target = target_of(stage, change.model, change.engine)
    return read_result(target, file, str(file), kind)
