"""Value ranges of float32 tensors over the calibration batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnx import NodeProto

from buildsys.errors import StageError
from buildsys.stages.convert.overflow import OverflowOrigin
from buildsys.stages.quantize.batches import Batch
from buildsys.stages.quantize.histogram import Magnitudes
from buildsys.stages.quantize.intermediate_tensors import IntermediateTensors

SCHEMA = "buildsys/ranges/1"


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
    tensors: IntermediateTensors, batches: Callable[[], Iterable[Batch]], *, counted: bool
) -> dict[str, Magnitudes]:
    """Return the magnitudes of every tensor over all batches, in graph order.

    Raises: StageError: a tensor is not finite; names the first one and its node.
    """
    found = {name: Magnitudes() for name in tensors.names}
    for graph in tensors.groups(next(iter(batches()))):
        for batch in batches():
            for name, values in graph(batch).items():
                found[name].add(values, counted=counted)
    broken = next((name for name, magnitudes in found.items() if not magnitudes.is_finite), None)
    if broken is not None:
        raise StageError(
            f"{tensor_origin(broken, tensors.nodes)} is NaN or infinite on the calibration data",
            "check the data; golden inputs of another kind can hide this",
        )
    return found


def range_of(magnitudes: Magnitudes, algorithm: str, percentile: float | None) -> Range:
    """Return the range of one tensor by ``entropy``, ``percentile`` or ``minmax``."""
    if magnitudes.low > magnitudes.high:
        return Range(0.0, 0.0, 0.0)  # empty in every batch
    limit = magnitudes.largest
    if algorithm == "entropy":
        limit = magnitudes.entropy()
    elif algorithm == "percentile" and percentile is not None:
        limit = magnitudes.percentile(percentile)
    return Range(magnitudes.low, magnitudes.high, limit)


def save_ranges(path: Path, ranges: Ranges, about: Mapping[str, Any]) -> None:
    """Write ranges as JSON; equal ranges give equal bytes."""
    tensors = {name: asdict(found) for name, found in ranges.items()}
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
        return {name: Range(**found) for name, found in stored["tensors"].items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StageError(
            f"{path.name} contains no ranges: {error}", "rebuild the calibrate target"
        ) from error


def tensor_origin(tensor: str, nodes: Iterable[NodeProto]) -> str:
    """Return a tensor and its producer, followed by a comma."""
    node = next((node for node in nodes if tensor in node.output), None)
    return str(
        OverflowOrigin(tensor) if node is None else OverflowOrigin(tensor, node.op_type, node.name)
    )
