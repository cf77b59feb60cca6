"""Differences between two graphs of a model: two stages, or two builds."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from buildsys.cli.command import print_answer
from buildsys.cli.console.rows import titled_lines
from buildsys.cli.graph_files import ask_inspection, find_graph, split_graph_name, target_of
from buildsys.cli.session import Session
from buildsys.errors import UsageError
from buildsys.report.formatting import TIMES, count, first_names, size
from buildsys.report.formatting import nodes as node_count

SCHEMA = "buildsys/diff/1"
_INDENT = 14
_WIDTH = 100
_SHOWN = 12  # kinds of a change
_SHOWN_NAMES = 4
_TITLES = {
    "folded": "folded", "constant": "now constant", "left out": "bypassed", "shared": "now shared",
    "replaced": "replaced", "unused": "unused", "new": "new",
}  # fmt: skip
Group = Mapping[str, Any]
_section = partial(titled_lines, indent=_INDENT)


def compare_graphs(options: Namespace, first: str, second: str) -> int:
    """Print the differences of two graphs of one model; the exit code is 0 with or without any.

    Raises: UsageError: a name is wrong, or the graphs belong to different models.
    """
    session = Session.read_only(options.root)
    names = [split_graph_name(session, "compare", target_of(name)) for name in (first, second)]
    models = list(dict.fromkeys(model for model, _ in names))
    if len(models) > 1:
        raise UsageError(
            f"graphs of two models are not comparable, found {' and '.join(models)}",
            f"name two graphs of one model, or compare the models: {' '.join(models)}",
        )
    graphs = [find_graph(session, "compare", name) for name in (first, second)]
    for graph in graphs:
        if not graph.is_onnx:
            raise UsageError(
                f"{graph.target} is an engine without a graph to compare",
                "name the graph from which it was built, such as simplify",
            )
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
    for name, values in document["header"].items():
        yield from _section(name.replace("_", " "), [_arrow(values)])
    opsets = [f"{name} {_arrow(pair)}" for name, pair in document["opsets"].items()]
    yield from _section("opsets", opsets)
    functions = [
        f"{name} is {'new' if was is None else 'gone' if now is None else 'different'}"
        for name, (was, now) in document["functions"].items()
    ]
    yield from _section("functions", functions)
    for side, changes in document["interface"].items():
        lines = [
            f"{change['name']}: {_arrow((change['from'], change['to']))}" for change in changes
        ]
        yield from _section(side, lines)
    operators = (f"{name} {was} → {now}" for name, (was, now) in document["operators"].items())
    yield from _section("operators", _wrapped(operators))
    yield from _node_sections(document)
    shapes = []
    for change in document["shapes"]:
        renamed = (
            f" (was {change['was_called']})" if change["was_called"] != change["tensor"] else ""
        )
        shapes.append(f"{change['tensor']}{renamed}: {change['from']} → {change['to']}")
    yield from _kinds("shapes", shapes[:_SHOWN], len(shapes))
    yield from _section("initializers", list(_initializers(document["initializers"])))


def _node_sections(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the changes of nodes: equal ones together, the most frequent first."""
    come = document["come"]
    groups = (*document["gone"], *(group for group in come if group["fate"] == "new"))
    chains = {tuple(node["label"] for node in group["nodes"]): group["chain"] for group in come}
    describe = partial(_describe_group, chains=chains)
    for fate, title in _TITLES.items():
        equal = _grouped([group for group in groups if group["fate"] == fate], describe)
        lines = []
        for text, members in equal[:_SHOWN]:
            lines.append(text)
            first = members[0]
            if first["chain"] != "Constant" or first["fate"] != "constant":
                nodes = [node["label"] for node in first["nodes"]]
                names = nodes[0] if len(nodes) == 1 else f"{nodes[0]} … {nodes[-1]}"
                place = f"{_end(first['from'], 'input')} ⇢ {_end(first['to'], 'output')}"
                lines.append(f"  {'first ' * (len(members) > 1)}{names}: {place}")
        yield from _kinds(title, lines, len(equal))
    changed = _grouped(document["changed"], _describe_change)
    lines = [
        f"{text}: {first_names([str(node['label']) for node in members], _SHOWN_NAMES)}"
        for text, members in changed[:_SHOWN]
    ]
    yield from _kinds("changed", lines, len(changed))
    renamed = document["renamed"]
    if renamed:
        example = f"first {renamed[0]['from']} → {renamed[0]['to']}"
        yield from _section("renamed", [f"{node_count(len(renamed))}, {example}"])


