"""The calls of the CUDA driver that running and timing an engine needs, straight from the driver's own library.

An engine's inputs and outputs are plain buffers, so neither the CUDA toolkit nor a Python binding of it
is needed: what every machine with an NVIDIA GPU has, the driver, is enough. So it works in every toolchain, of
which nothing is asked but numpy and its TensorRT.

Source: CUDA Driver API reference.
"""

from buildsys.backends.cuda.device import Device, MemoryInfo, Resource
from buildsys.backends.cuda.gpus import Driver, Gpu, find_driver, pci_bus_id
from buildsys.backends.cuda.memory import Buffer, HostBuffer
from buildsys.backends.cuda.streams import Event, Graph, Stream, capture

__all__ = [
    "Buffer",
    "Device",
    "Driver",
    "Event",
    "Gpu",
    "Graph",
    "HostBuffer",
    "MemoryInfo",
    "Resource",
    "Stream",
    "capture",
    "find_driver",
    "pci_bus_id",
]
