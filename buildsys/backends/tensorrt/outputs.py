"""Memory of an engine's outputs, also of value-dependent shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from buildsys.backends.cuda.device import Buffer, Device
from buildsys.backends.tensorrt.library import Library
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array


@dataclass(eq=False)
class Output:
    """An output's memory and shape."""

    buffer: Buffer
    shape: tuple[int, ...] = ()
    failure: StageError | None = None  # of a request for more memory
    staged: Array | None = None  # page-locked memory for its copy


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
