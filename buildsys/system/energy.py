"""Energy by the counters of the hardware: NVML's of a GPU, RAPL's of the processors.

Nothing is estimated. A counter covers a whole device, with all that runs on it.

Sources: NVML API reference, nvmlDeviceGetTotalEnergyConsumption; Linux kernel, "Power Capping
Framework".
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from buildsys.system.devices import GpuError, nvml_session

_POWERCAP = Path("/sys/class/powercap")
_PACKAGES = "intel-rapl:[0-9]*"  # of AMD's processors, too; intel-rapl:0:1 is a part of 0


@dataclass(frozen=True)
class EnergyCounter:
    """Counters of a device's parts; ``source`` names them, or says why there are none."""

    source: str
    read: Callable[[], list[float]] = list  # joules of each part since some time …
    wraps: tuple[float, ...] = ()  # … and where they start again

    def start(self) -> Callable[[], float | None]:
        """Return a function for the joules since now, None without a counter."""
        before = self.read()

        def taken() -> float | None:
            parts = zip(before, self.read(), self.wraps, strict=True)
            return sum((now - then) % wrap for then, now, wrap in parts) if self.wraps else None

        return taken


@contextmanager
def energy_counter(pci_bus_id: str = "", folder: Path = _POWERCAP) -> Iterator[EnergyCounter]:
    """Yield the counter of a GPU, or of the processors."""
    if not pci_bus_id:
        yield _processors(folder)
        return
    with ExitStack() as stack:
        try:
            nvml = stack.enter_context(nvml_session())
            gpu = nvml.device("nvmlDeviceGetHandleByPciBusId_v2", pci_bus_id)

            def read() -> list[float]:
                query = "nvmlDeviceGetTotalEnergyConsumption"
                return [mj / 1000 for mj in nvml.long_numbers(query, gpu)]

            read()
            counter = EnergyCounter("NVML, the whole GPU", read, (math.inf,))
        except GpuError as error:
            counter = EnergyCounter(f"unavailable: {error}")
        yield counter


def _processors(folder: Path) -> EnergyCounter:
    zones = [zone for zone in sorted(folder.glob(_PACKAGES)) if zone.name.count(":") == 1]

    def joules(name: str) -> list[float]:
        return [int((zone / name).read_text()) / 1e6 for zone in zones]

    try:
        joules("energy_uj")
        wraps = tuple(joules("max_energy_range_uj"))
    except (OSError, ValueError) as error:
        return EnergyCounter(f"unavailable: RAPL's counters cannot be read ({error})")
    if not zones:
        return EnergyCounter("unavailable: this machine has no RAPL counters")
    return EnergyCounter("RAPL, all processor packages", lambda: joules("energy_uj"), wraps)
