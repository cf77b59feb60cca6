"""Graphs by name, and their differences.

A name is ``MODEL:simplify``, ``MODEL:convert:fp16@previous`` or ``MODEL:export@v1``.

Without ``@WHEN`` it is the graph in the build folder; WHEN names a recorded build as in
``build_names``, whose graph comes from the store.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.cli.build_names import BuildNames, Side
from buildsys.cli.command import print_answer, unknown_name
from buildsys.cli.console.rows import time_ago, titled_lines
from buildsys.cli.session import BuildSession
from buildsys.errors import StageError, UsageError
from buildsys.execution.build_cache import store_folder
from buildsys.execution.freshness import FRESH
from buildsys.execution.stale_reasons import summarize_reasons
from buildsys.history.builds import Build
from buildsys.history.database import History, history_file
from buildsys.plan.action import Action
from buildsys.project.plan import model_of
from buildsys.report.formatting import TIMES, count, first_names, size
from buildsys.stages.table import ENGINE, SIMPLIFY, target_of
from buildsys.store.object_store import Store
from buildsys.system.processes import run_python

SCHEMA = "buildsys/diff/1"
EQUAL, DIFFERENT = "equal", "different"
ONLY_FIRST, ONLY_SECOND = "only in the first", "only in the second"
_GRAPH_FILES = ("model", "model.data")  # outputs of stages
_INDENT = 14
_SHOWN = 12  # kinds of a change
_SHOWN_NAMES = 4
_section = partial(titled_lines, indent=_INDENT)
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
        data = str(self.data.resolve()) if self.data else ""
        return {"file": str(self.file.resolve()), "data": data}


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
    """Refuse an engine that is not an ONNX file. Raises: UsageError: it is one."""
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
    data = file.with_name(f"{file.name}.data")
    return GraphFile(action, "", explained.state, note, file, data if data.is_file() else None)


class StagePair(NamedTuple):
    """A stage in two builds."""

    stage: str
    state: str  # EQUAL | DIFFERENT | ONLY_FIRST | ONLY_SECOND
    graphs: tuple[str, ...]  # as `buildsys compare` takes them


def compare_graphs(session: BuildSession, options: Namespace, first: str, second: str) -> int:
    """Print the differences of two graphs of one model; the exit code is 0 with or without any.

    Raises: UsageError: a name is wrong, or the graphs belong to different models.
    """
    models = [graph_action(session, without_time(name)).model for name in (first, second)]
    if models[0] != models[1]:
        problem = f"graphs of two models are not comparable, found {' and '.join(models)}"
        hint = f"name two graphs of one model, or compare the models: {' '.join(models)}"
        raise UsageError(problem, hint)
    graphs = [find_graph(session, name) for name in (first, second)]
    for graph in graphs:
        require_onnx_graph(graph)
    request = {"first": graphs[0].request(), "second": graphs[1].request()}
    document = {
        "schema": SCHEMA,
        "model": models[0],
        "graphs": [graph.as_json() for graph in graphs],
        **ask_inspection("compare", request),
    }
    before, after = document["nodes"]
    title = f"{models[0]}: {' → '.join(graph.name for graph in graphs)}"
    title += f": {count(before)} → {count(after)} nodes"
    lines = [f"{title}, no difference"]
    if not document["is_equal"]:
        lines = [title, *difference_lines(document)]
    notes = dict.fromkeys(graph.note for graph in graphs if graph.note)
    print_answer(options, document, (*notes, *lines))
    return 0


def difference_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences of two graphs by section."""
    for title in ("opsets", "operators"):
        changes = [f"{name} {_arrow(pair)}" for name, pair in document[title].items()]
        yield from _section(title, [", ".join(changes)] if changes else [])
    functions = [
        f"{name} is {'new' if was is None else 'gone' if now is None else 'different'}"
        for name, (was, now) in document["functions"].items()
    ]
    yield from _section("functions", functions)
    for side, ports in document["interface"].items():
        lines = [f"{port['name']}: {_arrow((port['from'], port['to']))}" for port in ports]
        yield from _section(side, lines)
    yield from _kinds("removed", document["gone"], _describe_group)
    yield from _kinds("added", document["come"], _describe_group)
    yield from _kinds("changed", document["changed"], _describe_change)
    yield from _section("initializers", list(_initializers(document["initializers"])))


