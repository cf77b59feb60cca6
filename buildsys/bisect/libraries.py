"""Libraries in other versions than here: environments with them, made on demand."""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

from buildsys.bisect.differences import Difference, Parts
from buildsys.errors import BuildsysError
from buildsys.execution.key_parts import TOOL
from buildsys.execution.stale_reasons import StaleReason
from buildsys.plan.action import Action, ToolchainRef
from buildsys.report.formatting import fold
from buildsys.stages.table import stage_info
from buildsys.store.state_db import warn_on_stderr
from buildsys.system.toolchains import locate_toolchain
from buildsys.system.versions import ABSENT
from buildsys.upgrade.shadow import make_shadow
from buildsys.workers.registry import IDLE_VARIABLE

_LIBRARY = re.compile(rf"{TOOL}([\w.-]+)")
_OTHERS = ("python", "cc")  # programs that pip does not have


class Pin(NamedTuple):
    """A library in another version than here."""

    toolchain: str  # "" for our own interpreter
    name: str
    version: str
    here: str


def recorded_pins(
    actions: Mapping[str, Action], recorded: Parts, here: Parts, names: Collection[str]
) -> frozenset[Pin]:
    """List the libraries of these names that a recorded build had in other versions."""
    pins = set()
    for target, action in actions.items():
        then, now = recorded.get(target, {}), here.get(target, {})
        for label in then.keys() & now.keys():
            match = _LIBRARY.fullmatch(label)
            name = match[1] if match else ""
            if name not in names or name in (*_OTHERS, *action.peer_tools):
                continue
            if then[label] != now[label] and ABSENT not in (then[label], now[label]):
                toolchain = action.runs_in.name if action.runs_in else ""
                pins.add(Pin(toolchain, name, then[label], now[label]))
    return frozenset(pins)


def library_differences(old: Collection[Pin], new: Collection[Pin]) -> list[Difference]:
    """List the libraries whose versions differ between two states."""
    versions = [{pin[:2]: pin.version for pin in pins} for pins in (old, new)]
    differing = {pin[:2]: pin.here for pin in (*old, *new) if (pin in old) != (pin in new)}
    differences = []
    for library, here in sorted(differing.items()):
        before, after = (of_state.get(library, here) for of_state in versions)
        reason = StaleReason("tool", library[1], before, after)
        differences.append(Difference(reason, library=library))
    return differences


def mix_pins(
    old: Iterable[Pin], new: Iterable[Pin], libraries: Collection[tuple[str, str]]
) -> frozenset[Pin]:
    """Give some libraries their new versions."""
    kept = {pin for pin in old if pin[:2] not in libraries}
    return frozenset(kept | {pin for pin in new if pin[:2] in libraries})


class Environments:
    """Environments with pinned libraries, below a temporary folder."""

    def __init__(self, project: Path, folder: Path) -> None:
        self._project, self._folder = project, folder
        self._made: dict[frozenset[Pin], ToolchainRef] = {}

    def available(self, pins: Iterable[Pin], manifest: Mapping[str, Any]) -> frozenset[Pin]:
        """Leave out pins that pip cannot install."""
        available = set[Pin]()
        for toolchain in {pin.toolchain for pin in pins}:
            own = frozenset(pin for pin in pins if pin.toolchain == toolchain)
            if not self._can_have(own, manifest):
                own = frozenset(pin for pin in own if self._can_have(frozenset([pin]), manifest))
                own = own if own and self._can_have(own, manifest) else frozenset()
            available |= own
        return frozenset(available)

    def _can_have(self, pins: frozenset[Pin], manifest: Mapping[str, Any]) -> bool:
        try:
            self._with(pins, manifest)
        except BuildsysError as error:
            warn_on_stderr(f"{_packages(pins)} cannot be had: {fold(str(error))[0]}")
            return False
        return True

    def manifest(
        self, manifest: Mapping[str, Any], engine: str, pins: Iterable[Pin]
    ) -> Mapping[str, Any]:
        """Let an engine run in an environment with the pins of its interpreter."""
        engines = {entry["name"]: entry for entry in manifest["engines"]}
        toolchain = engines.get(engine, {}).get("toolchain") or ""
        if not (own := frozenset(pin for pin in pins if pin.toolchain == toolchain)):
            return manifest
        name, python, variables = self._with(own, manifest)
        place = {"python": python, "env": dict(variables)}
        engines[engine] = {**engines[engine], "toolchain": name}
        toolchains = {**manifest.get("toolchains", {}), name: place}
        return {**manifest, "toolchains": toolchains, "engines": [*engines.values()]}

    def action(self, action: Action, manifest: Mapping[str, Any], pins: Iterable[Pin]) -> Action:
        """Let an action of our own interpreter run with its pins."""
        own = frozenset(pin for pin in pins if not pin.toolchain)
        if not own or action.toolchain or stage_info(action.stage).in_own_interpreter:
            return action
        return replace(action, toolchain=self._with(own, manifest))

    def _with(self, pins: frozenset[Pin], manifest: Mapping[str, Any]) -> ToolchainRef:
        """Make an environment with pins of one interpreter. Raises: BuildsysError."""
        if pins not in self._made:
            (toolchain,) = {pin.toolchain for pin in pins}
            place = manifest.get("toolchains", {}).get(toolchain)
            variables = tuple(sorted(place["env"].items())) if place else ()
            located = place and locate_toolchain(
                toolchain, place["python"], variables, self._project, os.environ
            )
            warn_on_stderr(f"installing {_packages(pins)} into a temporary environment")
            self._folder.mkdir(parents=True, exist_ok=True)
            folder = Path(mkdtemp(dir=self._folder))
            shadow = make_shadow(folder, located, _packages(pins).split(", "), ())
            os.environ[IDLE_VARIABLE] = "0"  # no server outlives it
            self._made[pins] = ToolchainRef(_packages(pins), str(shadow.python), variables)
        return self._made[pins]


def _packages(pins: Iterable[Pin]) -> str:
    return ", ".join(sorted(f"{pin.name}=={pin.version}" for pin in pins))
