"""Graphs by name: ``simplify``, ``convert:fp16``, ``simplify~1``, ``export@v1``.

``STAGE`` is the graph in the build folder, ``STAGE~N`` the Nth different graph before the latest
build, ``STAGE@REV`` the one built from a git revision. Earlier graphs come from the store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildsys.cli.command import unknown_name
from buildsys.cli.console.rows import time_ago
from buildsys.cli.session import Session
from buildsys.errors import StageError, UsageError
from buildsys.execution.build_cache import store_folder
from buildsys.execution.freshness import FRESH, STALE
from buildsys.execution.stale_reasons import summarize_reasons
from buildsys.manifest.project import Project
from buildsys.plan.action import Action
from buildsys.stages.table import SIMPLIFY
from buildsys.store.ledger import PASSED, ActionRecord, Ledger, OutputFile
from buildsys.store.object_store import Store
from buildsys.store.state_db import ReadOnlyStateDb
from buildsys.system.processes import run_python

DEFAULT_STAGE = SIMPLIFY
STORED = "stored"  # the state of an earlier graph, besides fresh, stale and may rerun
_ROLES = ("model", "engine")  # of outputs that are graphs
_VERSION = re.compile(r"([^~@]*)(.*)", re.DOTALL)  # of a graph: ~1 or @REV
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


def ask_inspection(question: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of ``buildsys.onnx_graphs.inspection``, a process with onnx.

    Raises: StageError: a file cannot be read. UsageError: the graph has no such node or tensor.
    """
    done = run_python(("-m", "buildsys.onnx_graphs.inspection"), {"question": question, **request})
    if done.problem:
        raise StageError(f"the graph cannot be read: {done.problem}", "build it again")
    answer: dict[str, Any] = done.json()
    if "error" in answer:
        kind = UsageError if answer.get("usage") else StageError
        raise kind(answer["error"], answer["hint"])
    return answer


def named_graph(session: Session, command: str, name: str) -> tuple[str, GraphFile]:
    """Return model and graph of a target name such as ``MODEL:STAGE~1``.

    Raises: UsageError: an unknown or ambiguous name. StageError: the graph is not built.
    """
    model, graph = split_graph_name(session, command, name)
    return model, find_graph(session, model, graph or DEFAULT_STAGE)


def require_graph(project: Project, model: str) -> None:
    """Refuse a model without an ONNX graph.

    Raises: UsageError: its network is defined by hand.
    """
    spec = project.models[model].data
    if spec["source"] is None:
        hint = f"`buildsys list --all {model}` shows its commands"
        raise UsageError(f"{model} has no network", hint)
    if "tensorrt" in spec["source"]:
        engines = [
            f"`buildsys inspect {model}:engine:{engine['name']}`" for engine in spec["engines"]
        ]
        raise UsageError(
            f"{model} has no ONNX graph: {spec['source']['tensorrt']} defines its network",
            f"{' or '.join(engines)} shows the layers of an engine" if engines else "",
        )


def target_of(name: str) -> str:
    """Return the target in the name of a graph, without its version."""
    return re.split("[~@]", name, maxsplit=1)[0]


def split_graph_name(session: Session, command: str, name: str) -> tuple[str, str]:
    """Split a name into model and graph, "" for a whole model.

    Raises: UsageError: an ambiguous name, or an unknown model.
    """
    typed, version = _VERSION.fullmatch(name).groups()  # type: ignore[union-attr]
    full = None if "*" in typed else session.full_name(typed)
    if full is None or ":" not in full:  # a pattern or a stage may name a single graph
        graphs = [one for one in session.targets_of(typed) if _graph_ref(session.actions[one])]
        if len(graphs) > 1:
            raise UsageError(f"{name!r} names several graphs", f"name one of {', '.join(graphs)}")
        full = graphs[0] if graphs else None
    if full is not None:
        stage, model, *variant = full.split(":", 2)
        graph = "" if stage == "build" else ":".join((stage, *variant))
        return model, (graph or (DEFAULT_STAGE if version else "")) + version
    model, _, graph = typed.partition(":")
    if model not in session.project.models and graph in session.project.models:
        model, graph = graph, model
    return session.one_model(command, [model] if model else []), graph + version


def find_graph(session: Session, model: str, name: str) -> GraphFile:
    """Return a graph of a model; nothing is written.

    Raises: UsageError: no such stage, earlier build or revision. StageError: the graph is not
    built, or no longer stored.
    """
    stage, at, revision = name.partition("@")
    earlier = None if at else _EARLIER.fullmatch(name)
    action = _action(session, model, earlier["stage"] if earlier else stage)
    ledger = Ledger(ReadOnlyStateDb(session.project.state / "state.db"))
    store = Store(store_folder(session.project.state))
    ref = _graph_ref(action)
    if at or earlier:
        if earlier:
            record = _earlier_record(ledger, action, name, int(earlier["steps"] or 1))
        else:
            record = _record_at_revision(session, ledger, store, action, revision)
        state, note = STORED, f"{name} was built {time_ago(record.started)}"
        lost = f"{note}, but is no longer in the store"
        if ref not in record.files:
            raise StageError(lost, "`buildsys history` lists further builds")
        outputs = [record.files[path] for path in (ref, f"{ref}.data") if path in record.files]
        if not all(map(store.holds, outputs)):
            raise StageError(lost, f"`buildsys cache` shows the contents of {store.folder}")
        paths = [store.object_path(output.digest) for output in outputs]
        file, data = paths[0], paths[1] if len(paths) > 1 else None
    else:
        state, note, file = _current(session, action)
        external = file.with_name(f"{file.name}.data")
        data = external if external.is_file() else None
    size = file.stat().st_size + (data.stat().st_size if data else 0)
    return GraphFile(name, action.target, state, note, file, data, ref.endswith(".onnx"), size)