def _kinds(
    title: str,
    members: Sequence[Mapping[str, Any]],
    describe: Callable[[Mapping[str, Any]], Sequence[tuple[str, str]]],
) -> Iterator[str]:
    """Yield a section with equal changes together, the most frequent first."""
    by_text: dict[str, list[str]] = {}
    for text, name in (pair for member in members for pair in describe(member)):
        by_text.setdefault(text, []).append(name)
    kinds = sorted(by_text.items(), key=lambda item: -len(item[1]))
    lines = [
        f"{count(len(names))} {TIMES} {text}: {first_names(names, _SHOWN_NAMES)}"
        for text, names in kinds[:_SHOWN]
    ]
    more = [f"{len(kinds) - _SHOWN} more kinds (--json lists all)"] if len(kinds) > _SHOWN else []
    yield from _section(title, [*lines, *more])


def _describe_group(group: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Describe connected nodes by their operators and neighbours, with their names."""
    before, after = (
        ", ".join(dict.fromkeys(end["kind"] for end in group[side])) or "nothing"
        for side in ("from", "to")
    )
    labels = [node["label"] for node in group["nodes"]]
    names = labels[0] if len(labels) == 1 else f"{labels[0]} … {labels[-1]}"
    return [(f"{group['chain']}, between {before} and {after}", names)]


def _describe_change(change: Mapping[str, Any]) -> list[tuple[str, str]]:
    operator = change["operator"]
    texts = [f"{operator}: {name} {_arrow(pair)}" for name, pair in change["attributes"].items()]
    texts += [f"{operator} with other weights"] if change["weights"] else []
    texts += [f"{operator} reads another tensor at input {p['port']}" for p in change["inputs"]]
    texts += [f"{operator} with another {name}" for name in change["bodies"]]
    return [(text, change["label"]) for text in texts or [f"{operator} with another value"]]


def _initializers(changes: Mapping[str, Any]) -> Iterator[str]:
    counts, sizes = changes["count"], changes["bytes"]
    titles = {"gone": "removed", "come": "added", "changed": "changed"}
    summary = [
        f"{count(len(changes[kind]))} {title}" for kind, title in titles.items() if changes[kind]
    ]
    if summary:
        totals = f"{count(counts[0])} → {count(counts[1])}, {size(sizes[0])} → {size(sizes[1])}"
        yield f"{totals}: {', '.join(summary)}"
    for kind, title in titles.items():
        if names := [tensor["name"] for tensor in changes[kind]]:
            yield f"{title}: {first_names(names, _SHOWN_NAMES)}"


def _arrow(pair: Sequence[Any]) -> str:
    was, now = ("none" if value is None else str(value) for value in pair)
    return f"{was} → {now}"


def compare_recorded_graphs(session: BuildSession, first: Side, second: Side) -> list[StagePair]:
    """Compare the files of the graphs of two builds, in the order of stages."""
    before, after = (_recorded_graphs(session, side) for side in (first, second))
    pairs: list[StagePair] = []
    for stage in dict.fromkeys((*after, *before)):
        builds = [graphs[stage] for graphs in (before, after) if stage in graphs]
        state = ONLY_SECOND if stage in after else ONLY_FIRST
        if len(builds) == 2:
            digests = [[b.outputs.get(name) for name in _GRAPH_FILES] for b in builds]
            state = EQUAL if digests[0] == digests[1] else DIFFERENT
        names = tuple(f"{build.model}:{stage}@{build.short_id}" for build in builds)
        pairs.append(StagePair(stage, state, names))
    return pairs


def recorded_difference_lines(pairs: Sequence[StagePair]) -> Iterator[str]:
    """Yield the stages with other graphs, and what shows the first difference."""
    changed = [pair for pair in pairs if pair.state != EQUAL]
    lines = [f"{pair.stage}: {pair.state}" for pair in changed if pair.state != DIFFERENT]
    if different := [pair for pair in changed if pair.state == DIFFERENT]:
        first, *later = different
        start = "first differs" if first == changed[0] else "differs"
        lines.append(f"{start} in {first.stage}: `buildsys compare {' '.join(first.graphs)}`")
        names = ", ".join(pair.stage for pair in later)
        lines += [f"then differs in {names}"] if later else []
    yield from _section("graph", lines)


def _recorded_graphs(session: BuildSession, side: Side) -> dict[str, Build]:
    """List the builds with graphs by stage, in the order in which they were built.

    For an engine, only those that the present manifest builds it from.
    """
    engine = target_of(ENGINE, side.model, side.engine)
    needed = session.needed([engine]) if engine in session.actions else side.builds
    ordered = sorted(side.builds.values(), key=lambda build: build.position)
    return {
        ":".join(filter(None, (build.stage, build.variant))): build
        for build in ordered
        if _GRAPH_FILES[0] in build.outputs and build.target in needed
    }
