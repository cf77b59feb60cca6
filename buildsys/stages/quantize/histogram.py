"""Distribution of one tensor's magnitudes over batches, and its clipping range.

Source of the entropy method: TensorRT's calibrator, S. Migacz, "8-bit inference with TensorRT",
GTC 2017.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from buildsys.onnx_graphs.tensors import Array

BINS = 4096  # at least half of them are below the largest value
_LEVELS = 128  # of a magnitude in int8
# Below this number of values, squeezed features of a few images lost 80 % of their range
# (mobilenet_v3).
_MIN_VALUES = 4 * BINS
_STRIDE = 8  # bins between two tested ranges


@dataclass
class Magnitudes:
    """Extremes and a histogram from 0 to ``span``, a power of two."""

    low: float = np.inf
    high: float = -np.inf
    is_finite: bool = True
    span: float = 0.0
    counts: Array = field(default_factory=lambda: np.zeros(BINS, np.int64))

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high)) if self.low <= self.high else 0.0

    @property
    def is_sparse(self) -> bool:
        """Return True if there are too few values for the entropy method."""
        return int(self.counts.sum()) < _MIN_VALUES

    def add(self, values: Array, *, counted: bool) -> None:
        """Add the values of one batch; without ``counted`` only their extremes."""
        if values.size == 0:
            return
        low, high = float(values.min()), float(values.max())
        if not np.isfinite(low - high):
            self.is_finite = False
            return
        self.low, self.high = min(self.low, low), max(self.high, high)
        if counted and self.largest > 0.0:
            if self.span == 0.0:
                self.span = float(np.exp2(np.ceil(np.log2(self.largest))))
            # Bins double until they cover the largest value. They merge in pairs, so counts stay
            # exact and the order of batches does not matter.
            while self.largest > self.span:
                pairs = self.counts.reshape(-1, 2).sum(axis=1)
                self.counts = np.concatenate((pairs, np.zeros(BINS // 2, np.int64)))
                self.span *= 2.0
            places = (np.abs(values.reshape(-1)) * np.float64(BINS / self.span)).astype(np.int64)
            self.counts += np.bincount(np.minimum(places, BINS - 1), minlength=BINS)

    def percentile(self, percent: float) -> float:
        """Return the magnitude above ``percent`` of all values."""
        total = int(self.counts.sum())
        if total == 0:
            return self.largest
        place = int(np.searchsorted(np.cumsum(self.counts), total * percent / 100.0))
        return float(min(self.largest, (place + 1) * self.span / BINS))

    def entropy(self) -> float:
        """Return the clipping magnitude with the least information loss in int8."""
        used = int(np.ceil(self.largest / self.span * BINS)) if self.span else 0
        counts = self.counts[:used].astype(np.float64)
        if used <= _LEVELS or self.is_sparse:
            return self.largest
        counts[0] = counts[1]  # zeros are exact at every scale
        tried = [*range(_LEVELS, used, _STRIDE), used]
        best = min(tried, key=lambda end: (_divergence(counts, end), -end))
        return float(min(self.largest, best * self.span / BINS))


def _divergence(counts: Array, end: int) -> float:
    """Return the KL divergence of a distribution cut at ``end`` and quantized."""
    kept = counts[:end]
    reference = kept.copy()
    reference[-1] += counts[end:].sum()
    level = np.arange(end) * _LEVELS // end
    filled = kept > 0
    sums = np.bincount(level, weights=kept, minlength=_LEVELS)
    holders = np.bincount(level, weights=filled, minlength=_LEVELS)
    rounded = np.where(filled, (sums / np.maximum(holders, 1))[level], 0.0)
    if not rounded.any() or np.any((reference > 0) & (rounded == 0)):
        return float(np.inf)
    p, q = reference[reference > 0], rounded[reference > 0]
    p, q = p / p.sum(), q / rounded.sum()
    return float((p * np.log(p / q)).sum())
