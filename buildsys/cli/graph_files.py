"""Graphs by name: ``simplify``, ``convert:fp16``, ``simplify~1``, ``export@v1``.

``STAGE`` is the graph in the build folder, ``STAGE~N`` the Nth different graph before the latest
build, ``STAGE@REV`` the one built from a git revision. Earlier graphs come from the store.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from buildsys.cli.command import require_model, unknown_name
from buildsys.cli.console.rows import time_ago
from buildsys.cli.session import Session
from buildsys.errors import StageError, UsageError
from buildsys.execution.build_cache import store_folder
from buildsys.execution.freshness import FRESH, STALE
from buildsys.execution.stale_reasons import summarize_reasons
from buildsys.plan.action import Action
from buildsys.store.ledger import PASSED, ActionRecord, Ledger, OutputFile
from buildsys.store.object_store import Store
from buildsys.store.state_db import ReadOnlyStateDb
from buildsys.system.processes import run_python

DEFAULT_STAGE = "simplify"
STORED = "stored"  # the state of an earlier graph, besides fresh, stale and may rerun
_ROLES = ("model", "engine")  # of outputs that are graphs
_EARLIER = re.compile(r"(?P<stage>[^~@]*)~(?P<steps>\d*)")
_SHOWN_REASONS = 2


@dataclass(frozen=True)
class GraphFile:
    """A graph as it was built at some time."""

    name: str  # as typed
    target: str
    state: str
    note: str  # "" if it is up to date
    file: Path
    data: Path | None  # external data
    is_onnx: bool
    bytes: int

    def as_json(self) -> dict[str, Any]:
        """Return the graph's place and state."""
        return {
            "name": self.name, "target": self.target, "state": self.state.replace(" ", "-"),
            "note": self.note, "file": str(self.file), "bytes": self.bytes,
        }  # fmt: skip

    def request(self) -> dict[str, str]:
        """Return the graph as part of a question to the inspection process."""
        data = str(self.data.resolve()) if self.data else ""
        return {"file": str(self.file.resolve()), "data": data}


def find_graph(session: Session, command: str, name: str) -> tuple[str, GraphFile]:
    """Return the model and the graph of ``MODEL[:STAGE]``.

    Raises: UsageError: unknown model or stage. StageError: the graph is not built.
    """
    model, _, stage = name.partition(":")
    require_model(command, session.project.models, [model] if model else [])
    return model, GraphFiles(session, model).find(stage or DEFAULT_STAGE)


