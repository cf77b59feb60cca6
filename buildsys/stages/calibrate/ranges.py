"""Value ranges of float32 tensors over the calibration batches.

Tensors are measured in groups of limited memory. Source of the entropy method: TensorRT's
calibrator, S. Migacz, "8-bit inference with TensorRT", GTC 2017. With the method of
onnxruntime.quantization, 128 bins clip nothing, and 2048 took 18 times as long for resnet18 and
doubled the error of its outputs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from buildsys.backends.onnxruntime.session import OrtGraph, session_options
from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import save_model
from buildsys.onnx_graphs.tensor_types import FreshNames, element_types
from buildsys.onnx_graphs.tensors import Array
from buildsys.stages.calibrate.batches import Batch
from buildsys.stages.common.node_patterns import tensor_origin
from buildsys.stages.operators.implementation import implementation_of
from buildsys.workers.job import Job

Values = Callable[[Batch], dict[str, Array]]
_GROUP_BYTES = 1 << 30
BINS = 4096  # at least half of them are below the largest value
_LEVELS = 128  # int8 magnitudes
# Below this number of values, squeezed features of a few images lost 80 % of their range
# (mobilenet_v3).
_MIN_VALUES = 4 * BINS
_STRIDE = 8  # bins between two tested ranges
SCHEMA = "buildsys/ranges/1"


class IntermediateTensors:
    """The float32 inputs and results of a graph, in graph order."""

    def __init__(self, job: Job, model: ModelProto) -> None:
        """Take a job's graph, which may change for its custom operators."""
        implementation = implementation_of(job)
        implementation.apply(model)
        self._job, self._model, self._libraries = job, model, implementation.libraries
        self.nodes: Sequence[NodeProto] = model.graph.node
        types = element_types(model)
        stored = {tensor.name for tensor in model.graph.initializer}
        self._ports, self._inner = (
            [name for name in names if types.get(name) == TensorProto.FLOAT and name not in stored]
            for names in (
                [value.name for value in model.graph.input],
                [name for node in model.graph.node for name in node.output if name],
            )
        )
        self.names = [*self._ports, *self._inner]

    def groups(self, batch: Batch) -> Iterator[Values]:
        """Yield functions for groups of tensors, sized by their bytes for ``batch``."""
        yield lambda other: {name: other[name].array for name in self._ports}
        for group in self._grouped(batch, self._inner, _GROUP_BYTES):
            yield self._values(group)

    def compared(
        self, other: IntermediateTensors, batch: Batch
    ) -> Iterator[tuple[str, Array, Array]]:
        """Yield each result that both graphs have, with the values of both.

        Only a group of limited memory is computed at a time.
        """
        names = set(other._inner)
        common = [name for name in self._inner if name in names]
        for group in self._grouped(batch, common, _GROUP_BYTES // 2):
            own, others = self._values(group)(batch), other._values(group)(batch)
            yield from ((name, own.pop(name), others.pop(name)) for name in group)

    def _grouped(self, batch: Batch, names: Sequence[str], limit: int) -> Iterator[list[str]]:
        """Group tensors by their bytes, measured by Size nodes."""
        fresh = FreshNames(self._model.graph)
        probes = {name: fresh.new(f"{name}_size") for name in names}
        nodes = [helper.make_node("Size", [name], [probe]) for name, probe in probes.items()]
        outputs = [
            helper.make_tensor_value_info(probe, TensorProto.INT64, []) for probe in probes.values()
        ]
        counts = self._open(nodes, outputs).run(batch) if probes else {}
        group: list[str] = []
        room = limit
        for name, probe in probes.items():
            size = 4 * int(counts[probe].array)
            if group and size > room:
                yield group
                group, room = [], limit
            group.append(name)
            room -= size
        if group:
            yield group

    def _values(self, names: Sequence[str]) -> Values:
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
        graph = self._open([], outputs)
        return lambda batch: {name: tensor.array for name, tensor in graph.run(batch).items()}

    def _open(self, nodes: Sequence[NodeProto], outputs: Sequence[ValueInfoProto]) -> OrtGraph:
        """Open a copy with additional nodes and other outputs."""
        model = ModelProto()
        model.CopyFrom(self._model)
        model.graph.node.extend(nodes)
        del model.graph.output[:]
        model.graph.output.extend(outputs)
        options = session_options(optimization="disable", intra_op_threads=self._job.threads)
        # by path: a graph in memory is limited to 2 GiB
        with TemporaryDirectory(dir=self._job.outputs["result"].parent) as folder:
            path = Path(folder) / "tensors.onnx"
            save_model(model, path)
            return OrtGraph(path, options, libraries=self._libraries)


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

    def add(self, values: Array, *, counted: bool) -> None:
        """Add the values of one batch; without ``counted`` only their extremes."""
        if values.size == 0:
            return
        low, high = float(values.min()), float(values.max())
        if not np.isfinite(low - high):
            self.is_finite = False
            self.has_nan = self.has_nan or bool(np.isnan(low))
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

    def range(self, algorithm: str, percent: float | None) -> Range:
        """Choose the range by ``entropy``, ``percentile`` or ``minmax``."""
        if self.low > self.high:
            return Range(0.0, 0.0, 0.0)  # empty in every batch
        limit = self.entropy() if algorithm == "entropy" else self.largest
        if algorithm == "percentile" and percent is not None:
            limit = self.percentile(percent)
        return Range(self.low, self.high, limit)

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


@dataclass(frozen=True)
class Range:
    """The extremes of one tensor, and its clipping magnitude."""

    low: float
    high: float
    limit: float

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high))


Ranges = Mapping[str, Range]


def measure(
    tensors: IntermediateTensors,
    batches: Callable[[], Iterable[Batch]],
    needed: Collection[str],
    *,
    counted: bool,
) -> dict[str, Magnitudes]:
    """Measure every finite tensor over all batches, in graph order.

    Attention masks are infinite: only a NaN, or an infinity in a ``needed`` tensor, is an error.

    Raises: StageError: names the first such tensor and its node.
    """
    measured = {name: Magnitudes() for name in tensors.names}
    for graph in tensors.groups(next(iter(batches()))):
        for batch in batches():
            for name, values in graph(batch).items():
                measured[name].add(values, counted=counted)
    infinite = [name for name, magnitudes in measured.items() if not magnitudes.is_finite]
    broken = next((name for name in infinite if name in needed or measured[name].has_nan), None)
    if broken is not None:
        raise StageError(
            f"{tensor_origin(broken, tensors.nodes)} is NaN or infinite on the calibration data",
            "check the data; golden inputs of another kind can hide this",
        )
    return {name: magnitudes for name, magnitudes in measured.items() if magnitudes.is_finite}


def save_ranges(path: Path, ranges: Ranges, about: Mapping[str, Any]) -> None:
    """Write ranges as JSON; equal ranges give equal bytes."""
    tensors = {name: asdict(span) for name, span in ranges.items()}
    path.write_text(
        json.dumps({"schema": SCHEMA, **about, "tensors": tensors}, indent=1) + "\n",
        encoding="utf-8",
    )


def load_ranges(path: Path) -> dict[str, Range]:
    """Read a file by ``save_ranges``.

    Raises: StageError: the file is damaged.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["schema"] != SCHEMA:
            raise ValueError(f"its schema is {stored['schema']}")
        return {name: Range(**span) for name, span in stored["tensors"].items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StageError(
            f"{path.name} contains no ranges: {error}", "rebuild the calibrate target"
        ) from error
