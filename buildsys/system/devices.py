"""Processors and GPUs: facts for keys, UUIDs for locks, clocks and power under load.

The driver sorts GPUs by PCI bus id. CUDA sorts them by speed unless CUDA_DEVICE_ORDER=PCI_BUS_ID,
which all workers have. NVML is called through ctypes: the standard library is enough to check an
engine's GPU.

Source: NVML API reference, "System Queries", "Device Queries", "Multi Instance GPU Management".
"""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from buildsys.errors import BuildsysError
from buildsys.system.cpu import cpu_facts, usable_processors

NONE = "none"
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
GPU_FACTS = ("name", "compute_capability", "driver", "cuda_driver")
DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")  # dxg: WSL
THROTTLE_REASONS = {  # bit -> reason for reduced clocks
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "clocks synchronized with another GPU",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "external power brake",
    0x100: "display clock setting",
}
_HARMLESS = 0x1 | 0x2  # an idle GPU, and clocks that a user has set
_LIBRARY = "libnvidia-ml.so.1"
_BUFFER_BYTES = 96  # NVML's *_BUFFER_SIZE constants are at most this
_SM_CLOCK, _MEMORY_CLOCK = 1, 2  # nvmlClockType_t
_TEMPERATURE_OF_GPU = 0  # nvmlTemperatureSensors_t
Gpu = Mapping[str, Any]  # uuid, GPU_FACTS, memory_bytes, free_bytes and mig, None if unsupported


class GpuError(BuildsysError):
    """The NVIDIA driver is missing or does not answer."""


class Nvml:
    """Queries of the NVIDIA driver. Every one raises GpuError if it is refused."""

    def __init__(self) -> None:
        import ctypes  # not needed without a GPU

        self._ctypes = ctypes
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
        buffer = self._ctypes.create_string_buffer(_BUFFER_BYTES)
        self.call(function, *arguments, buffer, len(buffer))
        return buffer.value.decode(errors="replace")

    def numbers(self, function: str, *arguments: Any, count: int = 1) -> list[int]:
        """Query ``count`` unsigned integers."""
        values = [self._ctypes.c_uint() for _ in range(count)]
        self.call(function, *arguments, *map(self._ctypes.byref, values))
        return [value.value for value in values]

    def long_numbers(self, function: str, *arguments: Any, count: int = 1) -> list[int]:
        """Query ``count`` unsigned integers of 64 bits in one structure."""
        values = (self._ctypes.c_ulonglong * count)()
        self.call(function, *arguments, self._ctypes.byref(values))
        return list(values)

    def device(self, function: str, identifier: int | str) -> Any:
        """Query a device by its index, UUID or PCI bus id."""
        device = self._ctypes.c_void_p()
        name = identifier.encode() if isinstance(identifier, str) else identifier
        self.call(function, name, self._ctypes.byref(device))
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


def read_gpus(visible: str | None) -> list[Gpu]:
    """List the visible GPUs in the driver's order.

    ``visible`` is CUDA_VISIBLE_DEVICES: None for all, else indices (in PCI order) or UUID
    prefixes, up to the first that does not exist.

    Raises: GpuError: the driver is missing or does not answer.
    """
    with nvml_session() as nvml:
        return [_describe(nvml, device) for device in _visible_devices(nvml, visible)]


