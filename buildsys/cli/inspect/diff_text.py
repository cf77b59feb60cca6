"""The differences of two graphs as text: what happened in many places alike is told once, with its count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from buildsys.report.formatting import TIMES, count, size

_INDENT = 14
_SHOWN = 12  # kinds of a change
_SHOWN_NAMES = 4
_TITLES = {
    "folded": "folded", "constant": "constant now", "left out": "left out", "shared": "shared now",
    "replaced": "replaced", "unused": "unused", "new": "new",
}  # fmt: skip
Group = Mapping[str, Any]


def diff_lines(document: Mapping[str, Any]) -> list[str]:
    """Return all differences, grouped; one line where there are none."""
    first, second = (graph["name"] for graph in document["graphs"])
    before, after = document["nodes"]
    title = f"{document['model']}: {first} → {second}: {count(before)} → {count(after)} nodes"
    if document["is_equal"]:
        return [f"{title}, no difference"]
    return [title, *_sections(document)]


def _sections(document: Mapping[str, Any]) -> Iterator[str]:
    for name, values in document["header"].items():
        yield from _section(name.replace("_", " "), [_arrow(values)])
    yield from _section(
        "opsets", [f"{name} {_arrow(pair)}" for name, pair in document["opsets"].items()]
    )
    yield from _section(
        "functions", [_come_or_gone(name, pair) for name, pair in document["functions"].items()]
    )
    for side, changes in document["interface"].items():
        yield from _section(
            side, [f"{one['name']}: {_arrow((one['from'], one['to']))}" for one in changes]
        )
    operators = (f"{name} {was} → {now}" for name, (was, now) in document["operators"].items())
    yield from _section("operators", _wrapped(operators))
    yield from _node_sections(document)
    shapes = list(_shapes(document["shapes"]))
    yield from _section("shapes", shapes[:_SHOWN])
    yield from _rest(len(shapes) - _SHOWN)
    yield from _section("initializers", list(_initializers(document["initializers"])))


def _node_sections(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what became of nodes: groups that are alike together, the most frequent first."""
    groups = (*document["gone"], *(group for group in document["come"] if group["fate"] == "new"))
    for fate, title in _TITLES.items():
        alike = _grouped(
            [group for group in groups if group["fate"] == fate], _sentence(document["come"])
        )
        yield from _section(
            title,
            [line for text, members in alike[:_SHOWN] for line in _with_example(text, members)],
        )
        yield from _rest(len(alike) - _SHOWN)
    changed = _grouped(document["changed"], _change_text)
    yield from _section(
        "changed", [f"{text}: {_names(members)}" for text, members in changed[:_SHOWN]]
    )
    yield from _rest(len(changed) - _SHOWN)
    if document["renamed"]:
        shown = document["renamed"][0]
        yield from _section(
            "renamed",
            [f"{_number(len(document['renamed']), 'node')}, first {shown['from']} → {shown['to']}"],
        )


def _grouped(groups: Iterable[Group], text_of: Any) -> list[tuple[str, list[Group]]]:
    found: dict[str, list[Group]] = {}
    for group in groups:
        for text in _texts(text_of(group)):
            found.setdefault(text, []).append(group)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return [(f"{count(len(members))} {TIMES} {text}", members) for text, members in ordered]


def _texts(told: str | list[str]) -> list[str]:
    return [told] if isinstance(told, str) else told


def _sentence(come: Sequence[Group]) -> Any:
    """Return what words one group: the same words for groups that fared alike."""
    chains = {tuple(node["label"] for node in group["nodes"]): group["chain"] for group in come}

    def sentence(group: Group) -> str:
        fate, chain, between = group["fate"], group["chain"], _between(group)
        if fate == "folded":
            return f"{chain} folded into {', '.join(group['into'])}"
        if fate == "constant":
            to = ", ".join(dict.fromkeys(end["kind"] for end in group["to"]))
            return (
                "Constant became an initializer"
                if chain == "Constant"
                else f"{chain}, {between}: what {to} takes is stored now"
            )
        if fate == "replaced":
            by = " and ".join(
                dict.fromkeys(chains.get(tuple(labels), "others") for labels in group["by"])
            )
            return f"{chain} by {by}, {between}"
        if fate == "shared":
            return f"{chain}, {between}: {', '.join(group['into']) or 'an input'} gives the same"
        return f"{chain}, {between}"

    return sentence


