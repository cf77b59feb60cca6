"""Facts about the devices of an action."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from buildsys.system.cpu import core_facts, cpu_facts
from buildsys.system.gpus.selection import gpu_facts

_FACTS: Mapping[str, Callable[[], Mapping[str, str]]] = {
    "cpu": cpu_facts,
    "cores": core_facts,
    "gpu": gpu_facts,
}


def device_facts(devices: Iterable[str]) -> dict[str, str]:
    """Return the facts about each of ``devices``: ``cpu``, ``cores``, ``gpu``."""
    return {label: value for device in devices for label, value in _FACTS[device]().items()}
