"""The needs of actions, compared with this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from buildsys.plan.action import Needs
from buildsys.system.devices import visible_gpus

LABELS = "BUILDSYS_LABELS"  # of this machine, separated by commas
_GIB = 1 << 30
_HINT = "run it on a machine that has it"


class Machine(NamedTuple):
    """What a machine has."""

    gpus: Sequence[Mapping[str, str]]  # name and compute_capability of each
    memory: int  # bytes, 0 if unknown
    labels: frozenset[str]


def lacking(needs: Needs) -> str:
    """Return what this machine lacks, or "": ``a GPU named H100 (NVIDIA L4 here)``."""
    if not any(needs):
        return ""
    gpus = visible_gpus() if needs.gpu_count else ()
    labels = (label.strip() for label in os.environ.get(LABELS, "").split(","))
    lacks = [*_lacking(Machine(gpus, _memory_bytes(), frozenset(labels)), needs, " here")]
    if needs.gpu_count <= sum(_fits(gpu, needs) for gpu in gpus) < len(gpus):
        # CUDA might use another one
        alone = "alone in CUDA_VISIBLE_DEVICES (other GPUs are visible here)"
        lacks.append(f"{_gpus_in_words(needs)} {alone}")
    return " and ".join(lacks)


def in_gib(size_bytes: float) -> str:
    """Return a size in binary units, as machines have them: 1.5 GiB."""
    return f"{size_bytes / _GIB:.3g} GiB"


def obstacle(lacks: str) -> tuple[str, str]:
    """Return the problem and the next step for what a machine lacks."""
    hint = f"{_HINT}, or list the label in {LABELS} if it applies" if "label" in lacks else _HINT
    return f"it needs {lacks}", hint


def _lacking(machine: Machine, needs: Needs, where: str = "") -> Iterator[str]:
    if needs.gpu_count and sum(_fits(gpu, needs) for gpu in machine.gpus) < needs.gpu_count:
        has = dict.fromkeys(map(_in_words, machine.gpus))
        yield f"{_gpus_in_words(needs)} ({', '.join(has) or 'none'}{where})"
    if needs.memory and 0 < machine.memory < needs.memory:
        yield f"{in_gib(needs.memory)} of memory ({in_gib(machine.memory)}{where})"
    for label in needs.labels:
        if label not in machine.labels:
            yield f"the label {label}"


def _gpus_in_words(needs: Needs) -> str:
    parts = [f"named {needs.gpu}"] if needs.gpu else []
    parts += [f"of compute capability {needs.compute_capability}"] * bool(needs.compute_capability)
    return " ".join(["a GPU" if needs.gpu_count == 1 else f"{needs.gpu_count} GPUs", *parts])


def _in_words(gpu: Mapping[str, str]) -> str:
    name, capability = gpu["name"], gpu["compute_capability"]
    return f"{name} ({capability})" if name and capability else name or capability


def _fits(gpu: Mapping[str, str], needs: Needs) -> bool:
    wanted = needs.compute_capability
    return words(needs.gpu) <= words(gpu["name"]) and wanted in ("", gpu["compute_capability"])


def words(name: str) -> set[str]:
    """Return the words of a GPU's name."""
    return set(re.findall(r"[a-z0-9]+", name.lower()))


def _memory_bytes() -> int:
    """Return the memory of this machine, 0 if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
