"""CUDA graphs of calls repeated on the same memory."""

from __future__ import annotations

from collections.abc import Callable

from buildsys.backends.cuda.device import CudaGraph, Device
from buildsys.errors import StageError

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
