"""Outputs of value-dependent shapes: TensorRT requests memory while it runs.

Source: TensorRT developer guide, "Dynamically Shaped Output".
"""

from __future__ import annotations

from typing import Any

from buildsys.backends.cuda.device import Buffer, Device
from buildsys.backends.tensorrt.library import Library
from buildsys.errors import StageError


class ValueShapedOutput:
    """The memory and shape of an output of unknown size."""

    def __init__(self, library: Library, device: Device, reserved_bytes: int) -> None:
        """Reserve some memory; ``allocator`` must outlive the context."""
        self._device = device
        self.buffer: Buffer = device.allocate(reserved_bytes)
        self.shape: tuple[int, ...] = ()
        self.failure: StageError | None = None
        self.allocator = _allocator(library, self)

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

    def release(self) -> None:
        """Free the memory."""
        self._device.free(self.buffer)


def _allocator(library: Library, output: ValueShapedOutput) -> Any:
    base = library.trt.IOutputAllocator

    class Allocator(base):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            base.__init__(self)

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

    return Allocator()
