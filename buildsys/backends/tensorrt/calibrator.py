"""Calibration of int8 ranges by TensorRT's builder, up to TensorRT 10."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from buildsys.backends.cuda_device import Device
from buildsys.backends.interface import Calibration, read_batches
from buildsys.backends.tensorrt.library import FEATURES, TensorRTLibrary, dtype_words
from buildsys.onnx_graphs.tensors import Array
from buildsys.system.files import replace_file

ONLY = FEATURES["calibrators"]


def attach_calibrator(
    library: TensorRTLibrary, builder: Any, config: Any, network: Any, calibration: Calibration
) -> Any:
    """Calibrate on the given batches; keep the result until the build ends.

    The batches are uploaded to the GPU one after the other.
    """
    trt, dtypes = library.trt, dtype_words(library)
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    shapes = {tensor.name: tuple(tensor.shape) for tensor in inputs}
    types = {tensor.name: np.dtype(dtypes[tensor.dtype]) for tensor in inputs}
    batches: list[Mapping[str, Array]] = [
        {name: np.ascontiguousarray(array, types[name]) for name, array in batch.items()}
        for batch in read_batches(calibration.batches, shapes)
    ]
    first, remaining = batches[0], iter(batches)
    device = Device(0)
    with device.current():
        buffers = {name: device.allocate(array.nbytes) for name, array in first.items()}
    is_minmax = calibration.algorithm == "minmax"
    base = trt.IInt8MinMaxCalibrator if is_minmax else trt.IInt8EntropyCalibrator2

    class Calibrator(base):  # type: ignore[misc,valid-type]
        def get_batch_size(self) -> int:
            shape = next(iter(first.values())).shape
            return int(shape[0]) if shape else 1

        def get_batch(self, names: Sequence[str]) -> list[int] | None:
            batch = next(remaining, None)
            if batch is None:
                return None
            with device.current():
                for name in names:
                    buffers[name].upload(batch[name])
            return [buffers[name].address for name in names]

        def read_calibration_cache(self) -> bytes | None:
            return calibration.cache.read_bytes() if calibration.cache.is_file() else None

        def write_calibration_cache(self, cache: Any) -> None:
            replace_file(calibration.cache, bytes(cache))

    calibrator, profile = Calibrator(), builder.create_optimization_profile()
    for name, shape in shapes.items():
        size = first[name].shape
        if -1 in shape:
            profile.set_shape(name, size, size, size)
    config.int8_calibrator = calibrator
    config.set_calibration_profile(profile)
    return calibrator, profile
