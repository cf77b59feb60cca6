"""Baselines of gates: earlier builds.

The baseline of a gate is part of its key, by the digest of the earlier engine. A build, which is an
engine with its libraries, becomes the baseline of the next one when it passes, not its own: a build
that has been compared keeps the baseline of that comparison, as its record says. So a passed gate
stays up to date, and going back to an earlier engine restores its verdict. Failed gates have no
record and become no baseline.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from buildsys.execution.environment_parts import FILES
from buildsys.plan.action import Action
from buildsys.store.ledger import NOISY, PASSED, ActionRecord, Ledger, OutputFile
from buildsys.store.object_store import DamagedError, Store
from buildsys.store.state_db import warn_on_stderr
from buildsys.system.git import commit_query, run_git

if TYPE_CHECKING:
    from buildsys.history.builds import Build
    from buildsys.history.database import History
    from buildsys.history.nights import PresentBuild

ENGINE = "baseline:engine"  # the label in keys
NONE = "none"
_ABSENT = "absent"  # as in ``action_key``, which imports this module
_PINNED = "config:revision"
_ENVIRONMENT = ("device:", "env:")
_LIBRARIES = ("tool:",)
_SHOWN_DIGITS = 12
_SHOWN_DIFFERENCES = 3
_KEPT_COMPARISONS = 3  # of each gate
Parts = Mapping[str, str]


# (revision, target) -> keys of the builds with the inputs of the revision
KeysAtRevision = Callable[[str, str], frozenset[str]]


def baseline_digests(ledger: Ledger, gates: Iterable[str]) -> set[str]:
    """Return the digests of engines that gates compare with, now or in the next build."""
    return {
        value
        for gate in gates
        for record in ledger.records(gate, limit=_KEPT_COMPARISONS)
        for label, value in record.parts.items()
        if label == ENGINE or label.startswith("input:")
    }


class _Commit(NamedTuple):
    """The commit of a pinned revision, or the reason for its absence."""

    name: str
    problem: str = ""
    hint: str = ""


class Baselines:
    """The baselines of a project's gates, from ledger and history."""

    def __init__(
        self,
        ledger: Ledger,
        project: Path,
        state: Path,
        keys_at: KeysAtRevision = lambda *_: frozenset(),
    ) -> None:
        self._ledger = ledger
        self._project = project
        self._state = state
        self._keys_at = cache(keys_at)
        self._warn = cache(warn_on_stderr)  # once, although each look opens the history

    def parts(self, action: Action, parts: Parts) -> dict[str, str]:
        """Return the part of the baseline. ``parts`` are the others of the key."""
        if action.baseline is None:
            return {}
        pin, own = action.baseline.revision, _build_of(action, parts)
        records = self._comparable(action, parts)
        compared = None
        for record in records:  # compared before, with a baseline or without one
            same_pin = record.parts.get(_PINNED) == parts.get(_PINNED)
            if same_pin and _build_of(action, record.parts) == own:
                compared = record
                break
        if compared is not None and (not pin or compared.status == PASSED):
            return {ENGINE: compared.parts.get(ENGINE, NONE)}
        if pin:
            build = self._pinned(action, parts, thorough=compared is None)
            return {ENGINE: build.outputs["engine"] if build else NONE}
        found = _engine(action, records[0].parts) if records else self._recorded(action, parts)
        return {ENGINE: found}

    def fetch(
        self, action: Action, parts: Parts, store: Store, folder: Path
    ) -> tuple[dict[str, Any], dict[str, Path]]:
        """Return the baseline as JSON values, and its files copied into ``folder``.

        The stage gets ``missing`` without a baseline, or ``reason`` if it cannot run here.
        """
        assert action.baseline is not None
        digest, own = parts.get(ENGINE, NONE), _engine(action, parts)
        pin, path = action.baseline.revision, PurePath(action.baseline.engine)
        data = action.inputs.get("engine.data")
        data_path = str(path.with_name(PurePath(data.path).name if data else f"{path.name}.data"))
        own_build = _build_of(action, parts)
        others = [
            record
            for record in self._comparable(action, parts)
            if _build_of(action, record.parts) != own_build
        ]
        record = next((r for r in others if _engine(action, r.parts) == digest), None)
        build = None
        if record is None and digest != NONE:
            build = self._with_engine(action, parts, digest)
        name, remedy = pin or "the baseline", _rebuild(action) if pin else ""
        described: dict[str, Any] = {"current": own, "reason": ""}
        if digest == NONE or (record is None and build is None):
            return {**described, **self._why_none(action, parts, digest)}, {}
        data_digest = started = ""
        if record is not None:
            data_digest = record.parts.get(f"input:{data_path}", _ABSENT)
            started = record.started
            described["options"] = record.figures.get("engine_options")
            described["figures"] = record.figures.get("figures", {})
            if changed := _differences(_LIBRARIES, record.parts, parts):
                described["reason"] = f"{_listed(changed)} changed since the baseline was built"
        elif build is not None:
            data_digest = build.outputs.get("engine.data", _ABSENT)
            started = build.started
            described["figures"] = self._pinned_figures(build)
            described["options"] = self._pinned_options(build)
            environment, libraries = self._changes([build], action, parts)[0]
            if environment:
                problem = f"{_listed(environment)} changed since {name} was built"
                return {"current": own, "missing": problem, "hint": remedy}, {}
            if libraries:
                described |= {
                    "reason": f"{_listed(libraries)} changed since {name} was built",
                    "hint": remedy,
                }
            elif described["options"] is None:
                described |= {"reason": f"the options of {name} cannot be read", "hint": remedy}
        files: dict[str, Path] = {}
        if not described["reason"]:
            try:
                for role, found in (("engine", digest), ("engine.data", data_digest)):
                    if found != _ABSENT:
                        name = data_path if role == "engine.data" else path.name
                        files[role] = folder / PurePath(name).name
                        size = store.object_path(found).stat().st_size
                        store.fetch(OutputFile(found, size), files[role])
            except (OSError, DamagedError):
                described["reason"], files = "the store no longer has the baseline", {}
                described["hint"] = remedy
        pinned = f"{pin}, " if pin else ""
        when = f"{started[:16].replace('T', ' ')} UTC"
        described["description"] = f"the build of {when} ({pinned}engine {digest[:_SHOWN_DIGITS]})"
        described["identity"] = {"engine": digest, "started": started}
        described["nights"] = self._nights(action, parts, digest if pin else "")
        return described, files

    def _comparable(self, action: Action, parts: Parts) -> list[ActionRecord]:
        """Return the records of a gate in this environment, newest first, without noisy ones."""
        return [
            record
            for record in self._ledger.records(action.target)
            if record.status != NOISY and not _differences(_ENVIRONMENT, record.parts, parts)
        ]

    def _recorded(self, action: Action, parts: Parts) -> str:
        """Return the last accepted engine in the history, whose records were deleted."""
        from buildsys.history.nights import last_accepted_engine

        own = self._own_build(action, parts)
        if own is None:
            return NONE
        return last_accepted_engine(self._history, _present(action, parts, own)) or NONE

    def _why_none(self, action: Action, parts: Parts, digest: str) -> dict[str, str]:
        """Return the reason for a missing baseline, and its remedy."""
        assert action.baseline is not None
        pin, next_one = action.baseline.revision, "the next build is compared with this one"
        if pin:
            commit = self._commit(pin)
            if commit.problem:
                return {"missing": commit.problem, "hint": commit.hint}
            is_dirty = any(b.dirty for b in self._passed(action) if b.revision == commit.name)
            only = " without uncommitted changes" if is_dirty else ""
            problem = f"the history has no build of revision {pin}{only}"
            return {"missing": problem, "hint": _rebuild(action)}
        if digest != NONE:
            problem = f"the record of the baseline (engine {digest[:_SHOWN_DIGITS]}) is gone"
            return {"missing": problem, "hint": next_one}
        records = self._ledger.records(action.target)
        changed = _differences(_ENVIRONMENT, records[0].parts, parts) if records else []
        if not records:  # a clean checkout
            history = self._history
            for build in history.builds(target=action.target, limit=1):
                changed = _differences(_ENVIRONMENT, history.environment(build), parts)
        if changed:
            problem = f"earlier builds ran in another environment ({_listed(changed)} changed)"
            return {"missing": problem, "hint": next_one}
        return {"missing": "there is no earlier build", "hint": next_one}

    def _commit(self, revision: str) -> _Commit:
        try:
            done = run_git(self._project, *commit_query(revision))
        except OSError:
            return _Commit("", f"revision {revision} needs git, which is not installed")
        if done.returncode == 0:
            return _Commit(done.stdout.decode().strip())
        if b"not a git repository" in done.stderr:
            return _Commit("", f"revision {revision} needs a git repository")
        hint = "correct `gates.revision`, or get it with `git fetch --tags`"
        return _Commit("", f"git knows no revision {revision}", hint)

    def _pinned(self, action: Action, parts: Parts, *, thorough: bool) -> Build | None:
        """Return the pinned revision's best build: runnable here, then the newest.

        A ``thorough`` search also finds builds of another revision with the same inputs: a target
        that was up to date at the pinned one was not built there.
        """
        assert action.baseline is not None
        pin, passed = action.baseline.revision, self._passed(action)
        commit = self._commit(pin).name
        builds = [b for b in passed if commit and b.revision == commit and not b.dirty]
        if not builds and commit and thorough:
            keys = self._keys_at(pin, action.baseline.target)
            builds = [build for build in passed if build.key in keys]
        return self._nearest(builds, action, parts)

    def _with_engine(self, action: Action, parts: Parts, digest: str) -> Build | None:
        builds = [b for b in self._passed(action) if b.outputs["engine"] == digest]
        return self._nearest(builds, action, parts)

    def _passed(self, action: Action) -> list[Build]:
        assert action.baseline is not None
        builds = self._history.builds(target=action.baseline.target)
        return [b for b in builds if b.status == PASSED and "engine" in b.outputs]

    def _nearest(self, builds: list[Build], action: Action, parts: Parts) -> Build | None:
        """Return the newest build with the fewest differences in environment."""
        changes = self._changes(builds, action, parts)
        order = sorted(range(len(builds)), key=lambda n: tuple(map(bool, changes[n])))
        return builds[order[0]] if order else None

    def _changes(
        self, builds: list[Build], action: Action, parts: Parts
    ) -> list[tuple[list[str], list[str]]]:
        """Return the changes of environment and libraries since builds of an engine."""
        # the gate's key has more devices, variables and libraries than that of the engine
        history, own = self._history, self._own_build(action, parts)
        now = history.environment(own) if own else {}
        found = []
        for build in builds:
            then = history.environment(build)
            environment = _differences(_ENVIRONMENT, then, now or parts, common=not now)
            found.append((environment, _differences(_LIBRARIES, then, parts, common=True)))
        return found

    @property
    def _history(self) -> History:
        """The history as it is now: this run adds to it."""
        # a run without gates loads none of this
        from buildsys.history.database import History, history_file

        return History.read_only(history_file(self._state), self._warn)

    def _nights(self, action: Action, parts: Parts, pinned: str) -> dict[str, Any]:
        from buildsys.history.nights import gate_nights

        present = _present(action, parts, self._own_build(action, parts))
        return gate_nights(self._history, present, pinned=pinned)._asdict()

    def _own_build(self, action: Action, parts: Parts) -> Build | None:
        """Return the last recorded build of the present engine."""
        present = _engine(action, parts)
        return next((b for b in self._passed(action) if b.outputs["engine"] == present), None)

    def _pinned_figures(self, build: Build) -> dict[str, float]:
        history, here = self._history, build.machine_id
        engines = history.builds(target=build.target, machine_id=here)
        others = [b.position for b in engines if b.outputs.get("engine") != build.outputs["engine"]]
        next_one = min((at for at in others if at > build.position), default=math.inf)
        verify = build.target.replace("engine:", "verify:", 1)
        own = [
            one.figures.get("relative")
            for one in history.builds(target=verify, machine_id=here)
            if build.position < one.position < next_one and one.status == PASSED
        ]
        found = {
            "size": build.figures.get("bytes"),
            "build_time": build.figures.get("build_seconds"),
            "error": own[0] if own else None,
        }
        return {k: float(v) for k, v in found.items() if isinstance(v, (int, float))}

    def _pinned_options(self, build: Build) -> Mapping[str, Any] | None:
        """Return the options of the engine's build, None if not readable."""
        from buildsys.plan.model_plan import ModelPlan

        with suppress(LookupError, TypeError, ValueError, AttributeError):
            engines = ModelPlan(self._history.manifest(build)).engines
            options = next(one.options for one in engines if one.name == build.variant)
            return dict(json.loads(json.dumps(options)))
        return None


