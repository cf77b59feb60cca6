"""Memory of an engine's outputs, also of value-dependent shapes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from buildsys.backends.cuda.device import Buffer, Device, HostBuffer
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
