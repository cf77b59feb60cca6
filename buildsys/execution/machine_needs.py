"""The needs of actions, compared with this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from buildsys.plan.action import Needs
from buildsys.system.devices import visible_gpus

LABELS = "BUILDSYS_LABELS"  # of this machine, separated by commas
_GIB = 1 << 30
_HINT = "run it on a machine that has it"


def lacking(needs: Needs) -> str:
    """Return what this machine lacks, or "": ``a GPU named H100 (NVIDIA L4 here)``."""
    return " and ".join(_lacking(needs))


def obstacle(lacks: str) -> tuple[str, str]:
    """Return the problem and the next step for what a machine lacks."""
    hint = f"{_HINT}, or list the label in {LABELS} if it applies" if "label" in lacks else _HINT
    return f"it needs {lacks}", hint


def _lacking(needs: Needs) -> Iterator[str]:
    if needs.count:
        yield from _lacking_gpus(needs)
    if needs.memory and (memory := _memory_bytes()) and memory < needs.memory:
        yield f"{_gib(needs.memory)} of memory ({_gib(memory)} here)"
    own = {label.strip() for label in os.environ.get(LABELS, "").split(",")}
    for label in needs.labels:
        if label not in own:
            yield f"the label {label}"


def _lacking_gpus(needs: Needs) -> Iterator[str]:
    gpus = visible_gpus()
    fitting = [gpu for gpu in gpus if _fits(gpu, needs)]
    parts = [f"named {needs.gpu}"] if needs.gpu else []
    parts += [f"of compute capability {needs.compute_capability}"] * bool(needs.compute_capability)
    noun = " ".join(["a GPU" if needs.count == 1 else f"{needs.count} GPUs", *parts])
    if len(fitting) < needs.count:
        names = dict.fromkeys(f"{gpu['name']} ({gpu['compute_capability']})" for gpu in gpus)
        yield f"{noun} ({', '.join(names) or 'none'} here)"
    elif len(fitting) < len(gpus):  # CUDA might use another one
        yield f"{noun} alone in CUDA_VISIBLE_DEVICES (other GPUs are visible here)"


def _fits(gpu: dict[str, str], needs: Needs) -> bool:
    wanted = needs.compute_capability
    return _words(needs.gpu) <= _words(gpu["name"]) and wanted in ("", gpu["compute_capability"])


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))


def _memory_bytes() -> int:
    """Return the memory of this machine, 0 if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.3g} GiB"
