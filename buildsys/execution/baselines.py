"""Baselines of gates: earlier builds.

The baseline of a gate is part of its key, by the digest of the earlier engine. A build that passes
becomes the baseline of the next engine, not its own: an engine that has been compared keeps the
baseline of that comparison, as its record says. So a passed gate stays up to date, and going back
to an earlier engine restores its verdict. Failed gates have no record and become no baseline.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from buildsys.plan.action import Action, BaselineRef
from buildsys.store.ledger import ActionRecord, Ledger, OutputFile
from buildsys.store.object_store import DamagedError, Store

if TYPE_CHECKING:
    from buildsys.history.builds import Build
    from buildsys.history.database import History

ENGINE = "baseline:engine"  # the label in keys
NONE = "none"
_ABSENT = "absent"  # as in ``action_key``, which imports this module
_PINNED = "config:revision"
_ENVIRONMENT = ("device:", "env:")
_LIBRARIES = ("tool:",)
_SHOWN_DIGITS = 12
_GIT_LIMIT_S = 10.0
Parts = Mapping[str, str]


class Baselines:
    """The baselines of a project's gates, from ledger and history."""

    def __init__(self, ledger: Ledger, project: Path, state: Path) -> None:
        self._ledger = ledger
        self._project = project
        self._state = state

    def parts(self, action: Action, parts: Parts) -> dict[str, str]:
        """Return the part of the baseline. ``parts`` are the others of the key."""
        if action.baseline is None:
            return {}
        records = self._comparable(action, parts)
        for record in records:  # compared before, with a baseline or without one
            same_pin = record.parts.get(_PINNED) == parts.get(_PINNED)
            if same_pin and _engine(action, record.parts) == _engine(action, parts):
                return {ENGINE: record.parts.get(ENGINE, NONE)}
        if action.baseline.revision:
            build = self._pinned(action.baseline)
            return {ENGINE: build.outputs.get("engine", NONE) if build else NONE}
        return {ENGINE: _engine(action, records[0].parts) if records else NONE}

    def fetch(
        self, action: Action, parts: Parts, store: Store, folder: Path
    ) -> tuple[dict[str, Any], dict[str, Path]]:
        """Return the baseline as JSON values, and its files copied into ``folder``.

        The stage gets ``missing`` without a baseline, or ``reason`` if it cannot run here.
        """
        assert action.baseline is not None
        digest, records = parts.get(ENGINE, NONE), self._comparable(action, parts)
        record = next((r for r in records if _engine(action, r.parts) == digest), None)
        build = self._pinned(action.baseline) if record is None else None
        if digest == NONE or (record is None and build is None):
            return {"missing": self._why_none(action, records)}, {}
        described: dict[str, Any] = {"reason": "", "earlier": _earlier(action, records, parts)}
        data = started = ""
        if record is not None:
            data = record.parts.get(f"input:{action.baseline.engine}.data", _ABSENT)
            started = record.started
            described["options"] = record.figures.get("engine_options")
            described["figures"] = record.figures.get("figures", {})
            if _of(record.parts, _LIBRARIES) != _of(parts, _LIBRARIES):
                described["reason"] = "libraries have changed since the baseline was built"
        elif build is not None:
            data, started = build.outputs.get("engine.data", _ABSENT), build.started
            described["figures"] = self._pinned_figures(build)
            described["reason"] = self._pinned_reason(build, parts)
        files: dict[str, Path] = {}
        if not described["reason"]:
            try:
                for role, found in (("engine", digest), ("engine.data", data)):
                    if found != _ABSENT:
                        suffix = ".data" if role.endswith(".data") else ""
                        files[role] = folder / (PurePath(action.baseline.engine).name + suffix)
                        size = store.object_path(found).stat().st_size
                        store.fetch(OutputFile(found, size), files[role])
            except (OSError, DamagedError):
                described["reason"], files = "the store no longer has the baseline", {}
        pinned = f"{action.baseline.revision}, " if action.baseline.revision else ""
        described["description"] = (
            f"the build of {started} ({pinned}engine {digest[:_SHOWN_DIGITS]})"
        )
        described["identity"] = {"engine": digest, "started": started}
        return described, files

    def _comparable(self, action: Action, parts: Parts) -> list[ActionRecord]:
        """Return the records of a gate in this environment, newest first."""
        here = _of(parts, _ENVIRONMENT)
        records = self._ledger.records(action.target)
        return [record for record in records if _of(record.parts, _ENVIRONMENT) == here]

    def _why_none(self, action: Action, records: list[ActionRecord]) -> str:
        assert action.baseline is not None
        if action.baseline.revision:
            return f"the history has no build of revision {action.baseline.revision}"
        if self._ledger.records(action.target) and not records:
            return (
                "earlier builds ran in another environment (processors, GPU, driver or variables)"
            )
        return "there is no earlier build; the next one is compared with this one"

    def _pinned(self, baseline: BaselineRef) -> Build | None:
        """Return the last build of the pinned revision."""
        if not baseline.revision:
            return None
        commit = baseline.revision
        with suppress(OSError, subprocess.SubprocessError):  # no repository: as it is written
            command = ("git", "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
            found = subprocess.run(
                command, cwd=self._project, capture_output=True, text=True, timeout=_GIT_LIMIT_S,
                check=False,
            )  # fmt: skip
            commit = found.stdout.strip() or commit
        builds = self._history.builds(target=baseline.target)
        return next(
            (b for b in builds if b.status == "passed" and b.revision.startswith(commit)), None
        )

    @property
    def _history(self) -> History:
        from buildsys.history.database import (
            History,
            history_file,  # only with a pinned revision
        )

        return History.read_only(history_file(self._state))

    def _pinned_figures(self, build: Build) -> dict[str, float]:
        found = {"build_time": build.figures.get("build_seconds")}
        verified = self._history.builds(target=build.target.replace("engine:", "verify:", 1))
        error = next((b.figures.get("relative") for b in verified if b.run == build.run), None)
        return {k: v for k, v in {**found, "error": error}.items() if isinstance(v, (int, float))}

    def _pinned_reason(self, build: Build, parts: Parts) -> str:
        # the engine's key has fewer devices and libraries than the gate's
        then = self._history.environment(build)
        changed = [label for label, value in then.items() if parts.get(label, value) != value]
        return f"{changed[0].partition(':')[2]} has changed since" if changed else ""


def _earlier(action: Action, records: list[ActionRecord], parts: Parts) -> dict[str, list[float]]:
    """Return the figures of the other builds in this environment."""
    found: dict[str, list[float]] = {}
    for record in records:
        if _engine(action, record.parts) != _engine(action, parts):
            for name, value in record.figures.get("figures", {}).items():
                found.setdefault(name, []).append(value)
    return found


def _engine(action: Action, parts: Parts) -> str:
    assert action.baseline is not None
    return parts.get(f"input:{action.baseline.engine}", NONE)


def _of(parts: Parts, prefixes: tuple[str, ...]) -> dict[str, str]:
    return {label: value for label, value in parts.items() if label.startswith(prefixes)}