def ask_inspection(question: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of ``buildsys.onnx_graphs.inspection``, a process with onnx.

    Raises: StageError: a file cannot be read. UsageError: the graph has no such node or tensor.
    """
    done = run_python(("-m", "buildsys.onnx_graphs.inspection"), {"question": question, **request})
    if done.problem:
        raise StageError(f"the graph cannot be read: {done.problem}")
    answer: dict[str, Any] = done.json()
    if "error" in answer:
        kind = UsageError if answer.get("usage") else StageError
        raise kind(answer["error"], answer["hint"])
    return answer


class GraphFiles:
    """The graphs of one model; nothing is written."""

    def __init__(self, session: Session, model: str) -> None:
        self._session = session
        self._model = model
        self._project = session.project

    def find(self, name: str) -> GraphFile:
        """Return the graph of a name.

        Raises: UsageError: no such stage, earlier build or revision. StageError: the graph is not
        built, or no longer stored.
        """
        stage, at, revision = name.partition("@")
        if at:
            return self._at_revision(name, self.action(stage), revision)
        earlier = _EARLIER.fullmatch(name)
        if earlier:
            return self._earlier(name, self.action(earlier["stage"]), int(earlier["steps"] or 1))
        return self._current(name, self.action(name))

    def action(self, stage: str) -> Action:
        """Return the target of a stage's graph, for example ``convert:fp16``.

        Raises: UsageError: there is none.
        """
        actions = list(self._session.actions.of(self._model).values())
        known = {name: one for one in actions for name in _names(one, actions) if graph_ref(one)}
        if stage in known:
            return known[stage]
        full = dict.fromkeys(_full_name(action) for action in known.values())
        listed = f"graphs of {self._model}: {', '.join(full)}"
        if any(stage in (action.stage, _full_name(action)) for action in actions):
            several = any(action.stage == stage for action in known.values())
            problem = "has several graphs" if several else "writes no graph"
            raise UsageError(f"{stage} of {self._model} {problem}", listed)
        raise unknown_name("stage", stage, known, listed)

    @cached_property
    def _ledger(self) -> Ledger:
        return Ledger(ReadOnlyStateDb(self._project.state / "state.db"))

    @cached_property
    def _store(self) -> Store:
        return Store(store_folder(self._project.state))

    def _current(self, name: str, action: Action) -> GraphFile:
        target, file = action.target, self._project.build / graph_ref(action)
        explained = self._session.explain([target])[target]
        if not file.is_file():
            result = self._session.result(target)
            if result.get("status") in ("unavailable", "failed"):
                why = f"{result['status']}: {result.get('reason') or 'no reason recorded'}"
                raise StageError(f"{target} has no graph: it is {why}")
            raise StageError(f"{target} has not been built", f"`doit {target}` builds it")
        note = ""
        if explained.state != FRESH:
            problem = "is stale" if explained.state == STALE else "may have to be rebuilt"
            last = explained.last
            built = f"built {time_ago(last.started)}" if last else "in the build folder"
            why = summarize_reasons(explained.reasons, _SHOWN_REASONS)
            note = f"{target} {problem} ({why}); shown is the graph {built}; "
            note += f"`doit {target}` rebuilds it"
        data = file.with_name(f"{file.name}.data")
        files = file, data if data.is_file() else None
        return _graph_file(name, target, explained.state, note, files)

    def _earlier(self, name: str, action: Action, steps: int) -> GraphFile:
        """Return the Nth different graph before the latest recorded one."""
        ref, target = graph_ref(action), action.target
        contents: list[tuple[OutputFile | None, ...]] = []
        records: list[ActionRecord] = []
        for record in self._ledger.records(target):
            content = record.files.get(ref), record.files.get(f"{ref}.data")
            if record.status == PASSED and content[0] and content not in contents[-1:]:
                contents.append(content)
                records.append(record)
        if steps < len(records):
            return self._stored(name, action, records[steps])
        count = {0: "no graph is", 1: "one graph is"}.get(
            len(records), f"{len(records)} different graphs are"
        )
        oldest = f"the oldest is {_full_name(action)}~{len(records) - 1}"
        hint = oldest if records else f"`doit {target}` builds it"
        raise UsageError(f"there is no {name}: {count} recorded for {target}", hint)

    def _at_revision(self, name: str, action: Action, revision: str) -> GraphFile:
        from buildsys.cli.reachable_builds import builds_of

        def records(target: str) -> list[ActionRecord]:
            """Return the builds of a target, recorded or stored, newest first."""
            found = {record.key: record for record in stored.get(target, ())}
            found |= {record.key: record for record in self._ledger.records(target)}
            passed = (record for record in found.values() if record.status == PASSED)
            return sorted(passed, key=lambda record: record.started, reverse=True)

        stored: dict[str, list[ActionRecord]] = {}
        for one in self._store.actions():
            stored.setdefault(one.record.target, []).append(one.record)
        found = builds_of(self._project, revision, action.target, records)
        if found is None:
            raise UsageError(f"{revision} has no target {action.target}")
        graphs = [record for record in found if graph_ref(action) in record.files]
        if not graphs:
            raise StageError(
                f"no stored build of {action.target} matches {revision}",
                f"`git switch --detach {revision}` and `doit {action.target}` build it",
            )
        return self._stored(name, action, graphs[0])

    def _stored(self, name: str, action: Action, record: ActionRecord) -> GraphFile:
        ref, built = graph_ref(action), f"{name} was built {time_ago(record.started)}"
        paths = []
        for output in (record.files.get(ref), record.files.get(f"{ref}.data")):
            if output and not self._store.holds(output):
                hint = f"`doit cache` shows the contents of {self._store.folder}"
                raise StageError(f"{built}, but is no longer in the store", hint)
            paths.append(self._store.object_path(output.digest) if output else None)
        if paths[0] is None:
            raise StageError(f"{built}, but is no longer in the store")
        suffix = Path(ref).suffix
        return _graph_file(name, action.target, STORED, built, (paths[0], paths[1]), suffix)


def graph_ref(action: Action) -> str:
    """Return the graph of a target, relative to the build folder, or ""."""
    return next((action.outputs[role].path for role in _ROLES if role in action.outputs), "")


def _graph_file(
    name: str, target: str, state: str, note: str, files: tuple[Path, Path | None], suffix: str = ""
) -> GraphFile:
    file, data = files
    size = file.stat().st_size + (data.stat().st_size if data else 0)
    is_onnx = (suffix or file.suffix) == ".onnx"
    return GraphFile(name, target, state, note, file, data, is_onnx, size)


def _full_name(action: Action) -> str:
    return f"{action.stage}:{action.variant}" if action.variant else action.stage


def _names(action: Action, others: Sequence[Action]) -> Iterator[str]:
    """Yield the names of a target's graph, with and without variant."""
    yield _full_name(action)
    if action.variant and sum(other.stage == action.stage for other in others) == 1:
        yield action.stage
