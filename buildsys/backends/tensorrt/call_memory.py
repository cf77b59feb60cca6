"""Memory of an engine's outputs, also of value-dependent shapes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from buildsys.backends.cuda.device import Buffer, CudaGraph, Device, HostBuffer
from buildsys.backends.tensorrt.library import Library
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array

# smaller outputs pass through page-locked memory: copies to other memory wait one by one
_STAGED_BYTES = 1 << 20


@dataclass(eq=False)
class Output:
    """An output's memory and shape."""

    buffer: Buffer
    shape: tuple[int, ...] = ()
    failure: StageError | None = None  # of a request for more memory
    staged: Array | None = None  # page-locked memory for its copy
    _locked: HostBuffer | None = None  # which ``staged`` is in

    def stage(self, gpu: Device, stored: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
        """Reserve page-locked memory for a small output, stored as an array of this shape."""
        if 0 < self.buffer.size_bytes <= _STAGED_BYTES:
            with suppress(StageError):  # too little of it
                self._locked = gpu.allocate_locked(self.buffer.size_bytes)
                self.staged = self._locked.array.view(dtype).reshape(stored)

    def free(self, gpu: Device) -> None:
        """Free all memory."""
        gpu.free(self.buffer)
        if self._locked is not None:
            gpu.free(self._locked)


class ValueShapedOutput(Output):
    """The memory and shape of an output of value-dependent shape.

    TensorRT requests its memory while it runs.
    Source: TensorRT developer guide, "Dynamically Shaped Output".
    """

    def __init__(self, library: Library, device: Device, reserved_bytes: int) -> None:
        """Reserve some memory; ``allocator`` must outlive the context."""
        super().__init__(device.allocate(reserved_bytes))
        self._device = device
        output = self

        class Allocator(library.trt.IOutputAllocator):  # type: ignore[misc,name-defined]
            def reallocate_output(
                self, tensor_name: str, memory: Any, size: int, alignment: int  # noqa: ARG002
            ) -> int:  # fmt: skip
                return output.address_of(size)

            def reallocate_output_async(
                self, tensor_name: str, memory: Any, size: int,  # noqa: ARG002
                alignment: int, stream: Any,  # noqa: ARG002
            ) -> int:  # fmt: skip
                return output.address_of(size)

            def notify_shape(self, tensor_name: str, shape: Any) -> None:  # noqa: ARG002
                output.shape = tuple(shape)

        self.allocator = Allocator()

    def address_of(self, size_bytes: int) -> int:
        """Return the address of enough memory, or 0; never raise into C++."""
        if size_bytes > self.buffer.size_bytes:
            try:
                with self._device.current():
                    larger = self._device.allocate(size_bytes)
                    self._device.free(self.buffer)
            except StageError as failure:
                self.failure = failure
                return 0
            self.buffer = larger
        return self.buffer.address


MOST_GRAPHS = 8  # of the present shapes, so that those of changing addresses are few
Addresses = tuple[int, ...]  # of inputs and outputs; () for those of the last call


class CallGraphs:
    """The CUDA graphs of one context.

    A graph saves the launches of all kernels, which take longer than many networks compute. Each
    one that is made doubles the number of calls before the next one, as those of ever changing
    shapes or addresses would cost more than they save.
    """

    def __init__(self, gpu: Device, *, enabled: bool = False) -> None:
        self.enabled = enabled
        self.captured: dict[Addresses, CudaGraph] = {}
        self.calls: dict[Addresses, int] = {}
        self._gpu = gpu
        self._calls_before_next = 4

    def capture(self, addresses: Addresses, start: Callable[[], None]) -> CudaGraph | None:
        """Count a call; return a new graph of ``start`` if it has been repeated often enough."""
        if len(self.calls) > 100 * MOST_GRAPHS:
            self.calls = dict.fromkeys(self.captured, 0)
        calls = self.calls[addresses] = self.calls.get(addresses, 0) + 1
        if calls < self._calls_before_next:
            return None
        try:
            graph = self._gpu.capture(start)
        except StageError:  # e.g. of a condition or a loop in the network
            self.enabled = False
            return None
        self.captured[addresses] = graph
        self._calls_before_next *= 2
        return graph

    def forget(self, addresses: Addresses) -> None:
        """Free the graph of a call, and count its repetitions anew."""
        self.calls.pop(addresses, None)
        if addresses in self.captured:
            self._gpu.free(self.captured.pop(addresses))

    def free(self) -> None:
        """Free all graphs, which are of no use for other shapes."""
        for graph in self.captured.values():
            self._gpu.free(graph)
        self.captured.clear()
        self.calls.clear()
