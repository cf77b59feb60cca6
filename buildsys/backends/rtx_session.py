"""A TensorRT-RTX engine on a GPU: device buffers, dynamic shapes, execution."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorrt_rtx as trt

from buildsys.backends.base import Figures, Run
from buildsys.backends.cuda_driver import Buffer, Device
from buildsys.backends.rtx_messages import LOGGER, collected_messages
from buildsys.errors import StageError
from buildsys.tensors import BIT_DTYPES, Array, Tensor, tensor_of

DTYPES = {
    trt.DataType.FLOAT: "float32",
    trt.DataType.HALF: "float16",
    trt.DataType.BF16: "bfloat16",
    trt.DataType.INT8: "int8",
    trt.DataType.UINT8: "uint8",
    trt.DataType.INT32: "int32",
    trt.DataType.INT64: "int64",
    trt.DataType.BOOL: "bool",
    trt.DataType.FP8: "float8e4m3fn",
    trt.DataType.E8M0: "float8e8m0",
    trt.DataType.INT4: "int4",
    trt.DataType.FP4: "float4e2m1",
}
_PACKED = ("int4", "float4e2m1")  # two elements share a byte on the device


class RtxSession:
    """A loaded engine with one execution context, on the first GPU."""

    def __init__(self, engine_file: Path) -> None:
        self._device = Device(0)
        try:
            with self._device.current(), collected_messages() as messages:
                self._runtime = trt.Runtime(LOGGER)
                self._engine = self._runtime.deserialize_cuda_engine(engine_file.read_bytes())
                if self._engine is None:
                    raise StageError(f"{engine_file.name}: {messages.sentence('TensorRT-RTX cannot load the engine')}")
                self._context = self._engine.create_execution_context()
                if self._context is None:
                    raise StageError(f"{engine_file.name}: {messages.sentence('there is no execution context')}")
        except BaseException:
            self._device.close()
            raise
        names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        self._inputs = [n for n in names if self._engine.get_tensor_mode(n) == trt.TensorIOMode.INPUT]
        self._outputs = [n for n in names if self._engine.get_tensor_mode(n) == trt.TensorIOMode.OUTPUT]
        self._buffers: list[Buffer] = []
        self._host: list[Array] = []  # keeps what the engine reads from host memory alive
        self._results: dict[str, tuple[Buffer, tuple[int, ...]]] = {}

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs by name, copied back from the GPU."""
        self.bind(inputs)()
        with self._device.current():
            return {name: self._fetch(name, buffer, shape) for name, (buffer, shape) in self._results.items()}

    def bind(self, inputs: Mapping[str, Tensor]) -> Run:
        """Upload the inputs and return a call that computes and waits, without copies to or from the GPU."""
        missing = [name for name in self._inputs if name not in inputs]
        if missing:
            raise StageError(f"the engine's input {', '.join(missing)} is not given")
        with self._device.current(), collected_messages() as messages:
            self._forget()
            self._choose_profile({name: inputs[name].shape for name in self._inputs})
            for name in self._inputs:
                self._set_input(name, inputs[name])
            unknown = self._context.infer_shapes()
            if unknown:
                raise StageError(f"the engine cannot tell its shapes: {messages.sentence(', '.join(unknown))}")
            for name in self._outputs:
                self._set_output(name)
        return self._execute

    def describe(self) -> Figures:
        """Return the layers that TensorRT-RTX made, and the memory that it needs beside the weights."""
        inspector = self._engine.create_engine_inspector()
        text = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
        layers = json.loads(text).get("Layers", []) if text else []
        # with profiling_verbosity other than detailed, a layer is just its name
        kinds = Counter(entry.get("LayerType", "layer") if isinstance(entry, dict) else "layer" for entry in layers)
        return {
            "engine_layers": dict(sorted(kinds.items())),
            "device_memory_bytes": int(self._engine.device_memory_size_v2),
        }

    def close(self) -> None:
        """Free the context, the engine and the device memory, in this order."""
        if self._engine is None:
            return
        with self._device.current():
            self._context = self._engine = self._runtime = None
        self._buffers.clear()
        self._results.clear()
        self._device.close()

    def _execute(self) -> None:
        with self._device.current(), collected_messages() as messages:
            if not self._context.execute_async_v3(self._device.stream):
                raise StageError(f"the engine did not run: {messages.sentence('TensorRT-RTX gives no reason')}")
            self._device.synchronize()

    def _choose_profile(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        count = self._engine.num_optimization_profiles  # at least one, also where all shapes are fixed
        fitting = next((index for index in range(count) if self._fits(index, shapes)), None)
        if fitting is None:
            raise StageError(f"no optimization profile of the engine holds the shapes {dict(shapes)}")
        if fitting != self._context.active_optimization_profile:
            if not self._context.set_optimization_profile_async(fitting, self._device.stream):
                raise StageError(f"the engine's optimization profile {fitting} cannot be chosen")
            self._device.synchronize()

    def _fits(self, profile: int, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        for name, shape in shapes.items():
            low, _, high = (tuple(point) for point in self._engine.get_tensor_profile_shape(name, profile))
            if len(low) != len(shape) or not all(a <= n <= b for a, n, b in zip(low, shape, high, strict=True)):
                return False
        return True

    def _set_input(self, name: str, tensor: Tensor) -> None:
        values = _as_dtype(tensor, self._dtype(name))
        if not self._context.set_input_shape(name, tensor.shape):
            raise StageError(f"the engine's input {name} cannot have the shape {list(tensor.shape)}")
        if self._engine.get_tensor_location(name) == trt.TensorLocation.HOST:
            host = np.array(values, order="C")
            self._host.append(host)
            self._set_address(name, host.ctypes.data)
            return
        buffer = self._new_buffer(values.nbytes)
        buffer.upload(values)
        self._set_address(name, buffer.address)

    def _set_output(self, name: str) -> None:
        shape = tuple(self._context.get_tensor_shape(name))
        if any(size < 0 for size in shape):
            raise StageError(f"the shape of the output {name} depends on values, which this backend does not run yet")
        itemsize = _numpy_dtype(self._dtype(name)).itemsize
        buffer = self._new_buffer(itemsize * int(np.prod(shape, dtype=np.int64)))
        self._results[name] = (buffer, shape)
        self._set_address(name, buffer.address)

    def _set_address(self, name: str, address: int) -> None:
        if not self._context.set_tensor_address(name, address):
            raise StageError(f"the engine does not take the memory for {name}")

    def _fetch(self, name: str, buffer: Buffer, shape: tuple[int, ...]) -> Tensor:
        dtype = self._dtype(name)
        target = np.empty(shape, _numpy_dtype(dtype))
        buffer.download(target)
        return Tensor(target, dtype)

    def _dtype(self, name: str) -> str:
        dtype = DTYPES[self._engine.get_tensor_dtype(name)]
        if dtype in _PACKED:
            raise StageError(f"{name} is a tensor of {dtype}, which this backend does not pass in or out")
        return dtype

    def _new_buffer(self, size_bytes: int) -> Buffer:
        buffer = self._device.allocate(size_bytes)
        self._buffers.append(buffer)
        return buffer

    def _forget(self) -> None:
        """Free the buffers of the last inputs."""
        while self._buffers:
            self._device.free(self._buffers.pop())
        self._host.clear()
        self._results.clear()


def _numpy_dtype(dtype: str) -> np.dtype[np.generic]:
    return np.dtype(BIT_DTYPES.get(dtype, dtype))


def _as_dtype(tensor: Tensor, dtype: str) -> Array:
    """Return the array in the engine's type: TensorRT has no float64, and turns such inputs into float32."""
    return tensor.array if tensor.dtype == dtype else tensor_of(tensor.values(), dtype).array
