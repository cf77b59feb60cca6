"""Baselines of gates: the earlier builds that they accepted.

The baseline of a gate is part of its key, by the digest of the earlier engine. A build, which is an
engine with its libraries, becomes the baseline of the next one when it passes, not its own: a build
that has been compared keeps the baseline of that comparison, as its record says. So a passed gate
stays up to date, and going back to an earlier engine restores its verdict. Failed and noisy gates
become no baseline, unless a person accepts the build. In a clean checkout, the history takes the
place of the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path, PurePath
from typing import Any

from buildsys.execution.key_parts import FILES
from buildsys.plan.action import Action
from buildsys.store.ledger import (
    ACCEPTED,
    NOISY,
    PASSED,
    UNAVAILABLE,
    AcceptedBuild,
    ActionRecord,
    Ledger,
    OutputFile,
    utc_now,
)
from buildsys.store.object_store import DamagedError, Store

ENGINE = "baseline:engine"  # the label in keys
NONE = "none"
_THIS_BUILD = "accepted"  # in keys: a person has made it the baseline
ABSENT = "absent"  # as in ``action_key``, which imports this module
_ENVIRONMENT = ("device:", "env:")
_LIBRARIES = ("tool:",)
_ACCEPTED = (PASSED, UNAVAILABLE)  # a build without a baseline is one for the next
_SHOWN_DIGITS = 12
_SHOWN_DIFFERENCES = 3
_KEPT_COMPARISONS = 3  # per gate
Parts = Mapping[str, str]


def baseline_digests(ledger: Ledger, gates: Iterable[str]) -> set[str]:
    """List the digests of engines that gates compare with, now or in the next build."""
    return {
        value
        for gate in gates
        for record in ledger.records(gate, limit=_KEPT_COMPARISONS)
        for label, value in record.parts.items()
        if label == ENGINE or label.startswith("input:")
    }


# accepted builds outside the ledger, newest first, of a gate, for the target of its engine and the
# digest of its present engine
PastBuilds = Callable[[str, str, str], Iterable[AcceptedBuild]]


def no_builds(*_: str) -> Iterable[AcceptedBuild]:
    """List no builds: there is no history."""
    return ()


class GateBaselines:
    """The baselines of a project's gates, from ledger and history."""

    def __init__(self, ledger: Ledger, past_builds: PastBuilds = no_builds) -> None:
        self._ledger = ledger
        self._past_builds = past_builds

    def parts(self, action: Action, parts: Parts) -> dict[str, str]:
        """Find the part of the baseline. ``parts`` are the others of the key."""
        if action.baseline is None:
            return {}
        records, own = self._comparable(action, parts), _build_of(action, parts)
        for record in records:
            if _build_of(action, record.parts) == own:
                is_accepted = record.status == ACCEPTED
                return {ENGINE: _THIS_BUILD if is_accepted else record.parts.get(ENGINE, NONE)}
        if records:
            return {ENGINE: _engine(action, records[0].parts)}
        past = next(self._past(action, parts), None)
        return {ENGINE: past.engine if past else NONE}

    def fetch(
        self, action: Action, parts: Parts, store: Store, folder: Path
    ) -> tuple[dict[str, Any], dict[str, Path]]:
        """Fetch the baseline as JSON values, and its files copied into ``folder``.

        The stage gets ``missing`` without a baseline, or ``reason`` if it cannot run here.
        """
        assert action.baseline is not None
        digest = parts.get(ENGINE, NONE)
        described: dict[str, Any] = {"current": _engine(action, parts), "reason": ""}
        if digest == _THIS_BUILD:
            records, own = self._comparable(action, parts), _build_of(action, parts)
            reasons = (
                record.reason
                for record in records
                if record.status == ACCEPTED and _build_of(action, record.parts) == own
            )
            return {**described, "accepted": next(reasons, "") or "by a person"}, {}
        earlier = None if digest == NONE else self._earlier(action, parts, digest)
        if earlier is None:
            return {**described, **self._why_none(action, parts, digest)}, {}
        if changed := _differences(_LIBRARIES, earlier.parts, parts):
            described["reason"] = f"{_listed(changed)} changed since the baseline was built"
        elif not earlier.options:
            described["reason"] = "the options of the baseline are not known"
        files: dict[str, Path] = {}
        if not described["reason"]:
            paths = {
                "engine": PurePath(action.baseline.engine),
                "engine.data": PurePath(_data_path(action)),
            }
            try:
                for role, content in (("engine", digest), ("engine.data", earlier.data)):
                    if content != ABSENT:
                        files[role] = folder / paths[role].name
                        size = store.object_path(content).stat().st_size
                        store.fetch(OutputFile(content, size), files[role])
            except (OSError, DamagedError):
                described["reason"], files = "the store no longer has the baseline", {}
        when = f"{earlier.started[:16].replace('T', ' ')} UTC"
        return {
            **described,
            "options": earlier.options,
            "figures": earlier.figures,
            "description": f"the build of {when} (engine {digest[:_SHOWN_DIGITS]})",
            "identity": {"engine": digest, "started": earlier.started},
        }, files

    def accept(self, action: Action, digest: str, parts: Parts, reason: str) -> None:
        """Make the build with a key the baseline of itself and of later builds."""
        self._ledger.forget(action.target, keep_records=True)
        record = ActionRecord(
            target=action.target,
            key=f"{ACCEPTED}:{digest}",
            parts=parts,
            outputs={},
            status=ACCEPTED,
            started=utc_now(),
            seconds=0.0,
            reason=reason,
            figures={"engine_options": action.options["engine"]},
        )
        self._ledger.add(record)

    def _comparable(self, action: Action, parts: Parts) -> list[ActionRecord]:
        """List the records of a gate in this environment, newest first, without noisy ones."""
        return [
            record
            for record in self._ledger.records(action.target)
            if record.status != NOISY and not _differences(_ENVIRONMENT, record.parts, parts)
        ]

    def _earlier(self, action: Action, parts: Parts, digest: str) -> AcceptedBuild | None:
        """Find the last accepted build with an engine."""
        own = _build_of(action, parts)
        for record in self._comparable(action, parts):
            build = _build_of(action, record.parts)
            if build != own and build[0] == digest:
                return AcceptedBuild(
                    digest,
                    record.parts.get(f"input:{_data_path(action)}", ABSENT),
                    record.started,
                    record.parts,
                    record.figures.get("engine_options"),
                    record.figures.get("figures", {}),
                )
        builds = self._past(action, parts)
        return next((build for build in builds if build.engine == digest), None)

    def _past(self, action: Action, parts: Parts) -> Iterator[AcceptedBuild]:
        """Yield other accepted builds of the history in this environment, newest first."""
        assert action.baseline is not None
        own = _engine(action, parts)
        for build in self._past_builds(action.target, action.baseline.target, own):
            if not _differences(_ENVIRONMENT, build.parts, parts) and (
                build.engine != own or _differences(_LIBRARIES, build.parts, parts)
            ):
                yield build

    def _why_none(self, action: Action, parts: Parts, digest: str) -> dict[str, str]:
        """Find the reason for a missing baseline, and its remedy."""
        hint = "the next build is compared with this one"
        if digest != NONE:
            problem = f"the record of the baseline (engine {digest[:_SHOWN_DIGITS]}) is gone"
            return {"missing": problem, "hint": hint}
        earlier: Iterable[Parts] = (r.parts for r in self._ledger.records(action.target, limit=1))
        assert action.baseline is not None
        names = action.target, action.baseline.target, _engine(action, parts)
        past = (build.parts for build in self._past_builds(*names))
        then = next(chain(earlier, past), None)  # the second in a clean checkout
        changed = [] if then is None else _differences(_ENVIRONMENT, then, parts)
        problem = "there is no earlier build"
        if changed:
            problem = f"earlier builds ran in another environment ({_listed(changed)} changed)"
        return {"missing": problem, "hint": hint}


def _build_of(action: Action, parts: Parts) -> tuple[str, dict[str, str]]:
    """Identify a build by its engine and runtime libraries."""
    return _engine(action, parts), {k: v for k, v in parts.items() if k.startswith(_LIBRARIES)}


def _engine(action: Action, parts: Parts) -> str:
    assert action.baseline is not None
    return parts.get(f"input:{action.baseline.engine}", NONE)


def _data_path(action: Action) -> str:
    """Locate the weights next to an engine."""
    assert action.baseline is not None
    data = action.inputs.get("engine.data")
    return data.path if data else f"{action.baseline.engine}.data"


def _differences(prefixes: tuple[str, ...], then: Parts, now: Parts) -> list[str]:
    """List the names of different parts."""
    changed = {label for label in then.keys() | now.keys() if then.get(label) != now.get(label)}
    changed -= {f"{label}{FILES}" for label in changed}  # implied by another version
    return sorted(label.partition(":")[2] for label in changed if label.startswith(prefixes))


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN_DIFFERENCES
    rest = f" and {more} more" if more > 0 else ""
    return ", ".join(names[:_SHOWN_DIFFERENCES]) + rest
