"""A graph as text: one screen of it, a table of its nodes, one node, one tensor."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from buildsys.cli.inspect.graph_names import GraphFile, shown_path
from buildsys.report.formatting import TIMES, count, large, size

_INDENT = 12
_SHOWN_OPERATORS = 12
_SHOWN_TENSORS = 6
_ENGINE_HEADER = ("schema", "target", "stage", "model", "variant", "toolchain")


def graph_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the whole graph on one screen."""
    graph, domains = document["graph"], document["custom_domains"]
    opsets = ", ".join(f"{domain} {version}" for domain, version in document["opsets"].items())
    lines = [
        f"{graph['target']}: {shown_path(Path(graph['file']))}, {size(graph['bytes'])}",
        *_entry(
            "made by",
            [f"{document['producer'] or 'nobody named'}, IR version {document['ir_version']}"],
        ),
        *_entry("opsets", [opsets]),
        *_entry("inputs", map(_port, document["inputs"])),
        *_entry("outputs", map(_port, document["outputs"])),
        *_entry("weights", list(_weights(document))),
        *_entry("largest", [_stored(one) for one in document["initializers"]["largest"]]),
        *_entry("MACs", list(_macs(document["macs"]))),
        *_entry(
            "domains", [f"{domain}: {_counts(operators)}" for domain, operators in domains.items()]
        ),
        *_entry("functions", map(_function, document["functions"])),
    ]
    return [*lines, "", *_operators(document)]


def node_table(document: Mapping[str, Any]) -> list[str]:
    """Return one line per node, in the order of the graph, nodes of bodies indented."""
    rows = []
    for node in document["nodes"]:
        indent = "  " * (node["inside"].count("/") + 1 if node["inside"] else 0)
        made = ", ".join(
            _shaped(name, document["tensors"], node["inside"]) for name in node["outputs"] if name
        )
        macs = large(node["macs"]) if node["macs"] else ""
        rows.append(
            (
                indent + node["operator"],
                node["name"] or "-",
                ", ".join(node["inputs"]),
                f"→ {made}",
                macs,
            )
        )
    return _columns(("operator", "name", "takes", "makes", "MACs>"), rows)


def node_lines(node: Mapping[str, Any]) -> list[str]:
    """Return all of one node."""
    where = f" in {node['inside']}" if node["inside"] else ""
    lines = [f"{node['operator']} {node['label']}{where}"]
    lines += _entry(
        "attributes", [f"{name} = {value}" for name, value in node["attributes"].items()]
    )
    lines += _entry("takes", [_end(name, node, "producer") for name in node["inputs"]])
    lines += _entry("makes", [_end(name, node, "consumers") for name in node["outputs"]])
    return [*lines, *_entry("MACs", [count(node["macs"])] if node["macs"] else [])]


def tensor_lines(name: str, tensor: Mapping[str, Any]) -> list[str]:
    """Return all of one tensor."""
    sized = [f"{_shape(tensor['sized'])} at the sizes that engines are built for"] * (
        tensor["sized"] != tensor["shape"]
    )
    return [
        f"{tensor['kind']} {name}: {tensor['dtype'] or 'unknown type'} {_shape(tensor['shape'])}",
        *_entry("shape", sized),
        *_entry("size", [size(tensor["bytes"])] if tensor["bytes"] is not None else []),
        *_entry("made by", [tensor["producer"]] if tensor["producer"] else []),
        *_entry("taken by", tensor["consumers"] or ["nobody"]),
    ]


def engine_lines(graph: GraphFile, figures: Mapping[str, Any]) -> list[str]:
    """Return what is known of an engine that is no ONNX file."""
    lines = [
        f"{graph.target}: {shown_path(graph.file)}, {size(graph.bytes)}",
        "this is an engine of TensorRT, which keeps no graph that could be read; engine.json says:",
    ]
    for name, value in figures.items():
        if name not in _ENGINE_HEADER and value not in ("", [], {}, None):
            lines += _entry(name, [_plain(value)], indent=18)
    return lines


def _entry(title: str, values: Iterable[str], indent: int = _INDENT) -> list[str]:
    return [f"  {title if at == 0 else '':<{indent}}{value}" for at, value in enumerate(values)]


def _port(port: Mapping[str, Any]) -> str:
    return f"{port['name']}: {port['dtype'] or 'unknown type'} {_shape(port['shape'])}"


def _shape(shape: Sequence[Any] | None) -> str:
    return (
        "of unknown shape"
        if shape is None
        else f"[{', '.join('?' if s is None else str(s) for s in shape)}]"
    )


def _weights(document: Mapping[str, Any]) -> Iterator[str]:
    stored = document["initializers"]
    by_type = ", ".join(
        f"{count(found['count'])} {dtype}" for dtype, found in stored["dtypes"].items()
    )
    listed = f": {by_type}" if by_type else ""
    inside = f"{size(stored['bytes'])} in {count(stored['count'])} initializers{listed}"
    yield f"{count(document['parameters'])} parameters, {inside}"