def _action(session: Session, model: str, stage: str) -> Action:
    """Return the target of a stage's graph, for example ``convert:fp16``.

    Raises: UsageError: there is none.
    """
    actions = list(session.actions.of(model).values())
    known: dict[str, Action] = {}
    for action in filter(_graph_ref, actions):
        known[_full_name(action)] = action
        if sum(other.stage == action.stage for other in actions) == 1:
            known[action.stage] = action
    if stage in known:
        return known[stage]
    if not stage.startswith("engine"):
        require_graph(session.project, model)
    listed = f"graphs of {model}: {', '.join(dict.fromkeys(map(_full_name, known.values())))}"
    if any(stage in (action.stage, _full_name(action)) for action in actions):
        several = any(action.stage == stage for action in known.values())
        problem = "has several graphs" if several else "writes no graph"
        raise UsageError(f"{stage} of {model} {problem}", listed)
    raise unknown_name("stage", stage, known, listed)


def is_graph(session: Session, model: str, name: str) -> bool:
    """Return True for a name like ``convert:fp16~1`` of this model's graphs."""
    stage = _VERSION.fullmatch(name).group(1)  # type: ignore[union-attr]
    graphs = filter(_graph_ref, session.actions.of(model).values())
    return any(stage in (action.stage, _full_name(action)) for action in graphs)


def _current(session: Session, action: Action) -> tuple[str, str, Path]:
    """Return state, note and file of a current graph."""
    target, file = action.target, session.project.build / _graph_ref(action)
    if not file.is_file():
        result = session.result(target)
        if result.get("status") in ("unavailable", "failed"):
            why = f"{result['status']}: {result.get('reason') or 'no reason recorded'}"
            raise StageError(
                f"{target} has no graph: it is {why}", "remove the cause, then build it again"
            )
        raise StageError(f"{target} has not been built", f"`buildsys build {target}` builds it")
    explained = session.explain([target])[target]
    if explained.state == FRESH:
        return FRESH, "", file
    problem = "is stale" if explained.state == STALE else "may have to be rebuilt"
    last = explained.last
    built = f"built {time_ago(last.started)}" if last else "in the build folder"
    why = summarize_reasons(explained.reasons, _SHOWN_REASONS)
    shown = f"{target} {problem} ({why}); shown is the graph {built}"
    note = f"{shown}; `buildsys build {target}` rebuilds it"
    return explained.state, note, file


def _earlier_record(ledger: Ledger, action: Action, name: str, steps: int) -> ActionRecord:
    """Return the record of the Nth different graph before the latest one."""
    ref, target = _graph_ref(action), action.target
    contents: list[tuple[OutputFile | None, ...]] = []
    records: list[ActionRecord] = []
    for record in ledger.records(target):
        content = record.files.get(ref), record.files.get(f"{ref}.data")
        if record.status == PASSED and content[0] and content not in contents[-1:]:
            contents.append(content)
            records.append(record)
    if steps < len(records):
        return records[steps]
    count = {0: "no graph is", 1: "one graph is"}.get(
        len(records), f"{len(records)} different graphs are"
    )
    oldest = f"the oldest is {_full_name(action)}~{len(records) - 1}"
    hint = oldest if records else f"`buildsys build {target}` builds it"
    raise UsageError(f"there is no {name}: {count} recorded for {target}", hint)


def _record_at_revision(
    session: Session, ledger: Ledger, store: Store, action: Action, revision: str
) -> ActionRecord:
    from buildsys.cli.git_revision import builds_of, recorded_builds

    records = recorded_builds(ledger, store)
    target = action.target
    found = builds_of(session.project, revision, target, records)
    if found is None:
        raise UsageError(f"{revision} has no target {target}", "name a revision with this target")
    graphs = [record for record in found if _graph_ref(action) in record.files]
    if not graphs:
        problem = f"no stored build of {target} matches {revision}"
        raise StageError(
            problem, f"`git switch --detach {revision}` and `buildsys build {target}` build it"
        )
    return graphs[0]


def _graph_ref(action: Action) -> str:
    """Return the relative path of a target's graph, or ""."""
    return next((action.outputs[role].path for role in _ROLES if role in action.outputs), "")


def _full_name(action: Action) -> str:
    return f"{action.stage}:{action.variant}" if action.variant else action.stage
