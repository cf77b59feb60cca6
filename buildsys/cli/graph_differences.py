"""Differences between graphs: of two stages of a model, or of all stages of two builds."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from buildsys.cli.build_names import Side
from buildsys.cli.command import print_answer
from buildsys.cli.console.rows import titled_lines
from buildsys.cli.graph_files import (
    ask_inspection,
    find_graph,
    graph_action,
    graph_request,
    require_onnx_graph,
    stored_graph,
    without_time,
    writes_onnx,
)
from buildsys.cli.session import BuildSession
from buildsys.errors import StageError, UsageError
from buildsys.execution.build_cache import store_folder
from buildsys.history.builds import Build
from buildsys.report.formatting import TIMES, count, first_names, size
from buildsys.stages.table import ENGINE, target_of
from buildsys.store.object_store import Store

SCHEMA = "buildsys/diff/1"
EQUAL, DIFFERENT, UNKNOWN = "equal", "different", "unknown"
ONLY_FIRST, ONLY_SECOND = "only in the first", "only in the second"
_INDENT = 14
_SHOWN = 12  # kinds of a change
_SHOWN_NAMES = 4
_section = partial(titled_lines, indent=_INDENT)


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
    shapes = [
        f"{change['tensor']} {_arrow((change['from'], change['to']))}"
        for change in document["shapes"]
    ]
    yield from _section("shapes", filter(None, [first_names(shapes, _SHOWN_NAMES)]))
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


def compare_recorded_graphs(session: BuildSession, sides: tuple[Side, Side]) -> dict[str, Any]:
    """Compare the graphs of two builds, in the order of stages.

    The first stage with a difference is the cause of differences in later stages, so only its
    graphs are compared in detail: ``graph`` is their difference, ``graph_stage`` the stage.
    """
    store = Store(store_folder(session.project.state))
    first, second = (_recorded_graphs(session, side) for side in sides)
    stages: list[dict[str, str]] = []
    compared, difference = "", None
    for stage in _merge_in_order(list(first), list(second)):
        state, note = ONLY_SECOND if stage in second else ONLY_FIRST, ""
        if stage in first and stage in second:
            build, role = first[stage]
            builds = build, second[stage][0]
            digests = [[b.outputs.get(name) for name in (role, f"{role}.data")] for b in builds]
            state = EQUAL if digests[0] == digests[1] else DIFFERENT
        if state == DIFFERENT and not compared:
            try:
                requests = [graph_request(*stored_graph(store, b, role)) for b in builds]
                answer = ask_inspection("compare", {"first": requests[0], "second": requests[1]})
                if answer["is_equal"]:
                    state = EQUAL
                else:
                    compared, difference = stage, answer
            except StageError as error:
                state, note = UNKNOWN, error.problem
        stages.append({"stage": stage, "state": state, "note": note})
    return {"graph": difference, "graph_stage": compared, "graphs": stages}


def recorded_difference_lines(comparison: Mapping[str, Any]) -> Iterator[str]:
    """Yield the stages with other graphs, and the first difference in full."""
    difference, compared = comparison["graph"], comparison["graph_stage"]
    changed = [graphs for graphs in comparison["graphs"] if graphs["state"] != EQUAL]
    lines, later = [], []
    for graphs in changed:
        stage, text = graphs["stage"], graphs["note"] or graphs["state"]
        if difference is not None and stage == compared:
            before, after = difference["nodes"]
            text = f"{count(before)} → {count(after)} nodes"
        elif text == DIFFERENT:
            later.append(stage)
            continue
        is_first = graphs == changed[0] and graphs["state"] != UNKNOWN
        lines.append(f"{'first differs in ' if is_first else ''}{stage}: {text}")
    lines += [f"then differs in {', '.join(later)}"] if later else []
    yield from _section("graph", lines)
    if difference is not None:
        yield from difference_lines(difference)


def _recorded_graphs(session: BuildSession, side: Side) -> dict[str, tuple[Build, str]]:
    """List the builds and outputs with graphs by stage, in the order in which they were built.

    For an engine, only those that the present manifest builds it from.
    """
    engine = target_of(ENGINE, side.model, side.engine)
    needed = session.needed([engine]) if engine in session.actions else side.builds
    graphs = {}
    for build in sorted(side.builds.values(), key=lambda build: build.position):
        action, role = session.actions.get(build.target), "model"
        stage = ":".join(filter(None, (build.stage, build.variant)))
        if build.stage == ENGINE and action is not None and writes_onnx(action):
            role, stage = ENGINE, ENGINE if side.engine else stage
        if role in build.outputs and build.target in needed:
            graphs[stage] = build, role
    return graphs


def _merge_in_order(first: list[str], second: list[str]) -> list[str]:
    """Merge the stages of both builds, each in its order."""
    merged = list(first)
    for number, stage in enumerate(second):
        if stage not in merged:
            before = [merged.index(other) for other in second[:number]]
            merged.insert(max(before, default=-1) + 1, stage)
    return merged