def _describe(nvml: Nvml, device: Any) -> Gpu:
    major, minor = nvml.numbers("nvmlDeviceGetCudaComputeCapability", device, count=2)
    (cuda,) = nvml.numbers("nvmlSystemGetCudaDriverVersion_v2")
    # not by every MIG instance
    memory = _reported(nvml.long_numbers, "nvmlDeviceGetMemoryInfo", device, count=3)
    mig = _reported(nvml.numbers, "nvmlDeviceGetMigMode", device, count=2)
    return {
        "uuid": nvml.text("nvmlDeviceGetUUID", device),
        "name": nvml.text("nvmlDeviceGetName", device),
        "compute_capability": f"{major}.{minor}",
        "driver": nvml.text("nvmlSystemGetDriverVersion"),
        "cuda_driver": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "memory_bytes": memory and memory[0],
        "free_bytes": memory and memory[1],
        "mig": "" if mig is None else "on" if mig[0] else "off",
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
            device = _reported(nvml.device, "nvmlDeviceGetHandleByUUID", name)
        elif name.startswith("GPU-"):
            uuids = {nvml.text("nvmlDeviceGetUUID", device): device for device in devices}
            device = next((d for uuid, d in uuids.items() if uuid.startswith(name)), None)
        if device is None:
            break  # CUDA ignores everything after an unknown name, too
        chosen.append(device)
    return chosen


def _reported(query: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return the result of an NVML query, None if unsupported."""
    try:
        return query(*arguments, **options)
    except GpuError:
        return None


def device_facts(devices: Iterable[str]) -> dict[str, str]:
    """Collect the facts about each of ``devices``: ``cpu``, ``cores``, ``gpu``."""
    facts: Mapping[str, Callable[[], Mapping[str, str]]] = {
        "cpu": cpu_facts,
        "cores": lambda: {"cpu.cores": str(len(usable_processors()))},
        "gpu": gpu_facts,
    }
    return {label: value for device in devices for label, value in facts[device]().items()}


def gpu_facts() -> Mapping[str, str]:
    """Return the GPU's parts of an action key; ``none`` without one."""
    gpus = visible_gpus()
    return {
        f"gpu.{fact}": " + ".join(dict.fromkeys(gpu[fact] for gpu in gpus)) or NONE
        for fact in GPU_FACTS
    }


def visible_gpus() -> tuple[Gpu, ...]:
    """List the GPUs visible to CUDA, none without a working driver."""
    return find_gpus(os.environ.get(VISIBLE_DEVICES))


def equal_gpus(variables: Iterable[tuple[str, str]] = ()) -> tuple[str, ...]:
    """List UUIDs of equal visible GPUs: a job may run on any.

    Empty for fewer than two, and if ``variables`` of a toolchain select its GPU.
    """
    gpus = () if VISIBLE_DEVICES in dict(variables) else visible_gpus()
    kinds = {tuple(gpu.get(fact) for fact in GPU_FACTS) for gpu in gpus}
    return tuple(gpu["uuid"] for gpu in gpus) if len(gpus) > 1 and len(kinds) == 1 else ()


def gpu_uuids(variables: Iterable[tuple[str, str]] = (), *, here: bool = True) -> tuple[str, ...]:
    """List UUIDs of the GPUs that CUDA uses with ``variables``, and ``here`` without."""
    own = os.environ.get(VISIBLE_DEVICES)
    selections = [*([own] if here else []), dict(variables).get(VISIBLE_DEVICES, own)]
    return tuple(dict.fromkeys(gpu["uuid"] for name in selections for gpu in find_gpus(name)[:1]))


@cache
def find_gpus(visible: str | None) -> tuple[Gpu, ...]:
    """List visible GPUs once per process, none without a working driver."""
    if not any(os.path.exists(path) for path in DRIVER_FILES):  # noqa: PTH110
        return ()
    try:
        return tuple(read_gpus(visible))
    except GpuError:
        return ()


def why_no_gpu() -> str:
    """Explain the absence of a GPU, as a clause."""
    try:
        if read_gpus(None):
            visible = os.environ.get(VISIBLE_DEVICES)
            return f"{VISIBLE_DEVICES}={visible} hides the GPUs of this machine"
    except GpuError as error:
        if any(os.path.exists(path) for path in DRIVER_FILES):  # noqa: PTH110
            return f"the NVIDIA driver does not work ({error})"
        return "no NVIDIA driver is installed"
    return "the NVIDIA driver finds no GPU"


@dataclass
class Readings:
    """All readings so far; ``missing`` explains an empty list.

    A reading has ``sm_clock_mhz``, ``memory_clock_mhz``, ``power_w``, ``temperature_c`` and
    ``throttle_bits``, None for unsupported quantities.
    """

    taken: list[Mapping[str, Any]] = field(default_factory=list)
    missing: str = ""

    def figures(self) -> dict[str, Any]:
        """Compute min, median and max per quantity, and throttle shares."""
        from statistics import median  # slow to import

        if not self.taken:
            return {"missing": self.missing or "nothing was read"}
        spans = {}
        for name in ("sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c"):
            values = [reading[name] for reading in self.taken if reading[name] is not None]
            if values:
                spans[name] = {"min": min(values), "median": median(values), "max": max(values)}
        shares = throttle_shares([reading["throttle_bits"] for reading in self.taken])
        return {"readings": len(self.taken), **spans, "throttle": shares}


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

            def read(function: str, *arguments: int) -> Any:
                query = nvml.long_numbers if "Reasons" in function else nvml.numbers
                values = _reported(query, function, device, *arguments)
                return values and values[0]

            is_last = False
            while not is_last:
                is_last = stop.wait(every_s)
                power_mw = read("nvmlDeviceGetPowerUsage")
                reading = {
                    "sm_clock_mhz": read("nvmlDeviceGetClockInfo", _SM_CLOCK),
                    "memory_clock_mhz": read("nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
                    "power_w": None if power_mw is None else power_mw / 1000,
                    "temperature_c": read("nvmlDeviceGetTemperature", _TEMPERATURE_OF_GPU),
                    "throttle_bits": read("nvmlDeviceGetCurrentClocksThrottleReasons"),
                }
                readings.taken.append(reading)
    except GpuError as error:
        readings.missing = str(error)
