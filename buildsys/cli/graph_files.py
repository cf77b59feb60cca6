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
from buildsys.execution.freshness import FRESH, STALE
from buildsys.execution.stale_reasons import summarize_reasons
from buildsys.history.builds import Build
from buildsys.history.database import History, history_file
from buildsys.plan.action import Action
from buildsys.project.load import Project
from buildsys.stages.table import ENGINE, SIMPLIFY
from buildsys.store.object_store import Store
from buildsys.system.processes import run_python

DEFAULT_STAGE = SIMPLIFY
STORED = "stored"  # the state of an earlier graph, besides fresh, stale and may rerun
_ROLES = ("model", "engine")  # outputs that are graphs
_SHOWN_REASONS = 2


@dataclass(frozen=True)
class GraphFile:
    """A graph as it was built at some time."""

    name: str  # as typed, without the model
    model: str
    target: str
    state: str
    note: str  # "" if it is up to date
    file: Path
    data: Path | None  # external data
    is_onnx: bool

    @property
    def bytes(self) -> int:
        """The size of the graph with its external data."""
        return sum(file.stat().st_size for file in (self.file, self.data) if file)

    def as_json(self) -> dict[str, Any]:
        """Describe the graph's place and state."""
        return {
            "name": self.name, "target": self.target, "state": self.state.replace(" ", "-"),
            "note": self.note, "file": str(self.file), "bytes": self.bytes,
        }  # fmt: skip

    def request(self) -> dict[str, str]:
        """Name the graph's files for the inspection process."""
        return graph_request(self.file, self.data)


def graph_request(file: Path, data: Path | None = None) -> dict[str, str]:
    """Name the files of a graph for ``ask_inspection``."""
    data = data or external_data(file)
    return {"file": str(file.resolve()), "data": str(data.resolve()) if data else ""}


def external_data(file: Path) -> Path | None:
    """Find the external data next to a graph."""
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


def find_graph(session: BuildSession, command: str, name: str) -> GraphFile:
    """Find the graph of a name; nothing is written.

    Raises: UsageError: an unknown or ambiguous name. StageError: the graph is not built, or no
    longer stored.
    """
    typed, at, when = name.partition("@")
    model, stage = split_graph_name(session, command, typed)
    action = _action(session, model, stage or DEFAULT_STAGE)
    title, path = f"{stage or DEFAULT_STAGE}{at}{when}", _graph_ref(action)
    if not at:
        state, note, file = _current(session, action)
        data = external_data(file)
    else:
        history = History.readable(history_file(session.project.state))
        names = BuildNames(session, history)
        build, note = names.of_target(action.target, _role(action), when)
        state, note = STORED, note or f"{title} was built {time_ago(build.started)}"
        file, data = stored_graph(Store(store_folder(session.project.state)), build, _role(action))
    return GraphFile(title, model, action.target, state, note, file, data, path.endswith(".onnx"))


def require_onnx_graph(graph: GraphFile) -> None:
    """Refuse an engine that is not an ONNX file.

    Raises: UsageError: it is one.
    """
    if not graph.is_onnx:
        hint = "name the graph from which it was built, such as simplify"
        raise UsageError(f"{graph.target} is an engine without a readable graph", hint)


def names_graph(session: BuildSession, name: str) -> bool:
    """Check whether a name such as ``MODEL:STAGE@WHEN`` is one of a single graph."""
    typed = target_of(name)
    full = None if "*" in typed else session.full_name(typed)
    if full is None or full not in session.actions:
        return False
    action = session.actions[full]
    return action.stage != ENGINE and bool(_role(action))


def stored_graph(store: Store, build: Build, role: str) -> tuple[Path, Path | None]:
    """Find the files of a recorded build's graph, the second of its external data.

    Raises: StageError: they are no longer stored.
    """
    digests = [build.outputs[name] for name in (role, f"{role}.data") if name in build.outputs]
    files = [store.object_path(digest).resolve() for digest in digests]
    if not all(file.is_file() for file in files):
        problem = f"the graph of build {build.short_id} of {build.target} is no longer in the store"
        raise StageError(problem, "`buildsys history` lists the builds")
    return files[0], files[1] if len(files) > 1 else None


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
    """Cut ``@WHEN`` off the name of a graph."""
    return name.partition("@")[0]


def split_graph_name(session: BuildSession, command: str, name: str) -> tuple[str, str]:
    """Split a name into model and graph, "" for a whole model.

    Raises: UsageError: an ambiguous name, or an unknown model.
    """
    full = None if "*" in name else session.full_name(name)
    if full is None or ":" not in full:  # a pattern or a stage may name a single graph
        targets = session.targets_of(name)
        graphs = [target for target in targets if _graph_ref(session.actions[target])]
        if len(graphs) > 1:
            raise UsageError(f"{name!r} names several graphs", f"name one of {', '.join(graphs)}")
        full = graphs[0] if graphs else None
    if full is not None:
        stage, model, *variant = full.split(":", 2)
        return model, "" if stage == "build" else ":".join((stage, *variant))
    model, _, graph = name.partition(":")
    if model not in session.project.models and graph in session.project.models:
        model, graph = graph, model
    return session.one_model(command, [model] if model else []), graph


def _action(session: BuildSession, model: str, stage: str) -> Action:
    """Find the target of a stage's graph, for example ``convert:fp16``.

    Raises: UsageError: there is none.
    """
    graphs: dict[str, list[Action]] = {}
    for action in session.actions.of(model).values():
        for name in dict.fromkeys((action.stage, _full_name(action))):
            graphs.setdefault(name, []).extend([action] if _role(action) else [])
    if len(graphs.get(stage, ())) == 1:
        return graphs[stage][0]
    if not stage.startswith(ENGINE):
        require_graph(session.project, model)
    names = [_full_name(action) for group in graphs.values() for action in group]
    listed = f"graphs of {model}: {', '.join(dict.fromkeys(names))}"
    if stage in graphs:
        problem = "has several graphs" if graphs[stage] else "writes no graph"
        raise UsageError(f"{stage} of {model} {problem}", listed)
    raise unknown_name("stage", stage, [name for name in graphs if graphs[name]], listed)


def _current(session: BuildSession, action: Action) -> tuple[str, str, Path]:
    """Describe the state of the graph in the build folder, and find its file."""
    target, file = action.target, session.project.build / _graph_ref(action)
    if not file.is_file():
        raise StageError(f"{target} has not been built", f"`buildsys build {target}` builds it")
    explained = session.explain([target])[target]
    if explained.state == FRESH:
        return FRESH, "", file
    problem = "is stale" if explained.state == STALE else "may have to be rebuilt"
    last = explained.last
    built = f"built {time_ago(last.started)}" if last else "in the build folder"
    why = summarize_reasons(explained.reasons, _SHOWN_REASONS)
    note = f"{target} {problem} ({why}); shown is the graph {built}"
    return explained.state, f"{note}; `buildsys build {target}` rebuilds it", file


def _role(action: Action) -> str:
    """Name the output that is the target's graph, "" without one."""
    return next((role for role in _ROLES if role in action.outputs), "")


def _graph_ref(action: Action) -> str:
    """Name the file of a target's graph, "" without one."""
    role = _role(action)
    return action.outputs[role].path if role else ""


def _full_name(action: Action) -> str:
    return f"{action.stage}:{action.variant}" if action.variant else action.stage
