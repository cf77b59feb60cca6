"""Percentiles, throughput and noise of latency samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from buildsys.backends.measurement.contenders import Samples
from buildsys.report.results.bench import ContenderResult, Latencies
from buildsys.system.gpus.sampling import throttled

NS_PER_MS = 1_000_000
PERCENTILES = (50, 90, 95, 99)
# An idle machine shows up to 0.09 with two threads; one busy neighbour causes 0.2 and more.
_NOISY_VARIATION = 0.15
_NOISY_OTHERS = 0.1  # share of all processors


def summarize(samples: Samples, batch: int) -> ContenderResult:
    """Return figures by the host's clock, and by the GPU's in ``gpu``.

    Throughput, in items per second, counts all inferences over their time by the host's clock;
    ``gpu.throughput_per_s`` counts queued inferences.
    """

    def throughput(count: int, taken_ns: int) -> float | None:
        return batch * count * 1e9 / taken_ns if taken_ns else None

    figures = cast(ContenderResult, _describe(samples.wall_ns))
    figures["throughput_per_s"] = throughput(len(samples.wall_ns), samples.elapsed_ns)
    if samples.gpu_ns:
        figures["gpu"] = _describe(samples.gpu_ns)
        if samples.queued_ns:
            queued = throughput(len(samples.gpu_ns), samples.queued_ns)
            figures["gpu"]["throughput_per_s"] = queued
    return figures


def _describe(samples_ns: Sequence[int]) -> Latencies:
    """Return samples, mean, percentiles and extremes in ms, and their variation.

    The variation is the standard deviation over the mean.
    """
    samples_ms = [round(sample / NS_PER_MS, 6) for sample in samples_ns]
    mean = float(np.mean(samples_ms))
    deviation = float(np.std(samples_ms, ddof=1)) if len(samples_ms) > 1 else 0.0
    percentiles = zip(PERCENTILES, np.percentile(samples_ms, PERCENTILES), strict=True)
    figures = {
        "samples_ms": samples_ms,
        "count": len(samples_ms),
        "mean_ms": mean,
        **{f"p{percent}_ms": float(latency) for percent, latency in percentiles},
        "min_ms": min(samples_ms),
        "max_ms": max(samples_ms),
        "variation": deviation / mean if mean else 0.0,
    }
    return cast(Latencies, figures)


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
