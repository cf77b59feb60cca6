"""Ranges for int8 that TensorRT's builder measures on batches of data, up to TensorRT 10."""

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
    """Return the batches of an .npz file with an array ``INDEX/INPUT`` for each input of each batch.

    ``inputs`` has the shapes of the network's inputs, -1 for a dynamic dimension.
    Raises: StageError: there is no batch, an input is missing, or a shape does not fit the network or the others.
    """
    batches: dict[int, dict[str, Array]] = {}
    with np.load(file) as archive:
        for key in archive.files:
            match = _KEY.fullmatch(key)
            if match:
                batches.setdefault(int(match[1]), {})[match[2]] = archive[key]
    if not batches:
        raise StageError(
            f"there is no batch to calibrate with in {file.name}", "give calibration data"
        )
    found: list[Batch] = [batches[index] for index in sorted(batches)]
    for number, batch in enumerate(found):
        for name, shape in inputs.items():
            _check(number, name, batch, shape, found[0])
    return found


def attach_calibrator(
    library: Library, builder: Any, config: Any, network: Any, given: Calibration
) -> Any:
    """Have a builder measure ranges on the batches that are given; return what must live until the build ends.

    Raises: StageError: the batches do not fit the network.
    """
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    dtypes = DTYPES.words(library)
    shapes = {tensor.name: tuple(tensor.shape) for tensor in inputs}
    types = {tensor.name: np.dtype(dtypes[tensor.dtype]) for tensor in inputs}
    batches = read_batches(given.batches, shapes)
    feed = Feed(
        [
            {name: np.ascontiguousarray(batch[name], types[name]) for name in shapes}
            for batch in batches
        ],
        given,
    )
    calibrator = _calibrator(library, feed)
    profile = builder.create_optimization_profile()
    for name, shape in shapes.items():
        size = batches[0][name].shape
        if -1 in shape:
            profile.set_shape(name, size, size, size)
    version_adapter.set_calibrator(library, config, calibrator, profile)
    return calibrator, feed, profile


class Feed:
    """The batches on their way to the GPU, one after the other, and the file of what was found."""

    def __init__(self, batches: Sequence[Batch], given: Calibration) -> None:
        self.given = given
        self._batches = batches
        self._next = 0
        self._device = Device(0)
        with self._device.current():
            self._buffers = {
                name: self._device.allocate(array.nbytes) for name, array in batches[0].items()
            }

    @property
    def batch_size(self) -> int:
        """Return the first dimension of the first input."""
        shape = next(iter(self._batches[0].values())).shape
        return int(shape[0]) if shape else 1

    def next(self, names: Sequence[str]) -> list[int] | None:
        """Return the device addresses of the next batch's inputs; None after the last."""
        if self._next >= len(self._batches):
            return None
        batch = self._batches[self._next]
        self._next += 1
        with self._device.current():
            for name in names:
                self._buffers[name].upload(batch[name])
        return [self._buffers[name].address for name in names]

    def known(self) -> bytes | None:
        """Return what an earlier build has found."""
        return self.given.cache.read_bytes() if self.given.cache.is_file() else None

    def keep(self, found: bytes) -> None:
        """Write what was found, whole or not at all."""
        replace_file(self.given.cache, found)

    def close(self) -> None:
        """Give the device memory back."""
        self._device.close()


def _calibrator(library: Library, feed: Feed) -> Any:
    base = version_adapter.calibrator_base(library, feed.given.algorithm)

    class Calibrator(base):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            base.__init__(self)

        def get_batch_size(self) -> int:
            return feed.batch_size

        def get_batch(self, names: Sequence[str]) -> list[int] | None:
            return feed.next(names)

        def read_calibration_cache(self) -> bytes | None:
            return feed.known()

        def write_calibration_cache(self, cache: Any) -> None:
            feed.keep(bytes(cache))

    return Calibrator()


def _check(number: int, name: str, batch: Batch, shape: Sequence[int], first: Batch) -> None:
    if name not in batch:
        raise StageError(
            f"batch {number} of the calibration data has no input {name}, only {', '.join(batch)}"
        )
    found = batch[name].shape
    if len(found) != len(shape) or any(
        size not in (-1, own) for size, own in zip(shape, found, strict=True)
    ):
        wanted = [size if size >= 0 else "any" for size in shape]
        raise StageError(
            f"batch {number} of the calibration data has {name} of shape {list(found)}, not {wanted}"
        )
    if found != first[name].shape:
        text = (
            f"batch {number} of the calibration data has {name} of shape {list(found)}, and batch 0"
        )
        raise StageError(
            f"{text} has {list(first[name].shape)}", "TensorRT calibrates with batches of one shape"
        )