def _stored(one: Mapping[str, Any]) -> str:
    return f"{one['name']}: {one['dtype']} {_shape(one['shape'])}, {size(one['bytes'])}"


def _macs(macs: Mapping[str, Any]) -> Iterator[str]:
    sizes = ", ".join(f"{name} = {value}" for name, value in macs["dims"].items())
    yield f"{_total(macs)}{f' at {sizes}' if sizes else ''}{_formula(macs['formula'])}"
    shares = (
        f"{name} {large(found['macs'])} in {found['nodes']}"
        for name, found in list(macs["operators"].items())[:_SHOWN_OPERATORS]
    )
    told = ", ".join(shares)
    if told:
        yield f"{told}; element-wise operators, norms and poolings are not counted"
    elif macs["complete"]:
        yield "no operator here multiplies and accumulates (convolutions, matrix products, recurrent layers)"
    if macs["unknown_shapes"]:
        yield f"not counted, as their shapes are not known: {_counts(macs['unknown_shapes'])}"
    if macs["unknown_operators"]:
        yield f"not counted, as nobody here knows the operator: {_counts(macs['unknown_operators'])}"
    if macs["loops_counted_once"]:
        yield "bodies of loops are counted once, as nobody knows how often they run"


def _total(macs: Mapping[str, Any]) -> str:
    if macs["complete"] or not (macs["unknown_shapes"] or macs["unknown_operators"]):
        return large(macs["total"])
    return f"at least {large(macs['total'])}" if macs["total"] else "not known"


def _formula(terms: Mapping[str, int] | None) -> str:
    """Return e.g. ``; that is 4.09 G for each of batch``."""
    if not terms or set(terms) == {""}:
        return ""
    if len(terms) == 1 and "*" not in (name := next(iter(terms))) and "^" not in name:
        return f"; that is {large(terms[name])} for each 1 of {name}"
    return "; that is " + " + ".join(
        f"{large(factor)} {TIMES} {term}" if term else large(factor)
        for term, factor in terms.items()
    )


def _function(function: Mapping[str, Any]) -> str:
    ends = f"({', '.join(function['inputs'])}) → {', '.join(function['outputs'])}"
    return f"{function['name']}{ends}: {_counts(function['operators'])}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {TIMES}{number}" for name, number in counts.items())


def _operators(document: Mapping[str, Any]) -> list[str]:
    operators, macs = document["operators"], document["macs"]["operators"]
    total, nodes = document["macs"]["total"], sum(operators.values())
    rows = []
    for name, number in operators.items():
        found = macs.get(name, {}).get("macs")
        rows.append(
            (
                name,
                count(number),
                large(found) if found else "",
                f"{100 * found / total:.1f} %" if found else "",
            )
        )
    room = max(_SHOWN_OPERATORS, shutil.get_terminal_size((80, 40)).lines - 24)
    shown = rows if len(rows) <= room + 1 else rows[:room]
    more = len(rows) - len(shown)
    rest = (
        [
            f"{more} more operators, {sum(list(operators.values())[len(shown) :])} nodes (--json tells all)"
        ]
        if more
        else []
    )
    return [*_columns((f"{count(nodes)} nodes", "count>", "MACs>", "share>"), shown), *rest]


def _columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    right = [title.endswith(">") for title in titles]
    table = [tuple(title.rstrip(">") for title in titles), *rows]
    widths = [max(len(row[at]) for row in table) for at in range(len(titles))]
    return [
        "  ".join(
            cell.rjust(width) if at_right else cell.ljust(width)
            for cell, width, at_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in table
    ]


def _shaped(name: str, tensors: Mapping[str, Any], inside: str) -> str:
    tensor = tensors.get(f"{inside}:{name}") or tensors.get(name) or {}
    return f"{name} {_shape(tensor['shape'])}" if tensor.get("shape") is not None else name


def _end(name: str, node: Mapping[str, Any], other: str) -> str:
    if not name:
        return "(left out)"
    tensor = node["tensors"].get(name)
    if tensor is None:  # of the graph around a body
        return name
    told = f"{name}: {tensor['dtype'] or 'unknown type'} {_shape(tensor['shape'])}"
    if other == "producer":
        return f"{told} from {tensor['producer'] or tensor['kind']}"
    takers: list[str] = tensor["consumers"] or [
        tensor["kind"] if tensor["kind"] == "output" else "nobody"
    ]
    more = f" and {len(takers) - _SHOWN_TENSORS} more" if len(takers) > _SHOWN_TENSORS else ""
    return f"{told} to {', '.join(takers[:_SHOWN_TENSORS])}{more}"


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(entry)}" for name, entry in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
