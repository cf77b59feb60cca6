"""Sizes at which runtimes resize to another number of rows, or take other rows, than PyTorch.

PyTorch computes the number of rows in float64 and ONNX Runtime in float32, and the nearest row by
a product or a quotient. Both follow from the size alone, so they are computed for whole ranges.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from buildsys.manifest.shape_cases import DimRange, Dims, allowed_sizes

_INTERPOLATE = inspect.signature(functional.interpolate)
_MOST = 2  # sizes of one axis of a call
_MOST_SCANNED = 4096


class Resize(NamedTuple):
    """One axis of one call of ``interpolate`` in a case."""

    case: str
    call: int
    axis: int
    size: int  # of the input
    scale: float | None
    target: int | None
    is_nearest: bool


class ResizeRecorder(TorchFunctionMode):
    """Record the calls of ``interpolate`` in the case ``case``."""

    def __init__(self) -> None:
        super().__init__()
        self.case = ""
        self.resizes: list[Resize] = []
        self._calls = 0

    def start(self, case: str) -> "ResizeRecorder":
        """Count the calls of a case."""
        self.case, self._calls = case, 0
        return self

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of PyTorch."""
        if func is functional.interpolate:
            self._record(_INTERPOLATE.bind(*args, **(kwargs or {})).arguments)
        return func(*args, **(kwargs or {}))

    def _record(self, arguments: Mapping[str, Any]) -> None:
        self._calls += 1
        is_nearest = arguments.get("mode", "nearest") == "nearest"
        for axis, length in enumerate(arguments["input"].shape[2:]):
            scale, target = (
                value[axis] if isinstance(value, tuple | list | torch.Size) else value
                for value in (arguments.get("scale_factor"), arguments.get("size"))
            )
            if scale is not None or target is not None:
                scale = None if scale is None else float(scale)
                target = None if target is None else int(target)
                place = self.case, self._calls, axis, int(length)
                self.resizes.append(Resize(*place, scale, target, is_nearest))


def rounded_apart(
    resizes: Sequence[Resize], spans: Mapping[str, DimRange], cases: Mapping[str, Dims]
) -> Iterator[tuple[str, int]]:
    """Yield dimensions and sizes at which a recorded resize may differ between runtimes."""
    calls: dict[tuple[int, int], list[Resize]] = {}
    for resize in resizes:
        calls.setdefault((resize.call, resize.axis), []).append(resize)
    for recorded in calls.values():
        for name, span in spans.items():
            points = {cases[resize.case][name]: resize.size for resize in recorded}
            sizes = allowed_sizes(span)
            low, high = min(points), max(points)
            if low == high or points[low] == points[high]:
                continue
            slope = (points[high] - points[low]) / (high - low)
            scanned = sizes[:: len(sizes) // _MOST_SCANNED + 1]
            lengths = {size: round(points[low] + slope * (size - low)) for size in scanned}
            if any(abs(lengths.get(size, length) - length) > 1 for size, length in points.items()):
                continue  # of another dimension
            apart = [
                size for size, length in lengths.items() if is_rounded_apart(recorded[0], length)
            ]
            yield from ((name, size) for size in apart[: _MOST - 1] + apart[-1:])


def is_rounded_apart(resize: Resize, length: int) -> bool:
    """Check if a resize of ``length`` rows gives other rows in float32."""
    single, scale, target = np.float32, resize.scale, resize.target
    if length < 1:
        return False
    if scale is not None:
        rows = int(np.floor(length * scale))
        if rows != int(np.floor(single(length) * single(scale))):
            return True
        step, inverse = single(1 / scale), single(scale)
    else:
        rows = int(target or 0)
        step, inverse = single(length) / single(rows), single(rows) / single(length)
    places = np.arange(rows, dtype=single)
    return resize.is_nearest and bool((np.floor(places * step) != np.floor(places / inverse)).any())
