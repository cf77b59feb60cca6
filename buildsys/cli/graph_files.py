"""Graphs by name: ``MODEL:simplify``, ``MODEL:convert:fp16@previous``, ``MODEL:export@v1``.

Without ``@WHEN`` it is the graph in the build folder; WHEN names a recorded build as in
``build_names``, whose graph comes from the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildsys.cli.build_names import BuildNames
from buildsys.cli.command import unknown_name
from buildsys.cli.console.rows import time_ago
from buildsys.cli.session import BuildSession
from buildsys.errors import StageError, UsageError
from buildsys.execution.build_cache import store_folder
from buildsys.execution.freshness import FRESH
from buildsys.execution.stale_reasons import summarize_reasons
from buildsys.history.database import History, history_file
from buildsys.plan.action import Action
from buildsys.project.plan import model_of
from buildsys.stages.table import ENGINE, SIMPLIFY, target_of
from buildsys.store.object_store import Store
from buildsys.system.processes import run_python

STORED = "stored"  # the state of an earlier graph, besides fresh, stale and may rerun
_ROLES = ("model", "engine")  # outputs that are graphs
_SHOWN_REASONS = 2


@dataclass(frozen=True)
class GraphFile:
    """A graph as it was built at some time."""

    action: Action
    when: str  # "" or @WHEN
    state: str
    note: str  # "" if it is up to date
    file: Path
    data: Path | None  # external data

    @property
    def name(self) -> str:
        """The name without the model, such as ``convert:fp16@previous``."""
        return stage_of(self.action) + self.when

    @property
    def bytes(self) -> int:
        """The size of the graph with its external data."""
        return sum(file.stat().st_size for file in (self.file, self.data) if file)

    def as_json(self) -> dict[str, Any]:
        """Describe the graph's place and state."""
        state = self.state.replace(" ", "-")
        place = {"file": str(self.file), "bytes": self.bytes}
        title = {"name": self.name, "target": self.action.target}
        return {**title, "state": state, "note": self.note, **place}

    def request(self) -> dict[str, str]:
        """Name the graph's files for the inspection process."""
        return graph_request(self.file, self.data)


def graph_request(file: Path, data: Path | None = None) -> dict[str, str]:
    """Name the files of a graph for ``ask_inspection``."""
    data = data or _external_data(file)
    return {"file": str(file.resolve()), "data": str(data.resolve()) if data else ""}


def _external_data(file: Path) -> Path | None:
    data = file.with_name(f"{file.name}.data")
    return data if data.is_file() else None


def ask_inspection(question: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Ask ``buildsys.onnx_graphs.inspection``, a process with onnx.

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


def find_graph(session: BuildSession, name: str) -> GraphFile:
    """Find the graph of a name; nothing is written.

    Raises: UsageError: an unknown or ambiguous name. StageError: the graph is not built, or no
    longer stored.
    """
    typed, at, when = name.partition("@")
    action = graph_action(session, typed)
    if not at:
        return _current_graph(session, action)
    history, role = History.readable(history_file(session.project.state)), graph_role(action)
    build, note = BuildNames(session, history).of_target(action.target, role, when)
    store = Store(store_folder(session.project.state))
    digests = [build.outputs[name] for name in (role, f"{role}.data") if name in build.outputs]
    file, *data = (store.object_path(digest).resolve() for digest in digests)
    if not all(path.is_file() for path in (file, *data)):
        problem = f"the graph of build {build.short_id} of {build.target} is no longer in the store"
        raise StageError(problem, "`buildsys history` lists the builds")
    note = note or f"{stage_of(action)}{at}{when} was built {time_ago(build.started)}"
    return GraphFile(action, at + when, STORED, note, file, data[0] if data else None)


def graph_action(session: BuildSession, name: str) -> Action:
    """Find the target that writes the graph of a name; a model's is the simplified graph.

    Raises: UsageError: there is none, or several.
    """
    full = None if "*" in name else session.full_name(name)
    if full is not None and full.startswith("build:"):
        full = target_of(SIMPLIFY, model_of(full))
    graphs = [t for t in session.targets_of(full or name) if graph_role(session.actions[t])]
    if len(graphs) == 1:
        return session.actions[graphs[0]]
    words, models = name.split(":"), session.project.models
    model = next(filter(models.__contains__, words), None)
    if model is None:
        raise unknown_name("model", words[0], models, f"models: {', '.join(models) or 'none yet'}")
    stages = [stage_of(a) for a in session.actions.of(model).values() if graph_role(a)]
    listed = f"graphs of {model}: {', '.join(stages) or 'none'}"
    raise UsageError(f"{name!r} is not the name of one graph", listed)


def require_onnx_graph(graph: GraphFile) -> None:
    """Refuse an engine that is not an ONNX file.

    Raises: UsageError: it is one.
    """
    if not writes_onnx(graph.action):
        hint = "name the graph from which it was built, such as simplify"
        raise UsageError(f"{graph.action.target} is an engine without a readable graph", hint)


def names_graph(session: BuildSession, name: str) -> bool:
    """Check whether a name such as ``MODEL:STAGE@WHEN`` is one of a single graph."""
    typed = without_time(name)
    action = session.actions.get("" if "*" in typed else session.full_name(typed) or "")
    return action is not None and action.stage != ENGINE and bool(graph_role(action))


def without_time(name: str) -> str:
    """Cut ``@WHEN`` off the name of a graph."""
    return name.partition("@")[0]


def graph_role(action: Action) -> str:
    """Name the output that is the target's graph, "" without one."""
    return next((role for role in _ROLES if role in action.outputs), "")


def writes_onnx(action: Action) -> bool:
    """Check that a target's graph is not an engine that only its library reads."""
    return action.outputs[graph_role(action)].path.endswith(".onnx")


def stage_of(action: Action) -> str:
    """Name a target without its model, such as ``convert:fp16``."""
    return f"{action.stage}:{action.variant}" if action.variant else action.stage


def _current_graph(session: BuildSession, action: Action) -> GraphFile:
    """Find the graph in the build folder, with its state. Raises: StageError: it is not built."""
    target, note = action.target, ""
    file = session.project.build / action.outputs[graph_role(action)].path
    if not file.is_file():
        raise StageError(f"{target} has not been built", f"`buildsys build {target}` builds it")
    explained = session.explain([target])[target]
    if explained.state != FRESH:
        why, last = summarize_reasons(explained.reasons, _SHOWN_REASONS), explained.last
        built = f"built {time_ago(last.started)}" if last else "in the build folder"
        note = f"{target} is {explained.state} ({why}); shown is the graph {built}"
        note += f"; `buildsys build {target}` rebuilds it"
    return GraphFile(action, "", explained.state, note, file, _external_data(file))
