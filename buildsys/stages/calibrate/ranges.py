"""Value ranges of float32 tensors over the calibration batches.

Source of the entropy method: TensorRT's
calibrator, S. Migacz, "8-bit inference with TensorRT", GTC 2017. With the method of
onnxruntime.quantization, 128 bins clip nothing, and 2048 took 18 times as long for resnet18 and
doubled the error of its outputs.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array
from buildsys.stages.common.intermediate_tensors import Batch, IntermediateTensors
from buildsys.stages.common.node_patterns import tensor_origin

BINS = 4096  # at least half of them are below the largest value
_LEVELS = 128  # int8 magnitudes
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
    has_nan: bool = False
    span: float = 0.0
    counts: Array = field(default_factory=lambda: np.zeros(BINS, np.int64))

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high)) if self.low <= self.high else 0.0

    def add(self, values: Array) -> None:
        """Add the values of one batch."""
        if values.size == 0:
            return
        low, high = float(values.min()), float(values.max())
        if not np.isfinite(low - high):
            self.is_finite = False
            self.has_nan = self.has_nan or bool(np.isnan(low))
            return
        self.low, self.high = min(self.low, low), max(self.high, high)
        if self.largest > 0.0:
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

    def range(self, algorithm: str, percentile: float = 100.0) -> "Range":
        """Choose the range by ``entropy``, ``percentile`` or ``minmax``."""
        if self.low > self.high:
            return Range(0.0, 0.0)  # empty in every batch
        limit = self.entropy() if algorithm == "entropy" else self.largest
        if algorithm == "percentile":
            limit = self.percentile(percentile)
        return Range(self.largest, limit)

    def percentile(self, percent: float) -> float:
        """Find the magnitude above ``percent`` of all values."""
        total = int(self.counts.sum())
        if total == 0:
            return self.largest
        place = int(np.searchsorted(np.cumsum(self.counts), total * percent / 100.0))
        return float(min(self.largest, (place + 1) * self.span / BINS))

    def entropy(self) -> float:
        """Choose the clipping magnitude with the least information loss in int8."""
        used = int(np.ceil(self.largest / self.span * BINS)) if self.span else 0
        counts = self.counts[:used].astype(np.float64)
        if used <= _LEVELS or self.counts.sum() < _MIN_VALUES:
            return self.largest
        counts[0] = counts[1]  # zeros are exact at every scale
        tried = [*range(_LEVELS, used, _STRIDE), used]
        best = min(tried, key=lambda end: (_divergence(counts, end), -end))
        return float(min(self.largest, best * self.span / BINS))


def _divergence(counts: Array, end: int) -> float:
    """Compute the KL divergence of a distribution cut at ``end`` and quantized."""
    inside = counts[:end]
    reference = inside.copy()
    reference[-1] += counts[end:].sum()
    level = np.arange(end) * _LEVELS // end
    filled = inside > 0
    sums = np.bincount(level, weights=inside, minlength=_LEVELS)
    holders = np.bincount(level, weights=filled, minlength=_LEVELS)
    rounded = np.where(filled, (sums / np.maximum(holders, 1))[level], 0.0)
    if not rounded.any() or np.any((reference > 0) & (rounded == 0)):
        return float(np.inf)
    p, q = reference[reference > 0], rounded[reference > 0]
    p, q = p / p.sum(), q / rounded.sum()
    return float((p * np.log(p / q)).sum())


class Range(NamedTuple):
    """The largest magnitude of a tensor, and its clipping magnitude."""

    largest: float
    limit: float


Ranges = Mapping[str, Range]


def measure(
    tensors: IntermediateTensors, batches: Callable[[], Iterable[Batch]], needed: Collection[str]
) -> dict[str, Magnitudes]:
    """Measure every finite tensor over all batches, in graph order.

    Attention masks are infinite: only a NaN, or an infinity in a ``needed`` tensor, is an error.

    Raises: StageError: names the first such tensor and its node.
    """
    measured = {name: Magnitudes() for name in tensors.names}
    for graph in tensors.groups(next(iter(batches()))):
        for batch in batches():
            for name, values in graph(batch).items():
                measured[name].add(values)
    for name, magnitudes in measured.items():
        if magnitudes.has_nan or (name in needed and not magnitudes.is_finite):
            raise StageError(
                f"{tensor_origin(name, tensors.nodes)} is NaN or infinite on the calibration data",
                "check the data; golden inputs of another kind can hide this",
            )
    return {name: magnitudes for name, magnitudes in measured.items() if magnitudes.is_finite}


def load_ranges(path: Path) -> dict[str, Range]:
    """Read the ranges that the calibrate stage wrote."""
    tensors = json.loads(path.read_text(encoding="utf-8"))["tensors"]
    return {name: Range(**span) for name, span in tensors.items()}
