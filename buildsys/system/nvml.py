"""The GPUs of this machine, the ones CUDA shows, and their clocks and power under load.

NVML is called through ctypes: the standard library is enough to check an engine's GPU.

Source: NVML API reference, "System Queries", "Device Queries", "Multi Instance GPU Management".
"""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from buildsys.errors import BuildsysError

_LIBRARY = "libnvidia-ml.so.1"
_BUFFER_BYTES = 96  # NVML's *_BUFFER_SIZE constants are at most this
_SM_CLOCK, _MEMORY_CLOCK = 1, 2  # nvmlClockType_t
_TEMPERATURE_OF_GPU = 0  # nvmlTemperatureSensors_t


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


class Nvml:
    """Queries of the NVIDIA driver. Every one raises GpuError if it is refused."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise GpuError(f"{_LIBRARY}: {error}") from error

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of NVML."""
        status = getattr(self._library, function)(*arguments)
        if status:
            raise GpuError(
                f"the NVIDIA driver does not answer: {function} failed with error {status}"
            )

    def text(self, function: str, *arguments: Any) -> str:
        """Query a text."""
        buffer = ctypes.create_string_buffer(_BUFFER_BYTES)
        self.call(function, *arguments, buffer, len(buffer))
        return buffer.value.decode(errors="replace")

    def numbers(self, function: str, *arguments: Any, count: int = 1) -> list[int]:
        """Query ``count`` unsigned integers."""
        values = [ctypes.c_uint() for _ in range(count)]
        self.call(function, *arguments, *map(ctypes.byref, values))
        return [value.value for value in values]

    def long_numbers(self, function: str, *arguments: Any, count: int = 1) -> list[int]:
        """Query ``count`` unsigned integers of 64 bits in one structure."""
        values = (ctypes.c_ulonglong * count)()
        self.call(function, *arguments, ctypes.byref(values))
        return list(values)

    def device(self, function: str, identifier: int | str) -> ctypes.c_void_p:
        """Query a device by its index, UUID or PCI bus id."""
        device = ctypes.c_void_p()
        name = identifier.encode() if isinstance(identifier, str) else identifier
        self.call(function, name, ctypes.byref(device))
        return device


@contextmanager
def nvml_session() -> Iterator[Nvml]:
    """Initialize NVML and yield its queries.

    Raises: GpuError: the driver is missing or refuses a query.
    """
    nvml = Nvml()
    nvml.call("nvmlInit_v2")
    try:
        yield nvml
    finally:
        nvml.call("nvmlShutdown")


def read_gpus(visible: str | None) -> list[dict[str, str]]:
    """List uuid, name, compute_capability, driver and cuda_driver of visible GPUs.

    ``visible`` is CUDA_VISIBLE_DEVICES: None for all, else indices (in PCI order) or UUID
    prefixes, up to the first that does not exist.

    Raises: GpuError: the driver is missing or does not answer.
    """
    with nvml_session() as nvml:
        return [
            {"uuid": nvml.text("nvmlDeviceGetUUID", device), **_describe(nvml, device)}
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
            memory = reported(nvml.long_numbers, "nvmlDeviceGetMemoryInfo", device, count=3)
            total, free, _ = memory or (None, None, None)
            mig = reported(nvml.numbers, "nvmlDeviceGetMigMode", device, count=2)
            mode = "" if mig is None else "on" if mig[0] else "off"
            details.append(
                GpuDetails(**_describe(nvml, device), memory_bytes=total, free_bytes=free, mig=mode)
            )
    return details


def reported(query: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return the result of an NVML query, None if unsupported."""
    try:
        return query(*arguments, **options)
    except GpuError:
        return None


def _describe(nvml: Nvml, device: Any) -> dict[str, str]:
    major, minor = nvml.numbers("nvmlDeviceGetCudaComputeCapability", device, count=2)
    (cuda,) = nvml.numbers("nvmlSystemGetCudaDriverVersion_v2")
    return {
        "name": nvml.text("nvmlDeviceGetName", device),
        "compute_capability": f"{major}.{minor}",
        "driver": nvml.text("nvmlSystemGetDriverVersion"),
        "cuda_driver": f"{cuda // 1000}.{cuda % 1000 // 10}",
    }


def _visible_devices(nvml: Nvml, visible: str | None) -> list[Any]:
    (count,) = nvml.numbers("nvmlDeviceGetCount_v2")
    devices = [nvml.device("nvmlDeviceGetHandleByIndex_v2", index) for index in range(count)]
    if visible is None:
        return devices
    chosen = []
    for name in (part.strip() for part in visible.split(",")):
        device = None
        if name.isdigit():
            device = devices[int(name)] if int(name) < len(devices) else None
        elif name.startswith("MIG-"):
            device = reported(nvml.device, "nvmlDeviceGetHandleByUUID", name)
        elif name.startswith("GPU-"):
            uuids = {nvml.text("nvmlDeviceGetUUID", device): device for device in devices}
            device = next((d for uuid, d in uuids.items() if uuid.startswith(name)), None)
        if device is None:
            break  # CUDA ignores everything after an unknown name, too
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
            device = nvml.device("nvmlDeviceGetHandleByPciBusId_v2", pci_bus_id)

            def read(function: str, *arguments: int) -> int | None:
                values = reported(nvml.numbers, function, device, *arguments)
                return values and values[0]  # type: ignore[no-any-return]

            is_last = False
            while not is_last:
                is_last = stop.wait(every_s)
                power_mw = read("nvmlDeviceGetPowerUsage")
                throttle = "nvmlDeviceGetCurrentClocksThrottleReasons"
                bits = reported(nvml.long_numbers, throttle, device)
                reading = Reading(
                    sm_clock_mhz=read("nvmlDeviceGetClockInfo", _SM_CLOCK),
                    memory_clock_mhz=read("nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
                    power_w=None if power_mw is None else power_mw / 1000,
                    temperature_c=read("nvmlDeviceGetTemperature", _TEMPERATURE_OF_GPU),
                    throttle_bits=bits and bits[0],
                )
                readings.taken.append(reading)
    except GpuError as error:
        readings.missing = str(error)
