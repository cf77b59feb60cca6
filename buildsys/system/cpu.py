"""The processor: model, instruction sets, cores, load."""

import os
import platform
import re
import resource
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import takewhile
from pathlib import Path

_CPU_LIMIT = "/sys/fs/cgroup/cpu.max"
_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_CACHES = "/sys/devices/system/cpu/cpu{}/cache"
_STAT = Path("/proc/stat")
_IDLE_FIELDS = (3, 4)  # idle and iowait in a line of /proc/stat
_INSTRUCTION_SETS = re.compile(
    r"\b(sse4_2|avx|avx2|fma|f16c|avx_vnni|avx512\w*|amx_\w+|asimd\w*|sve\w*|i8mm|bf16|fphp)\b"
)
# ONNX Runtime selects weight layouts and kernels by these
_ENGINE_INSTRUCTIONS = (
    "avx", "avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512_vnni", "avx_vnni", "amx_tile",
    "asimd", "sve",
)  # fmt: skip


def read_cpuinfo() -> dict[str, str]:
    """Read the first processor's fields in /proc/cpuinfo. {} without that file."""
    try:
        with Path("/proc/cpuinfo").open(errors="replace") as lines:
            # reading on would make the kernel describe every other processor
            parts = (line.partition(":") for line in takewhile(str.strip, lines))
            return {name.strip(): value.strip() for name, _, value in parts}
    except OSError:
        return {}


def cpu_model() -> str:
    """Return the vendor's name of the processor."""
    return read_cpuinfo().get("model name") or platform.processor() or platform.machine()


def cpu_flags() -> str:
    """Return the processor's feature flags, separated by spaces."""
    fields = read_cpuinfo()
    return fields.get("flags") or fields.get("Features") or ""


def engine_instructions() -> list[str]:
    """List the instruction sets relevant to ONNX Runtime engines."""
    present = set(cpu_flags().split())
    return [name for name in _ENGINE_INSTRUCTIONS if name in present]


def overflows_in_int8(instructions: Collection[str]) -> bool:
    """Check for x86 without VNNI: it adds products of uint8 and int8 in 16 bits."""
    return "avx" in instructions and not {"avx512_vnni", "avx_vnni"} & set(instructions)


@cache
def cpu_facts() -> Mapping[str, str]:
    """Return an action key's parts about the processor."""
    fields = read_cpuinfo()
    model = fields.get("model name") or fields.get("CPU part") or cpu_model()
    return {
        "cpu.model": f"{model} ({platform.machine()})",
        "cpu.instructions": " ".join(sorted(set(_INSTRUCTION_SETS.findall(cpu_flags())))),
    }


def usable_processors() -> list[int]:
    """List the logical processors available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Count the usable physical cores, at most as many as a container may use at a time."""
    cores = set[str]()
    for processor in usable_processors():
        try:
            cores.add(Path(_TOPOLOGY.format(processor)).read_text().strip())
        except OSError:
            cores.add(str(processor))
    return max(1, min(len(cores), _quota()))


def usable_threads(environment: Mapping[str, str]) -> int:
    """Count the threads for computations: the usable cores, or ``OMP_NUM_THREADS`` if fewer."""
    with suppress(KeyError, ValueError):
        return max(1, min(usable_cores(), int(environment["OMP_NUM_THREADS"])))
    return usable_cores()


def cache_bytes() -> int:
    """Add up the last-level caches of the usable processors, 0 if they are unknown."""
    caches: dict[str, int] = {}
    for processor in usable_processors():
        with suppress(OSError, ValueError):
            last = max(Path(_CACHES.format(processor)).glob("index*"))
            size = (last / "size").read_text().strip()
            caches[(last / "shared_cpu_list").read_text()] = int(size.removesuffix("K")) * 1024
    return sum(caches.values())


def _quota() -> int:
    """Read the limit of this container, by default a large number."""
    try:
        time_us, period_us = Path(_CPU_LIMIT).read_text().split()
        return int(time_us) // int(period_us)
    except (OSError, ValueError):  # "max", or another version of control groups
        return sys.maxsize


class OtherLoad:
    """CPU usage of other processes since this object was created.

    It is the busy time of the processors that this process may use, stolen time included, minus the
    time of this process and its children. A sum over processes would miss those that end between
    two readings.
    """

    def __init__(self, ours: Sequence[int] = ()) -> None:
        """Start measuring. The running children in ``ours`` count as this process."""
        self._ours = tuple(ours)
        self._start = self._ticks()

    def share(self) -> float | None:
        """Compute the share of CPU time used by others. None if unknown."""
        now = self._ticks()
        if now is None or self._start is None:
            return None
        others, total = (end - start for end, start in zip(now, self._start, strict=True))
        return min(1.0, max(0.0, others / total)) if total else 0.0

    def _ticks(self) -> tuple[float, float] | None:
        """Read the ticks used by others and those of all processors."""
        try:
            processors = _read_ticks(_STAT.read_text())
        except (OSError, ValueError, LookupError):
            return None
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = time.process_time() + ended.ru_utime + ended.ru_stime
        own *= os.sysconf("SC_CLK_TCK")
        for pid in self._ours:
            with suppress(OSError):  # it has ended
                status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                own += int(status[11]) + int(status[12])
        idle = sum(fields[index] for fields in processors for index in _IDLE_FIELDS)
        total = sum(map(sum, processors))
        return total - idle - own, total


def _read_ticks(stat: str) -> list[list[int]]:
    """Read the ticks of usable processors, of all if their numbers are others."""
    rows = [line.split() for line in stat.splitlines() if line.startswith("cpu")]
    ticks = {row[0]: [int(field) for field in row[1:9]] for row in rows}
    usable = [ticks[name] for n in usable_processors() if (name := f"cpu{n}") in ticks]
    return usable or [ticks["cpu"]]
