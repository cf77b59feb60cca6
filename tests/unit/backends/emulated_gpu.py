"""A GPU in host memory, and a TensorRT engine on it that doubles its inputs.

The context refuses what TensorRT refuses: a run without shapes or addresses, shapes outside of the
profile. A call that CUDA would run later runs at once.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from trt_double import RecordingTensorRt

from buildsys.backends.tensorrt.library import TRT_8
from buildsys.backends.tensorrt.session import TensorRtSession

Shape = tuple[int, ...]


class EmulatedStream:
    def __init__(self, handle: int = 77) -> None:
        self.handle = self.number = handle
        self.waits = 0
        self.synchronized = 0

    def synchronize(self) -> None:
        self.synchronized += 1

    def wait_for(self, event: object) -> None:
        self.waits += 1


def address_of(memory: np.ndarray | int) -> int:
    if isinstance(memory, int):
        return memory
    assert memory.flags.c_contiguous
    return memory.ctypes.data


class EmulatedBuffer:
    def __init__(self, size_bytes: int, stream: object = None) -> None:
        self.size_bytes = size_bytes
        self.memory = np.zeros(max(1, size_bytes), np.uint8)
        self.address = self.memory.ctypes.data
        self.released = False

    def copy_from(self, source: np.ndarray | int, size_bytes: int, stream: object) -> None:
        assert size_bytes <= self.size_bytes
        ctypes.memmove(self.address, address_of(source), size_bytes)

    def copy_to(self, target: np.ndarray | int, size_bytes: int, stream: object) -> None:
        assert size_bytes <= self.size_bytes
        ctypes.memmove(address_of(target), self.address, size_bytes)

    copy_on_device = copy_to

    def upload(self, values: np.ndarray) -> None:
        source = np.ascontiguousarray(values)
        self.copy_from(source.ctypes.data, source.nbytes, None)

    def download(self, target: np.ndarray) -> None:
        self.copy_to(target.ctypes.data, target.nbytes, None)

    def release(self) -> None:
        assert not self.released, "freed twice"
        self.released = True
        self.memory[:] = 255


class EmulatedGraph:
    """Inferences with the addresses that they were captured with."""

    def __init__(self) -> None:
        self.work: list[Callable[[], object]] = []
        self.launches = 0
        self.released = False

    def launch(self, stream: object) -> None:
        assert not self.released
        self.launches += 1
        for each in self.work:
            each()

    def release(self) -> None:
        assert not self.released, "freed twice"
        self.released = True


class EmulatedEvent:
    recorded = waited = 0

    def record(self, stream: object) -> None:
        self.recorded += 1

    def wait(self) -> None:
        self.waited += 1


class EmulatedDevice:
    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.main_stream = EmulatedStream()
        self.allocated: list[EmulatedBuffer] = []
        self.allocations = 0
        self.closed = False

    def current(self) -> EmulatedDevice:
        return self

    def __enter__(self) -> None:
        assert not self.closed

    def __exit__(self, *_: object) -> None:
        pass

    def allocate(self, size_bytes: int) -> EmulatedBuffer:
        self.allocated.append(EmulatedBuffer(size_bytes))
        self.allocations += 1
        return self.allocated[-1]

    def capture(self, work: Callable[[], object]) -> EmulatedGraph:
        graph = EmulatedGraph()
        EmulatedContext.captured = graph.work
        try:
            work()
        finally:
            EmulatedContext.captured = None
        return graph

    def free(self, buffer: Any) -> None:
        if not isinstance(buffer, EmulatedGraph):
            self.allocated.remove(buffer)
        buffer.release()

    def new_event(self) -> EmulatedEvent:
        return EmulatedEvent()

    def close(self) -> None:
        self.closed = True


@dataclass
class EmulatedEngine:
    """An engine with the outputs y = 2 x, and ``positive``: the values of x above 0."""

    trt: Any
    profiles: tuple[Mapping[str, tuple[Shape, Shape, Shape]], ...]
    shapes: Mapping[str, Shape]
    outputs: tuple[str, ...] = ("y",)
    contexts: list[EmulatedContext] = field(default_factory=list)

    @property
    def num_io_tensors(self) -> int:
        return len(self.shapes) + len(self.outputs)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self.profiles)

    def get_tensor_name(self, index: int) -> str:
        return [*self.shapes, *self.outputs][index]

    def get_tensor_mode(self, name: str) -> Any:
        modes = self.trt.TensorIOMode
        return modes.INPUT if name in self.shapes else modes.OUTPUT

    def get_tensor_format(self, name: str) -> Any:
        return self.trt.TensorFormat.LINEAR

    def get_tensor_location(self, name: str) -> Any:
        return self.trt.TensorLocation.DEVICE

    def get_tensor_dtype(self, name: str) -> Any:
        return self.trt.DataType.FLOAT

    def get_tensor_shape(self, name: str) -> Shape:
        return self.shapes["x"] if name == "y" else self.shapes.get(name, (-1,))

    def get_tensor_profile_shape(self, name: str, profile: int) -> tuple[Shape, Shape, Shape]:
        return self.profiles[profile][name]

    def is_shape_inference_io(self, name: str) -> bool:
        return False

    def create_execution_context(self) -> EmulatedContext:
        self.contexts.append(EmulatedContext(self))
        return self.contexts[-1]


class EmulatedContext:
    captured: list[Callable[[], object]] | None = None

    def __init__(self, engine: EmulatedEngine) -> None:
        self.engine = engine
        self.active_optimization_profile = 0
        self.shapes: dict[str, Shape] = {}
        self.addresses: dict[str, int] = {}
        self.allocators: dict[str, Any] = {}
        self.calls: list[str] = []

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        self.active_optimization_profile = profile
        self.shapes.clear()
        return True

    def set_input_shape(self, name: str, shape: Shape) -> bool:
        self.calls.append("set_input_shape")
        low, _, high = self.engine.profiles[self.active_optimization_profile][name]
        fits = all(a <= n <= b for a, n, b in zip(low, shape, high, strict=True))
        if fits:
            self.shapes[name] = shape
        return fits

    def infer_shapes(self) -> list[str]:
        return [name for name in self.engine.shapes if name not in self.shapes]

    def get_tensor_shape(self, name: str) -> Shape:
        return self.shapes["x"] if name == "y" else (-1,)

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        self.allocators[name] = allocator
        return True

    def execute_async_v3(self, stream: int) -> bool:
        self.calls.append(f"execute {stream}")
        work = partial(self._compute, dict(self.shapes), dict(self.addresses))
        if self.captured is not None:
            self.captured.append(work)
        else:
            work()
        return True

    def _compute(self, shapes: dict[str, Shape], addresses: dict[str, int]) -> None:
        def array(name: str, shape: Shape) -> np.ndarray:
            size = math.prod(shape) * 4
            memory = (ctypes.c_uint8 * size).from_address(addresses[name])
            return np.frombuffer(memory, np.float32).reshape(shape)

        x = array("x", shapes["x"])
        array("y", x.shape)[...] = 2 * x
        if "positive" in self.engine.outputs:
            found = x[x > 0]
            allocator = self.allocators["positive"]
            addresses["positive"] = allocator.reallocate_output("positive", 0, found.nbytes, 1)
            array("positive", found.shape)[...] = found
            allocator.notify_shape("positive", found.shape)


class EmulatedSession(TensorRtSession):
    """A session as the backend loads it, with duplicates."""

    def __init__(
        self, engine: EmulatedEngine, library: Any, closed: list[Any] | None = None
    ) -> None:
        super().__init__(library, EmulatedDevice(), engine, engine.create_execution_context())
        self.closed = [] if closed is None else closed  # shared with duplicates

    def duplicate(self) -> EmulatedSession:
        return EmulatedSession(self._engine, self._library, self.closed)

    def close(self) -> None:
        self.closed.append(self)


def emulated(
    *profiles: tuple[int, int], outputs: tuple[str, ...] = ("y",)
) -> tuple[EmulatedSession, EmulatedEngine]:
    """Return a session of an engine with the input x of shape (batch, 3), and the engine.

    ``profiles`` are the smallest and the largest batch of each.
    """
    double = RecordingTensorRt(TRT_8)
    if "IOutputAllocator" not in vars(double.module):
        double.module.IOutputAllocator = type("IOutputAllocator", (), {})
    spans = tuple({"x": ((low, 3), (low, 3), (high, 3))} for low, high in profiles or ((1, 8),))
    engine = EmulatedEngine(double.module, spans, {"x": (-1, 3)}, outputs)
    return EmulatedSession(engine, double.library), engine
