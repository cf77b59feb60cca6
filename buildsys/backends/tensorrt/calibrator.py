"""Calibration of int8 ranges by TensorRT's builder, up to TensorRT 10."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from buildsys.backends.cuda.device import Device
from buildsys.backends.interface import Calibration
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.enum_tables import DTYPES
from buildsys.backends.tensorrt.library import Library
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array
from buildsys.system.files import replace_file

_KEY = re.compile(r"(\d+)/(.+)")
Batch = Mapping[str, Array]


def read_batches(file: Path, inputs: Mapping[str, Sequence[int]]) -> list[Batch]:
    """Return the batches of an .npz file of arrays ``INDEX/INPUT``.

    ``inputs`` has the shapes of the network's inputs, -1 for a dynamic dimension.
    Raises: StageError: there is no batch, an input is missing, or a shape does not fit the network
    or the others.
    """
    batches: dict[int, dict[str, Array]] = {}
    with np.load(file) as archive:
        for key in archive.files:
            match = _KEY.fullmatch(key)
            if match:
                batches.setdefault(int(match[1]), {})[match[2]] = archive[key]
    if not batches:
        text = f"there is no batch to calibrate with in {file.name}"
        raise StageError(text, "give calibration data")
    found: list[Batch] = [batches[index] for index in sorted(batches)]
    for number, batch in enumerate(found):
        for name, shape in inputs.items():
            _check(number, name, batch, shape, found[0])
    return found


def attach_calibrator(
    library: Library, builder: Any, config: Any, network: Any, calibration: Calibration
) -> Any:
    """Calibrate on the given batches; keep the result until the build ends.

    Raises: StageError: the batches do not fit the network.
    """
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    dtypes = DTYPES.words(library)
    shapes = {tensor.name: tuple(tensor.shape) for tensor in inputs}
    types = {tensor.name: np.dtype(dtypes[tensor.dtype]) for tensor in inputs}
    batches: list[Batch] = [
        {name: np.ascontiguousarray(batch[name], types[name]) for name in shapes}
        for batch in read_batches(calibration.batches, shapes)
    ]
    feed = BatchFeed(batches)
    calibrator = _calibrator(library, feed, calibration)
    profile = builder.create_optimization_profile()
    for name, shape in shapes.items():
        size = batches[0][name].shape
        if -1 in shape:
            profile.set_shape(name, size, size, size)
    version_adapter.set_calibrator(library, config, calibrator, profile)
    return calibrator, feed, profile


class BatchFeed:
    """Batches, uploaded to the GPU one after the other."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = iter(batches)
        shape = next(iter(batches[0].values())).shape
        self.batch_size = int(shape[0]) if shape else 1
        self._device = Device(0)
        with self._device.current():
            self._buffers = {
                name: self._device.allocate(array.nbytes) for name, array in batches[0].items()
            }

    def next_addresses(self, names: Sequence[str]) -> list[int] | None:
        """Return the next batch's device addresses; None after the last."""
        batch = next(self._batches, None)
        if batch is None:
            return None
        with self._device.current():
            for name in names:
                self._buffers[name].upload(batch[name])
        return [self._buffers[name].address for name in names]


def _calibrator(library: Library, feed: BatchFeed, calibration: Calibration) -> Any:
    base = version_adapter.calibrator_base(library, calibration.algorithm)

    class Calibrator(base):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            base.__init__(self)

        def get_batch_size(self) -> int:
            return feed.batch_size

        def get_batch(self, names: Sequence[str]) -> list[int] | None:
            return feed.next_addresses(names)

        def read_calibration_cache(self) -> bytes | None:
            return calibration.cache.read_bytes() if calibration.cache.is_file() else None

        def write_calibration_cache(self, cache: Any) -> None:
            replace_file(calibration.cache, bytes(cache))

    return Calibrator()


def _check(number: int, name: str, batch: Batch, shape: Sequence[int], first: Batch) -> None:
    what = f"batch {number} of the calibration data has"
    if name not in batch:
        raise StageError(f"{what} no input {name}, only {', '.join(batch)}")
    found = batch[name].shape
    if len(found) != len(shape) or any(
        size not in (-1, own) for size, own in zip(shape, found, strict=True)
    ):
        expected = [size if size >= 0 else "any" for size in shape]
        raise StageError(f"{what} {name} of shape {list(found)}, not {expected}")
    if found != first[name].shape:
        raise StageError(
            f"{what} {name} of shape {list(found)}, and batch 0 has {list(first[name].shape)}",
            "TensorRT calibrates with batches of one shape",
        )