def _present(action: Action, parts: Parts, own: Build | None) -> PresentBuild:
    """Return the build to compare; ``own`` is its record."""
    from buildsys.history.nights import PresentBuild
    from buildsys.history.recorder import machine_id

    project = own.project if own else ""
    return PresentBuild(action.target, machine_id(), parts, _engine(action, parts), project)


def _rebuild(action: Action) -> str:
    assert action.baseline is not None
    revision, target = action.baseline.revision, action.baseline.target
    return f"`git switch --detach {revision}` and `doit -a {target}` build it"


def _build_of(action: Action, parts: Parts) -> tuple[str, dict[str, str]]:
    """Return the identity of a build: its engine and runtime libraries."""
    return _engine(action, parts), {k: v for k, v in parts.items() if k.startswith(_LIBRARIES)}


def _engine(action: Action, parts: Parts) -> str:
    assert action.baseline is not None
    return parts.get(f"input:{action.baseline.engine}", NONE)


def _differences(
    prefixes: tuple[str, ...], then: Parts, now: Parts, *, common: bool = False
) -> list[str]:
    """Return the names of different parts, with ``common`` among shared ones."""
    labels = then.keys() & now.keys() if common else then.keys() | now.keys()
    changed = {one for one in labels if then.get(one) != now.get(one)}
    changed -= {f"{one}{FILES}" for one in changed}  # implied by another version
    return sorted(one.partition(":")[2] for one in changed if one.startswith(prefixes))


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN_DIFFERENCES
    rest = f" and {more} more" if more > 0 else ""
    return ", ".join(names[:_SHOWN_DIFFERENCES]) + rest
