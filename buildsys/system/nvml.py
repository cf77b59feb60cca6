"""The GPUs of this machine, the ones CUDA shows, and their clocks and power under load.

nvidia-ml-py takes 60 ms to import, so it is imported only where a driver is installed.

Source: NVML API reference, "System Queries", "Device Queries", "Multi Instance GPU Management".
"""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from statistics import median
from typing import Any

from buildsys.errors import BuildsysError

_LIBRARY = "libnvidia-ml.so.1"


class GpuError(BuildsysError):
    """The NVIDIA driver is missing or does not answer."""


@dataclass(frozen=True)
class GpuDetails:
    """One GPU visible to CUDA; None and "" stand for unknown."""

    name: str
    compute_capability: str
    driver: str
    cuda_driver: str
    memory_bytes: int | None
    free_bytes: int | None
    mig: str  # "on", "off", or "" if the GPU does not support MIG


@contextmanager
def nvml_session(*, fallback: bool = False) -> Iterator[Any]:
    """Initialize NVML and yield the module ``pynvml``.

    ``fallback`` accepts an interpreter without nvidia-ml-py; the few functions of
    ``nvml_fallback`` must then do.
    Raises: GpuError: the driver is missing or an NVML call fails.
    """
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise GpuError(f"{_LIBRARY}: {error}") from error
    try:
        nvml: Any = import_module("pynvml")
    except ModuleNotFoundError as error:
        if not fallback:
            raise GpuError("nvidia-ml-py is missing: pip install 'buildsys[gpu]'") from error
        nvml = import_module("buildsys.system.nvml_fallback")
    try:
        nvml.nvmlInit()
        try:
            yield nvml
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        raise GpuError(f"the NVIDIA driver does not answer: {error}") from error


def read_gpus(visible: str | None) -> list[dict[str, str]]:
    """List uuid, name, compute_capability, driver and cuda_driver of visible GPUs.

    ``visible`` is CUDA_VISIBLE_DEVICES: None for all, else indices (in PCI order) or UUID
    prefixes, up to the first that does not exist.

    Raises: GpuError: the driver is missing or does not answer.
    """
    with nvml_session(fallback=True) as nvml:
        return [
            {"uuid": nvml.nvmlDeviceGetUUID(device), **_describe(nvml, device)}
            for device in _visible_devices(nvml, visible)
        ]


def read_details(visible: str | None) -> list[GpuDetails]:
    """List visible GPUs with memory and MIG mode, as ``read_gpus``.

    Raises: GpuError: the driver is missing or does not answer.
    """
    details = []
    with nvml_session() as nvml:
        for device in _visible_devices(nvml, visible):
            # not by every MIG instance
            memory = reported(nvml, nvml.nvmlDeviceGetMemoryInfo, device)
            mig = reported(nvml, nvml.nvmlDeviceGetMigMode, device)
            details.append(
                GpuDetails(
                    **_describe(nvml, device),
                    memory_bytes=memory and memory.total,
                    free_bytes=memory and memory.free,
                    mig="" if mig is None else "on" if mig[0] else "off",
                )
            )
    return details


