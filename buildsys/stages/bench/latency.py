"""Percentiles, throughput and noise of latency samples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from buildsys.backends.measurement.contenders import Samples
from buildsys.report.results.bench import ContenderResult, Latencies
from buildsys.system.gpus.sampling import throttled

NS_PER_MS = 1_000_000
PERCENTILES = (50, 90, 95, 99)
# An idle machine shows up to 0.09 with two threads; one busy neighbour causes 0.2 and more.
_NOISY_VARIATION = 0.15
_NOISY_OTHERS = 0.1  # share of all processors


def percentile(ascending: Sequence[float], percent: float) -> float:
    """Return a percentile of sorted samples by linear interpolation.

    The lowest sample is the 0th percentile and the highest the 100th, as in ``numpy.percentile``.
    """
    if not ascending:
        raise ValueError("no samples")
    position = (len(ascending) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ascending) - 1)
    low, high = ascending[below], ascending[above]
    return min(max(low + (high - low) * (position - below), low), high)


def variation(samples: Sequence[float]) -> float:
    """Return the coefficient of variation: standard deviation over mean."""
    if len(samples) < 2:
        return 0.0
    mean = math.fsum(samples) / len(samples)
    if mean == 0:
        return 0.0
    return (
        math.sqrt(math.fsum((sample - mean) ** 2 for sample in samples) / (len(samples) - 1)) / mean
    )


def summarize(samples_ns: Sequence[int], batch: int) -> ContenderResult:
    """Return samples and percentiles in ms, and throughput in items per second.

    Throughput is ``batch`` over the mean latency, as calls never overlap.
    """
    figures = cast(ContenderResult, describe(samples_ns))
    mean_ms = figures["mean_ms"]
    figures["throughput_per_s"] = batch * 1000 / mean_ms if mean_ms else None
    return figures


def summarize_gpu(samples: Samples, batch: int) -> ContenderResult:
    """Return figures by the host's clock, and by the GPU's in ``gpu``.

    Throughput counts all inferences over their time by the host's clock;
    ``gpu.throughput_per_s`` counts queued inferences.
    """
    gpu = describe(samples.gpu_ns)
    if samples.queued_ns:
        gpu["throughput_per_s"] = _throughput(batch, len(samples.gpu_ns), samples.queued_ns)
    figures = cast(ContenderResult, describe(samples.wall_ns))
    figures["throughput_per_s"] = _throughput(batch, len(samples.wall_ns), samples.elapsed_ns)
    figures["gpu"] = gpu
    return figures


def describe(samples_ns: Sequence[int]) -> Latencies:
    """Return samples, mean, percentiles and extremes in ms, and their variation."""
    samples_ms = [round(sample / NS_PER_MS, 6) for sample in samples_ns]
    ascending = sorted(samples_ms)
    percentiles = {f"p{percent}_ms": percentile(ascending, percent) for percent in PERCENTILES}
    figures = {
        "samples_ms": samples_ms,
        "count": len(samples_ms),
        "mean_ms": math.fsum(samples_ms) / len(samples_ms),
        **percentiles,
        "min_ms": ascending[0],
        "max_ms": ascending[-1],
        "variation": variation(samples_ms),
    }
    return cast(Latencies, figures)


def _throughput(batch: int, count: int, taken_ns: int) -> float | None:
    return batch * count * 1e9 / taken_ns if taken_ns else None


def noise(cases: Mapping[str, Any], others_share: float | None) -> Iterator[str]:
    """Yield a sentence per reason to doubt the figures."""
    for case, figures in cases.items():
        for name, contender in figures["contenders"].items():
            # the host's clock is noisier than the GPU's
            variation = contender.get("gpu", contender)["variation"]
            if variation > _NOISY_VARIATION:
                yield f"{name}, case {case}: the latencies vary by {variation:.0%} of their mean"
        yield from throttled(case, figures.get("gpu", {}))
    if others_share is not None and others_share > _NOISY_OTHERS:
        yield f"other processes used {others_share:.0%} of the processors during the benchmark"