def _between(group: Group) -> str:
    before, behind = (
        ", ".join(dict.fromkeys(end["kind"] for end in group[side])) for side in ("from", "to")
    )
    return f"between {before or 'nothing'} and {behind or 'nothing'}"


def _with_example(text: str, groups: Sequence[Group]) -> list[str]:
    """Return a sentence, and below it the tensors and nodes between which the first of its groups hung."""
    group = groups[0]
    if group["chain"] == "Constant" and group["fate"] == "constant":
        return [text]
    which = "" if len(groups) == 1 else "first "
    nodes = group["nodes"]
    names = nodes[0]["label"] if len(nodes) == 1 else f"{nodes[0]['label']} … {nodes[-1]['label']}"
    return [
        text,
        f"  {which}{names}: {_end(group['from'], 'input')} ⇢ {_end(group['to'], 'output')}",
    ]


def _end(ends: Sequence[Mapping[str, Any]], border: str) -> str:
    shown = [f"{end['node'] or border} ({end['tensor']})" for end in ends[:1]]
    return (shown[0] if shown else "nothing") + (
        f" and {len(ends) - 1} more" if len(ends) > 1 else ""
    )


def _change_text(change: Mapping[str, Any]) -> list[str]:
    operator = change["operator"]
    told = [f"{operator}: {name} {_arrow(pair)}" for name, pair in change["attributes"].items()]
    told += (
        [f"{operator} with other {'weights' if change['numbers'] else 'constants'}"]
        if change["weights"]
        else []
    )
    told += [f"{operator} takes another tensor at input {one['port']}" for one in change["inputs"]]
    told += [f"{operator} with another {name}" for name in change["bodies"]]
    return told or [f"{operator} with another value"]


def _names(members: Sequence[Mapping[str, Any]]) -> str:
    shown = ", ".join(str(member["label"]) for member in members[:_SHOWN_NAMES])
    return shown + (
        f" and {len(members) - _SHOWN_NAMES} more" if len(members) > _SHOWN_NAMES else ""
    )


def _shapes(changes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for one in changes:
        called = f" (was {one['was_called']})" if one["was_called"] != one["tensor"] else ""
        yield f"{one['tensor']}{called}: {one['from']} → {one['to']}"


def _initializers(changes: Mapping[str, Any]) -> Iterator[str]:
    counts, sizes = changes["count"], changes["bytes"]
    told = [
        f"{count(len(changes[kind]))} {kind}"
        for kind in ("gone", "come", "changed", "renamed")
        if changes[kind]
    ]
    if not told:
        return
    yield f"{count(counts[0])} → {count(counts[1])}, {size(sizes[0])} → {size(sizes[1])}: {', '.join(told)}"
    for kind in ("gone", "come"):
        if changes[kind]:
            largest = sorted(changes[kind], key=lambda one: -one["bytes"])[:_SHOWN_NAMES]
            shown = ", ".join(f"{one['name']} {one['dtype']} {one['shape']}" for one in largest)
            yield f"{kind}: {shown}" + (
                f" and {len(changes[kind]) - len(largest)} more"
                if len(changes[kind]) > len(largest)
                else ""
            )
    for one in changes["changed"][:_SHOWN_NAMES]:
        yield f"changed: {one['name']} {one['to']}" + (
            f", was {one['from']}" if one["from"] != one["to"] else " in its values"
        )
    for one in changes["renamed"][:_SHOWN_NAMES]:
        yield f"renamed: {one['from']} → {one['to']}"


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    for at, line in enumerate(lines):
        yield f"  {title if at == 0 else '':<{_INDENT}}{line}"


def _rest(kinds: int) -> Iterator[str]:
    if kinds > 0:
        yield f"  {'':<{_INDENT}}{kinds} more kinds (--json tells all)"


def _wrapped(parts: Iterable[str], width: int = 100) -> list[str]:
    """Return parts on lines of about one width, with commas between them."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) < width:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return lines


def _arrow(pair: Sequence[Any]) -> str:
    was, now = ("none" if value is None else str(value) for value in pair)
    return f"{was} → {now}"


def _come_or_gone(name: str, pair: Sequence[Any]) -> str:
    return f"{name} is {'new' if pair[0] is None else 'gone' if pair[1] is None else 'another'}"


def _number(number: int, noun: str) -> str:
    return f"{count(number)} {noun}{'s' * (number != 1)}"
