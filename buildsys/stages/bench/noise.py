"""Reasons to doubt the figures of a benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from buildsys.system.gpus.sampling import throttled

# An idle machine shows up to 0.09 with two threads; one busy neighbour causes 0.2 and more.
_NOISY_VARIATION = 0.15
_NOISY_OTHERS = 0.1  # share of all processors


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