def _grouped(
    groups: Iterable[Group], describe: Callable[[Group], Sequence[str]]
) -> list[tuple[str, list[Group]]]:
    """Group equal descriptions, ``(count and description, groups)``, the most frequent first."""
    by_text: dict[str, list[Group]] = {}
    for group in groups:
        for text in describe(group):
            by_text.setdefault(text, []).append(group)
    ordered = sorted(by_text.items(), key=lambda item: -len(item[1]))
    return [(f"{count(len(members))} {TIMES} {text}", members) for text, members in ordered]


def _describe_group(group: Group, chains: Mapping[tuple[str, ...], str]) -> Sequence[str]:
    fate, chain = group["fate"], group["chain"]
    before, after = (
        ", ".join(dict.fromkeys(end["kind"] for end in group[side])) or "nothing"
        for side in ("from", "to")
    )
    between = f"{chain}, between {before} and {after}"
    if fate == "folded":
        return [f"{chain} folded into {', '.join(group['into'])}"]
    if fate == "constant" and chain == "Constant":
        return ["Constant became an initializer"]
    if fate == "constant":
        return [f"{between}: the input of {after} is now stored"]
    if fate == "replaced":
        by = dict.fromkeys(chains.get(tuple(labels), "others") for labels in group["by"])
        return [f"{chain} by {' and '.join(by)}, between {before} and {after}"]
    if fate == "shared":
        return [f"{between}: {', '.join(group['into']) or 'an input'} computes the same"]
    return [between]


def _end(ends: Sequence[Mapping[str, Any]], border: str) -> str:
    return (
        first_names([f"{end['node'] or border} ({end['tensor']})" for end in ends], 1) or "nothing"
    )


def _describe_change(change: Group) -> list[str]:
    operator = change["operator"]
    texts = [f"{operator}: {name} {_arrow(pair)}" for name, pair in change["attributes"].items()]
    if change["weights"]:
        texts.append(f"{operator} with other {'weights' if change['numbers'] else 'constants'}")
    texts += [
        f"{operator} reads another tensor at input {port['port']}" for port in change["inputs"]
    ]
    texts += [f"{operator} with another {name}" for name in change["bodies"]]
    return texts or [f"{operator} with another value"]


def _initializers(changes: Mapping[str, Any]) -> Iterator[str]:
    counts, sizes = changes["count"], changes["bytes"]
    titles = {"gone": "removed", "come": "added", "changed": "changed", "renamed": "renamed"}
    summary = [
        f"{count(len(changes[kind]))} {title}" for kind, title in titles.items() if changes[kind]
    ]
    if not summary:
        return
    totals = f"{count(counts[0])} → {count(counts[1])}, {size(sizes[0])} → {size(sizes[1])}"
    yield f"{totals}: {', '.join(summary)}"
    for kind in ("gone", "come"):
        largest = sorted(changes[kind], key=lambda tensor: -tensor["bytes"])
        described = [f"{tensor['name']} {tensor['dtype']} {tensor['shape']}" for tensor in largest]
        if described:
            yield f"{titles[kind]}: {first_names(described, _SHOWN_NAMES)}"
    for tensor in changes["changed"][:_SHOWN_NAMES]:
        before = " (values)" if tensor["from"] == tensor["to"] else f", was {tensor['from']}"
        yield f"changed: {tensor['name']} {tensor['to']}{before}"
    for tensor in changes["renamed"][:_SHOWN_NAMES]:
        yield f"renamed: {tensor['from']} → {tensor['to']}"


def _kinds(title: str, lines: Sequence[str], kinds: int) -> Iterator[str]:
    """Yield a section, and the number of kinds left out."""
    yield from _section(title, lines)
    if kinds > _SHOWN:
        yield f"  {'':<{_INDENT}}{kinds - _SHOWN} more kinds (--json lists all)"


def _wrapped(parts: Iterable[str]) -> list[str]:
    """Join parts by commas, on lines of limited width."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) < _WIDTH:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return lines


def _arrow(pair: Sequence[Any]) -> str:
    was, now = ("none" if value is None else str(value) for value in pair)
    return f"{was} → {now}"
