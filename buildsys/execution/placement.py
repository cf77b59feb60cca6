"""Placement: which executor runs a target, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from buildsys.execution.executors.interface import LOCAL
from buildsys.execution.machine_needs import Machine, lacking_on
from buildsys.plan.action import Action, Needs

HERE = ""  # the executor of targets that run on this machine


class Placement(NamedTuple):
    """Where a target runs."""

    executor: str  # of project.yaml, "" for this machine
    why: str
    obstacles: tuple[str, ...] = ()  # what each place lacks, if none of them fits


@dataclass(frozen=True)
class Placer:
    """Finds the first place with all needs of a target.

    ``executors`` are those of project.yaml in their order. This machine comes first unless it is
    among them; ``lacking_here`` returns what it lacks.
    """

    executors: Mapping[str, Mapping[str, Any]]
    lacking_here: Callable[[Needs], str]

    def place(self, action: Action) -> Placement:
        """Return the place of an action."""
        if not self.executors:
            return Placement(HERE, "no executors are configured")
        if action.stage == "report":
            return Placement(HERE, "reports are written where doit runs")
        obstacles: list[str] = []
        for name, settings in self._in_order():
            is_here = settings["kind"] == LOCAL
            lacks = self.lacking_here(action.needs) if is_here else _lacking(settings, action.needs)
            if not lacks:
                return Placement(HERE if is_here else name, self._why(action, obstacles))
            obstacles.append(f"{name} lacks {lacks}")
        return Placement(HERE, "no place has what it needs", tuple(obstacles))

    def _in_order(self) -> list[tuple[str, Mapping[str, Any]]]:
        listed = list(self.executors.items())
        if any(settings["kind"] == LOCAL for _, settings in listed):
            return listed
        return [("this machine", {"kind": LOCAL}), *listed]

    def _why(self, action: Action, obstacles: list[str]) -> str:
        if obstacles:
            return "; ".join(obstacles)
        return "the first that has what it needs" if any(action.needs) else "it needs nothing"


def _lacking(settings: Mapping[str, Any], needs: Needs) -> str:
    """Return what an executor's machines lack, by its settings."""
    offers = settings.get("offers") or {}
    gpu, capability = offers.get("gpu", ""), offers.get("compute_capability", "")
    count = offers.get("count", int(bool(gpu or capability)))
    memory = offers.get("memory") or 0
    gpus = ({"name": gpu, "compute_capability": capability},) * count
    return lacking_on(Machine(gpus, memory, frozenset(offers.get("labels") or ())), needs)