def reported(nvml: Any, query: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of an NVML query, None if unsupported."""
    try:
        return query(*arguments)
    except nvml.NVMLError:
        return None


def _describe(nvml: Any, device: Any) -> dict[str, str]:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(device)
    cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
    return {
        "name": nvml.nvmlDeviceGetName(device),
        "compute_capability": f"{major}.{minor}",
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "cuda_driver": f"{cuda // 1000}.{cuda % 1000 // 10}",
    }


def _visible_devices(nvml: Any, visible: str | None) -> list[Any]:
    devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    if visible is None:
        return devices
    chosen = []
    for name in (part.strip() for part in visible.split(",")):
        device = None
        if name.isdigit():
            device = devices[int(name)] if int(name) < len(devices) else None
        elif name.startswith("MIG-"):
            device = reported(nvml, nvml.nvmlDeviceGetHandleByUUID, name)
        elif name.startswith("GPU-"):
            device = next((d for d in devices if nvml.nvmlDeviceGetUUID(d).startswith(name)), None)
        if device is None:
            break  # CUDA ignores everything after an unknown name as well
        chosen.append(device)
    return chosen


THROTTLE_REASONS = {  # bit -> reason for reduced clocks
    0x1: "idle",
    0x2: "application clocks setting",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "clocks synchronized with another GPU",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "external power brake",
    0x100: "display clock setting",
}
_HARMLESS = 0x1 | 0x2  # an idle GPU, and clocks that a user has set


@dataclass(frozen=True)
class Reading:
    """One reading of a GPU; None for unsupported quantities."""

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle_bits: int | None = None


@dataclass
class Readings:
    """All readings so far; ``missing`` explains an empty list."""

    taken: list[Reading] = field(default_factory=list)
    missing: str = ""

    def figures(self) -> dict[str, Any]:
        """Compute min, median and max per quantity, and throttle shares."""
        if not self.taken:
            return {"missing": self.missing or "nothing was read"}
        spans = {}
        for name in ("sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c"):
            values = [
                value for reading in self.taken if (value := getattr(reading, name)) is not None
            ]
            if values:
                spans[name] = {"min": min(values), "median": median(values), "max": max(values)}
        return {
            "readings": len(self.taken),
            **spans,
            "throttle": throttle_shares([reading.throttle_bits for reading in self.taken]),
        }


def throttle_shares(bits: Iterable[int | None]) -> dict[str, float]:
    """Compute the share of readings per throttle reason.

    Idle and clocks chosen by a user are no reasons.
    """
    readings = [reading & ~_HARMLESS for reading in bits if reading is not None]
    counts = Counter(
        THROTTLE_REASONS.get(1 << place, f"reason {1 << place:#x}")
        for reading in readings
        for place in range(reading.bit_length())
        if reading >> place & 1
    )
    return {reason: round(count / len(readings), 4) for reason, count in counts.items()}


def throttled(case: str, figures: Mapping[str, Any], limit: float = 0.0) -> Iterator[str]:
    """Yield a sentence for GPU throttling above ``limit`` of a case's readings."""
    shares = figures.get("throttle") or {}
    if any(share > limit for share in shares.values()):
        reasons = ", ".join(
            f"{reason} in {100 * share:.0f} % of the readings" for reason, share in shares.items()
        )
        yield f"case {case}: the GPU was throttled: {reasons}"


@contextmanager
def sampled(pci_bus_id: str, every_s: float = 0.2) -> Iterator[Readings]:
    """Read a GPU ``every_s`` in a thread, and at the block's end.

    A GPU that cannot be read is not an error: the readings say why they are missing.
    """
    readings, stop = Readings(), threading.Event()
    thread = threading.Thread(
        target=_sample, args=(pci_bus_id, every_s, readings, stop), daemon=True
    )
    thread.start()
    try:
        yield readings
    finally:
        stop.set()
        thread.join(timeout=10)


def _sample(pci_bus_id: str, every_s: float, readings: Readings, stop: threading.Event) -> None:
    try:
        with nvml_session() as nvml:
            device = nvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
            clock, temperature = nvml.nvmlDeviceGetClockInfo, nvml.nvmlDeviceGetTemperature
            throttle = nvml.nvmlDeviceGetCurrentClocksThrottleReasons
            is_last = False
            while not is_last:
                is_last = stop.wait(every_s)
                power_mw = reported(nvml, nvml.nvmlDeviceGetPowerUsage, device)
                reading = Reading(
                    sm_clock_mhz=reported(nvml, clock, device, nvml.NVML_CLOCK_SM),
                    memory_clock_mhz=reported(nvml, clock, device, nvml.NVML_CLOCK_MEM),
                    power_w=None if power_mw is None else power_mw / 1000,
                    temperature_c=reported(nvml, temperature, device, nvml.NVML_TEMPERATURE_GPU),
                    throttle_bits=reported(nvml, throttle, device),
                )
                readings.taken.append(reading)
    except GpuError as error:
        readings.missing = str(error)
