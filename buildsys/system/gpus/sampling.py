"""Clocks, power, temperature and throttling of a GPU while something runs on it.

Source: NVML API reference, "Device Queries" (nvmlDeviceGetClockInfo, nvmlDeviceGetPowerUsage,
nvmlDeviceGetTemperature), "NvmlClocksEventReasons".
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from buildsys.system.gpus.nvml import GpuError, Handle, check, session

_SM, _MEMORY = 1, 2  # nvmlClockType_t
_GPU_TEMPERATURE = 0  # nvmlTemperatureSensors_t
THROTTLE_REASONS = {  # bit -> what holds the clocks down, in plain words
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
_HARMLESS = 0x1 | 0x2  # nothing to do, and what somebody has set on purpose


@dataclass(frozen=True)
class Reading:
    """One look at a GPU. None: this GPU does not tell."""

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle_bits: int | None = None


@dataclass
class Readings:
    """What was read so far; ``missing`` says why there is nothing."""

    taken: list[Reading] = field(default_factory=list)
    missing: str = ""

    def figures(self) -> dict[str, Any]:
        """Return least, middle and greatest value of each quantity, and the share of readings per throttle reason."""
        if not self.taken:
            return {"missing": self.missing or "nothing was read"}
        quantities = ("sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c")
        spans = {
            name: _span([getattr(reading, name) for reading in self.taken]) for name in quantities
        }
        shares = throttle_shares([reading.throttle_bits for reading in self.taken])
        return {
            "readings": len(self.taken),
            **{name: span for name, span in spans.items() if span},
            "throttle": shares,
        }


def throttle_shares(bits: Iterable[int | None]) -> dict[str, float]:
    """Return the share of readings in which each reason held the clocks down; idle and chosen clocks are none."""
    known = [reading for reading in bits if reading is not None]
    counts: dict[str, int] = {}
    for reading in known:
        for name in _reasons(reading & ~_HARMLESS):
            counts[name] = counts.get(name, 0) + 1
    return {name: round(count / len(known), 4) for name, count in counts.items()}


def throttled(case: str, figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence where the figures of a case say that the clocks were held down."""
    shares = figures.get("throttle") or {}
    if shares:
        told = ", ".join(
            f"{reason} in {share:.0%} of the readings" for reason, share in shares.items()
        )
        yield f"case {case}: the GPU was throttled: {told}"


@contextmanager
def sampled(pci_bus_id: str, every_s: float = 0.2) -> Iterator[Readings]:
    """Read a GPU ``every_s`` in a thread until the block ends, and at its end; one that cannot be read is no error."""
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
        with session() as nvml:
            handle = Handle()
            check(nvml.nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id.encode(), ctypes.byref(handle)))
            while True:
                last = stop.wait(every_s)
                readings.taken.append(_read(nvml, handle))
                if last:
                    return
    except GpuError as error:
        readings.missing = str(error)


def _read(nvml: ctypes.CDLL, handle: Handle) -> Reading:
    power = _number(nvml.nvmlDeviceGetPowerUsage, handle)
    return Reading(
        sm_clock_mhz=_number(nvml.nvmlDeviceGetClockInfo, handle, _SM),
        memory_clock_mhz=_number(nvml.nvmlDeviceGetClockInfo, handle, _MEMORY),
        power_w=None if power is None else power / 1000,
        temperature_c=_number(nvml.nvmlDeviceGetTemperature, handle, _GPU_TEMPERATURE),
        throttle_bits=_number(
            nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle, kind=ctypes.c_ulonglong
        ),
    )


def _number(query: Any, handle: Handle, *which: int, kind: Any = ctypes.c_uint) -> int | None:
    value = kind()
    status = query(handle, *which, ctypes.byref(value))
    return None if status else int(value.value)


def _reasons(bits: int) -> Iterator[str]:
    for bit in (1 << place for place in range(bits.bit_length())):
        if bits & bit:
            yield THROTTLE_REASONS.get(bit, f"reason {bit:#x}")


def _span(values: Sequence[float | None]) -> dict[str, float]:
    known = [value for value in values if value is not None]
    return {"min": min(known), "median": median(known), "max": max(known)} if known else {}
