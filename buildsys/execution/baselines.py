"""Baselines of gates: the earlier builds that they accepted.

The baseline of a gate is part of its key, by the digest of the earlier engine. A build, which is an
engine with its libraries, becomes the baseline of the next one when it passes, not its own: a build
that has been compared keeps the baseline of that comparison, as its record says. So a passed gate
stays up to date, and going back to an earlier engine restores its verdict. Failed and noisy gates
become no baseline, unless a person accepts the build.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

from buildsys.execution.key_parts import FILES
from buildsys.plan.action import Action
from buildsys.store.ledger import ACCEPTED, NOISY, ActionRecord, Ledger, OutputFile
from buildsys.store.object_store import DamagedError, Store

ENGINE = "baseline:engine"  # the label in keys
NONE = "none"
_THIS_BUILD = "accepted"  # in keys: a person has made it the baseline
_NO_BUILD = "there is no earlier build with these libraries, devices and variables"
ABSENT = "absent"  # as in ``action_key``, which imports this module
_ENVIRONMENT = ("device:", "env:")
_LIBRARIES = ("tool:",)
_SHOWN_DIGITS = 12
_COMPARISONS_TO_KEEP = 3  # per gate
Parts = Mapping[str, str]


def baseline_digests(ledger: Ledger, gates: Iterable[str]) -> set[str]:
    """List the digests of engines that gates compare with, now or in the next build."""
    return {
        value
        for gate in gates
        for record in ledger.records(gate, limit=_COMPARISONS_TO_KEEP)
        for label, value in record.parts.items()
        if label == ENGINE or label.startswith("input:")
    }


class GateBaselines:
    """The baselines of a project's gates, from the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def parts(self, action: Action, parts: Parts) -> dict[str, str]:
        """Find the part of the baseline. ``parts`` are the others of the key."""
        if action.baseline is None:
            return {}
        own, others = self._builds(action, parts)
        if own:
            accepted = own[0].status == ACCEPTED
            return {ENGINE: _THIS_BUILD if accepted else own[0].parts.get(ENGINE, NONE)}
        return {ENGINE: _engine(action, others[0].parts) if others else NONE}

    def fetch(
        self, action: Action, parts: Parts, store: Store, folder: Path
    ) -> tuple[dict[str, Any], dict[str, Path]]:
        """Fetch the baseline as JSON values, and its files copied into ``folder``.

        The stage gets ``missing`` without a baseline, or ``reason`` if it cannot run here.
        """
        assert action.baseline is not None
        digest = parts.get(ENGINE, NONE)
        facts: dict[str, Any] = {"reason": ""}
        own, others = self._builds(action, parts)
        if digest == _THIS_BUILD:
            return {**facts, "accepted": own[0].reason if own else "by a person"}, {}
        earlier = next((b for b in others if _engine(action, b.parts) == digest), None)
        if earlier is None:
            missing, hint = _NO_BUILD, "the next build is compared with this one"
            if digest != NONE:
                missing = f"the record of the baseline (engine {digest[:_SHOWN_DIGITS]}) is gone"
            return {**facts, "missing": missing, "hint": hint}, {}
        files: dict[str, Path] = {}
        if changed := _differences(_LIBRARIES, earlier.parts, parts):
            facts["reason"] = f"{', '.join(changed)} changed since the baseline was built"
        elif not earlier.figures.get("engine_options"):
            facts["reason"] = "the options of the baseline are not known"
        else:
            data = action.inputs.get("engine.data")  # the weights next to an engine
            paths = {"engine": action.baseline.engine}
            paths["engine.data"] = data.path if data else f"{action.baseline.engine}.data"
            try:
                for role, path in paths.items():
                    if (content := earlier.parts.get(f"input:{path}", ABSENT)) != ABSENT:
                        files[role] = folder / PurePath(path).name
                        size = store.object_path(content).stat().st_size
                        store.fetch(OutputFile(content, size), files[role])
            except (OSError, DamagedError):
                facts["reason"], files = "the store no longer has the baseline", {}
        when = f"{earlier.started[:16].replace('T', ' ')} UTC"
        return {
            **facts,
            "options": earlier.figures.get("engine_options"),
            "figures": earlier.figures.get("figures", {}),
            "evaluated": earlier.figures.get("evaluated", ""),
            "description": f"the build of {when} (engine {digest[:_SHOWN_DIGITS]})",
            "identity": {"engine": digest, "started": earlier.started},
        }, files

    def _builds(
        self, action: Action, parts: Parts
    ) -> tuple[list[ActionRecord], list[ActionRecord]]:
        """List the records of this build and of others in this environment, newest first.

        A build is an engine with its libraries. Noisy ones are left out.
        """
        own: list[ActionRecord] = []
        others: list[ActionRecord] = []
        for record in self._ledger.records(action.target):
            if record.status != NOISY and not _differences(_ENVIRONMENT, record.parts, parts):
                is_other = _engine(action, record.parts) != _engine(action, parts)
                is_other |= bool(_differences(_LIBRARIES, record.parts, parts))
                (others if is_other else own).append(record)
        return own, others


def _engine(action: Action, parts: Parts) -> str:
    assert action.baseline is not None
    return parts.get(f"input:{action.baseline.engine}", NONE)


def _differences(prefixes: tuple[str, ...], then: Parts, now: Parts) -> list[str]:
    """List the names of different parts."""
    changed = {label for label in then.keys() | now.keys() if then.get(label) != now.get(label)}
    changed -= {f"{label}{FILES}" for label in changed}  # implied by another version
    return sorted(label.partition(":")[2] for label in changed if label.startswith(prefixes))
