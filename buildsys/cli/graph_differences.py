"""Differences between graphs: of two stages of a model, or of all stages of two builds."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from buildsys.cli.build_names import Side
from buildsys.cli.command import print_answer
from buildsys.cli.console.rows import titled_lines
from buildsys.cli.graph_files import (
    ask_inspection,
    find_graph,
    graph_action,
    require_onnx_graph,
    without_time,
)
from buildsys.cli.session import BuildSession
from buildsys.errors import UsageError
from buildsys.history.builds import Build
from buildsys.report.formatting import TIMES, count, first_names, size
from buildsys.stages.table import ENGINE, target_of

SCHEMA = "buildsys/diff/1"
EQUAL, DIFFERENT = "equal", "different"
ONLY_FIRST, ONLY_SECOND = "only in the first", "only in the second"
_GRAPH_FILES = ("model", "model.data")  # outputs of stages
_INDENT = 14
_SHOWN = 12  # kinds of a change
_SHOWN_NAMES = 4
_section = partial(titled_lines, indent=_INDENT)


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
