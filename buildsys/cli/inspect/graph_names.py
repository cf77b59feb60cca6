"""Where the graph lies that a name such as ``simplify``, ``convert:fp16``, ``simplify~1`` or ``export@v1`` stands for.

``STAGE`` is the graph in the build folder, ``STAGE~N`` the Nth different graph before the last one that was built,
``STAGE@REV`` the one that was built from the manifests and sources of a git revision. Earlier ones come from the store.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from buildsys.cli.console.listing import moment
from buildsys.cli.session import Session
from buildsys.cli.targets import explanations
from buildsys.errors import StageError, UsageError
from buildsys.execution.build_cache import store_folder
from buildsys.execution.freshness import FRESH, STALE
from buildsys.execution.stale_reasons import summarize_reasons
from buildsys.plan.action import Action
from buildsys.store.ledger import PASSED, ActionRecord, Ledger, OutputFile
from buildsys.store.object_store import Store
from buildsys.store.state_db import ReadOnlyStateDb
from buildsys.system.suggestions import nearest

_ROLES = ("model", "engine")  # of outputs that are graphs
_BACK = re.compile(r"(?P<stage>[^~@]*)~(?P<steps>\d*)")
_SHOWN_REASONS = 2
STORED = "stored"  # beside fresh, stale and may rerun


@dataclass(frozen=True)
class GraphFile:
    """A graph of a model as it was built at some time."""

    asked: str  # as on the command line
    target: str
    state: str  # fresh | stale | may rerun: the one in the build folder; stored: an earlier one
    note: str  # "" where there is nothing to say about it
    file: Path
    data: Path | None  # its external data
    is_onnx: bool
    bytes: int

    def as_json(self) -> dict[str, Any]:
        """Return what programs may want to know."""
        return {
            "name": self.asked, "target": self.target, "state": self.state.replace(" ", "-"), "note": self.note,
            "file": str(self.file), "bytes": self.bytes,
        }  # fmt: skip


class GraphFiles:
    """The graphs of one model of a project; nothing is written."""

    def __init__(self, session: Session, model: str) -> None:
        self._session = session
        self._model = model
        self._project = session.project

    def find(self, name: str) -> GraphFile:
        """Return the graph that a name stands for.

        Raises: UsageError: there is no such stage, earlier build or revision. StageError: it is not built, or not
            stored any more.
        """
        stage, at, revision = name.partition("@")
        if at:
            return self._at_revision(name, self.action(stage), revision)
        back = _BACK.fullmatch(name)
        if back:
            return self._before(name, self.action(back["stage"]), int(back["steps"] or 1))
        return self._current(name, self.action(name))

    def action(self, stage: str) -> Action:
        """Return the target that makes the graph of a stage, e.g. ``convert:fp16``.

        Raises: UsageError: there is none; the nearest known ones are told.
        """
        known = {
            name: action
            for action in self._actions
            for name in _names(action, self._actions)
            if graph_ref(action)
        }
        if stage in known:
            return known[stage]
        full = dict.fromkeys(_full_name(action) for action in known.values())
        listed = f"graphs of {self._model}: {', '.join(full)}"
        if any(stage in (action.stage, _full_name(action)) for action in self._actions):
            several = any(action.stage == stage for action in known.values())
            problem = "has several graphs" if several else "writes no graph"
            raise UsageError(f"{stage} of {self._model} {problem}", listed)
        near = nearest(stage, known)
        raise UsageError(
            f"there is no stage {stage!r}", f"nearest: {', '.join(near)}" if near else listed
        )

    @cached_property
    def _actions(self) -> list[Action]:
        return list(self._session.actions.of(self._model).values())

    @cached_property
    def _ledger(self) -> Ledger:
        return Ledger(ReadOnlyStateDb(self._project.state / "state.db"))

    @cached_property
    def _store(self) -> Store:
        return Store(store_folder(self._project.state))

    def _current(self, name: str, action: Action) -> GraphFile:
        ref = graph_ref(action)
        file = self._project.build / ref
        explained = explanations(self._session, [action.target])[action.target]
        if not file.is_file():
            raise _not_built(action, self._session.result(action.target))
        note = ""
        if explained.state != FRESH:
            problem = (
                "is not up to date" if explained.state == STALE else "may have to be built again"
            )
            built = (
                f" was built {moment(explained.last.started)}"
                if explained.last
                else " lies in the build folder"
            )
            why = summarize_reasons(explained.reasons, _SHOWN_REASONS)
            note = f"{action.target} {problem} ({why}); this is what{built}; `doit {action.target}` builds it"
        data = file.with_name(f"{file.name}.data")
        return _graph_file(
            name, action.target, explained.state, note, (file, data if data.is_file() else None)
        )

    def _before(self, name: str, action: Action, steps: int) -> GraphFile:
        ref = graph_ref(action)
        graphs: list[ActionRecord] = []
        for record in self._ledger.records(action.target):
            if (
                record.status == PASSED
                and ref in record.files
                and not _is_same(graphs, record, ref)
            ):
                graphs.append(record)
        if steps >= len(graphs):
            count = f"{len(graphs)} different graphs" if len(graphs) != 1 else "one graph"
            hint = (
                f"the oldest is {_full_name(action)}~{len(graphs) - 1}"
                if graphs
                else f"`doit {action.target}` builds it"
            )
            raise UsageError(
                f"there is no {name}: of {action.target} {count} {'is' if len(graphs) == 1 else 'are'} recorded",
                hint,
            )
        return self._stored(name, action, graphs[steps])

    def _at_revision(self, name: str, action: Action, revision: str) -> GraphFile:
        from buildsys.cli.cache.reachable import builds_of

        found = builds_of(self._project, revision, action.target, self._records)
        if found is None:
            raise UsageError(f"{revision} has no target {action.target}")
        graphs = [record for record in found if graph_ref(action) in record.files]
        if not graphs:
            hint = f"`git switch --detach {revision}` and `doit {action.target}` build it"
            raise StageError(
                f"nothing that is stored was built from {action.target} as it is at {revision}",
                hint,
            )
        return self._stored(name, action, graphs[0])

    def _records(self, target: str) -> list[ActionRecord]:
        """Return what is known of the builds of a target, newest first: those here and those in the store."""
        found = {record.key: record for record in self._all_stored.get(target, ())}
        found |= {record.key: record for record in self._ledger.records(target)}
        passed = (record for record in found.values() if record.status == PASSED)
        return sorted(passed, key=lambda record: record.started, reverse=True)

    @cached_property
    def _all_stored(self) -> dict[str, list[ActionRecord]]:
        found: dict[str, list[ActionRecord]] = {}
        for stored in self._store.actions():
            found.setdefault(stored.record.target, []).append(stored.record)
        return found

    def _stored(self, name: str, action: Action, record: ActionRecord) -> GraphFile:
        ref = graph_ref(action)
        files = [self._content(name, record.files.get(path)) for path in (ref, f"{ref}.data")]
        if files[0] is None:
            raise StageError(
                f"{name} was built {moment(record.started)}, but is not in the store any more"
            )
        note = f"{name} was built {moment(record.started)}"
        return _graph_file(
            name, action.target, STORED, note, (files[0], files[1]), suffix=Path(ref).suffix
        )

    def _content(self, name: str, output: OutputFile | None) -> Path | None:
        if output is None:
            return None
        if not self._store.holds(output):
            hint = f"it was collected, or never kept: `doit cache` tells of {self._store.folder}"
            raise StageError(
                f"{name} is recorded, but a file of it is not in the store any more", hint
            )
        return self._store.object_path(output.digest)


def graph_ref(action: Action) -> str:
    """Return the path of the graph that a target writes, relative to the build folder; "" where it writes none."""
    return next((action.outputs[role].path for role in _ROLES if role in action.outputs), "")


def _graph_file(
    name: str, target: str, state: str, note: str, files: tuple[Path, Path | None], suffix: str = ""
) -> GraphFile:
    file, data = files
    size = file.stat().st_size + (data.stat().st_size if data else 0)
    return GraphFile(
        name, target, state, note, file, data, (suffix or file.suffix) == ".onnx", size
    )


def _full_name(action: Action) -> str:
    return f"{action.stage}:{action.variant}" if action.variant else action.stage


def _names(action: Action, others: Sequence[Action]) -> Iterator[str]:
    """Yield what a target's graph may be called: a stage that a model has once needs no variant."""
    yield _full_name(action)
    if action.variant and sum(other.stage == action.stage for other in others) == 1:
        yield action.stage


def _is_same(graphs: Sequence[ActionRecord], record: ActionRecord, ref: str) -> bool:
    """Tell whether a record has the very graph of the one before it in the list."""
    files = (ref, f"{ref}.data")
    return bool(graphs) and all(
        graphs[-1].files.get(path) == record.files.get(path) for path in files
    )


def _not_built(action: Action, result: Mapping[str, Any]) -> StageError:
    if result.get("status") in ("unavailable", "failed"):
        return StageError(
            f"{action.target} has no graph: it is {result['status']}: {result.get('reason') or '?'}"
        )
    return StageError(f"{action.target} has not been built", f"`doit {action.target}` builds it")


def read_result(graph: GraphFile) -> dict[str, Any]:
    """Return the result file beside an engine in the build folder, {} where there is none."""
    path = graph.file.with_name("engine.json")
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def shown_path(path: Path) -> str:
    """Return a path as people read it: relative where that is no longer."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)
