"""Percentiles, intervals, throughput and noise of latency samples."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from buildsys.backends.measurement import Samples
from buildsys.history.statistics import median, median_interval
from buildsys.manifest.default_limits import STEADY_INTERVAL
from buildsys.report.formatting import percent
from buildsys.stages.bench.result import (
    COLD_TIMES,
    ENGINE_CONTENDERS,
    BenchCase,
    ColdStart,
    ContenderResult,
    Latencies,
    engine_contender,
    median_doubt,
)
from buildsys.system.devices import throttled

NS_PER_MS = 1_000_000
PERCENTILES = (50, 90, 95, 99)
_PIECE_NS = 100 * NS_PER_MS  # samples closer than this share the state of the machine


def summarize(blocks: Sequence[Samples], batch: int) -> ContenderResult:
    """Summarize figures by the host's clock, and by the GPU's in ``gpu``.

    Throughput, in items per second, counts all inferences over their time by the host's clock;
    ``gpu.throughput_per_s`` counts queued inferences.
    """

    def throughput(count: int, taken_ns: int) -> float | None:
        return batch * count * 1e9 / taken_ns if taken_ns else None

    whole = Samples.joined(blocks)
    figures = cast(ContenderResult, _describe([block.wall_ns for block in blocks]))
    figures["throughput_per_s"] = throughput(len(whole.wall_ns), whole.elapsed_ns)
    if whole.gpu_ns:
        figures["gpu"] = _describe([block.gpu_ns for block in blocks])
        if whole.queued_ns:
            queued = throughput(len(whole.gpu_ns), whole.queued_ns)
            figures["gpu"]["throughput_per_s"] = queued
    return figures


def _describe(blocks_ns: Sequence[Sequence[int]]) -> Latencies:
    """Compute samples, mean, percentiles and extremes in ms, and their variation.

    The variation is the standard deviation over the mean. The interval is that of the median over
    medians of pieces of the blocks: consecutive samples are not independent, and an interval over
    them would be many times too narrow. It always contains the median of all samples, in which slow
    pieces count less, as they have fewer samples.
    """
    samples_ms = [round(sample / NS_PER_MS, 6) for block in blocks_ns for sample in block]
    mean = float(np.mean(samples_ms))
    deviation = float(np.std(samples_ms, ddof=1)) if len(samples_ms) > 1 else 0.0
    percentiles = zip(PERCENTILES, np.percentile(samples_ms, PERCENTILES), strict=True)
    pieces = [float(np.median(piece)) for block in blocks_ns for piece in _pieces(block)]
    interval = median_interval(pieces)
    p50_ns = float(np.median(samples_ms)) * NS_PER_MS
    figures = {
        "samples_ms": samples_ms,
        "count": len(samples_ms),
        "blocks": len(blocks_ns),
        "mean_ms": mean,
        **{f"p{percent}_ms": float(latency) for percent, latency in percentiles},
        "p50_interval_ms": interval
        and [
            round(end / NS_PER_MS, 6)
            for end in (min(interval.low, p50_ns), max(interval.high, p50_ns))
        ],
        "min_ms": min(samples_ms),
        "max_ms": max(samples_ms),
        "variation": deviation / mean if mean else 0.0,
    }
    return cast(Latencies, figures)


def _pieces(block: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield consecutive pieces of at least ``_PIECE_NS``, or a shorter block."""
    first, taken = 0, 0
    rest = sum(block)
    for number, sample in enumerate(block):
        taken, rest = taken + sample, rest - sample
        if taken >= _PIECE_NS and rest >= _PIECE_NS:
            yield block[first : number + 1]
            first, taken = number + 1, 0
    if first < len(block):
        yield block[first:]


def noise(case: str, figures: BenchCase, limits: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence per reason to doubt the figures of one case.

    ``limits`` are those of the manifest's ``bench.noise``; None is no limit. The median of a
    baseline that is certainly slower than the engine need not be known well.
    """
    contenders, limit = figures["contenders"], limits["interval"]
    engine = contenders[engine_contender(contenders)]
    for name, contender in contenders.items():
        is_baseline = name not in ENGINE_CONTENDERS
        if limit is None or (is_baseline and _is_certainly_slower(contender, engine)):
            continue
        latencies = _decisive(contender)
        ends = latencies.get("p50_interval_ms")
        if ends is None and "cut_to_s" not in figures:  # the manifest asks for a short duration
            ends = _interval_of_samples(latencies)
        if reason := median_doubt(latencies["p50_ms"], ends, limit):
            yield f"{name}, case {case}: {reason}"
    yield from disturbances(case, figures, limits)


def disturbances(case: str, figures: BenchCase, limits: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence per reason to doubt all contenders of a case."""
    counts = {contender["blocks"] for contender in figures["contenders"].values()}
    if len(counts) > 1:
        yield f"case {case}: the contenders were timed in {min(counts)} to {max(counts)} blocks"
    if limits["throttling"] is not None:
        yield from throttled(case, figures.get("gpu", {}), limits["throttling"])
    share, limit = figures.get("others_share"), limits["other_load"]
    if share is not None and limit is not None and share > limit:
        yield f"case {case}: other processes used {percent(share, 0)} of the processors"


def mark_noisy(
    contenders: Mapping[str, ContenderResult],
    limits: Mapping[str, Any] | None,
    disturbance: str = "",
) -> None:
    """Set ``noisy`` in contenders whose medians are not steady; a ``disturbance`` concerns all.

    A manifest may accept wider intervals than the default, or too few samples for one, but such a
    median is compared with nothing.
    """
    accepted = (limits or {}).get("interval")
    limit = STEADY_INTERVAL if accepted is None else min(accepted, STEADY_INTERVAL)
    for contender in contenders.values():
        latencies = _decisive(contender)
        doubt = median_doubt(latencies["p50_ms"], latencies.get("p50_interval_ms"), limit)
        if reason := doubt or disturbance:
            contender["noisy"] = reason


def mark_noisy_starts(figures: ColdStart) -> None:
    """Set ``noisy`` to the times of fresh processes whose medians are not steady."""
    times: Mapping[str, Any] = figures
    doubts: dict[str, str] = {}
    for name in COLD_TIMES:
        if values := times.get(name):
            interval = median_interval(values)
            # few processes: all of them
            ends = interval[::2] if interval else (min(values), max(values))
            doubts[name] = median_doubt(median(values), ends if len(values) > 1 else None)
    if noisy := {name: doubt for name, doubt in doubts.items() if doubt}:
        figures["noisy"] = noisy


def _decisive(contender: ContenderResult) -> Latencies:
    """Choose the latencies by the GPU's clock, as the host's is noisier, if there is one."""
    return contender.get("gpu", contender)


def _is_certainly_slower(contender: ContenderResult, engine: ContenderResult) -> bool:
    """Compare intervals of medians by every clock of both; False if one is not known."""
    clocks: list[tuple[Latencies, Latencies]] = [(contender, engine)]
    if "gpu" in contender and "gpu" in engine:
        clocks.append((contender["gpu"], engine["gpu"]))
    ends = [(slow["p50_interval_ms"], fast["p50_interval_ms"]) for slow, fast in clocks]
    return all(slow and fast and slow[0] > fast[1] for slow, fast in ends)


def _interval_of_samples(figures: Latencies) -> list[float]:
    """Compute the interval over single samples: a lower bound in width."""
    interval = median_interval(figures["samples_ms"])
    return [interval.low, interval.high] if interval else [figures["min_ms"], figures["max_ms"]]
