"""buildsys inspect: operators, tensors, weights and MACs of a graph."""

import logging
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from buildsys.cli.command import (
    add_json,
    add_names,
    positive_integer,
    print_answer,
    print_lines,
    shown_path,
    typed_path,
    unknown_name,
)
from buildsys.cli.console.rows import format_table, titled_lines
from buildsys.cli.graph_files import (
    STORED,
    GraphFile,
    ask_inspection,
    find_graph,
    require_onnx_graph,
    without_time,
    writes_onnx,
)
from buildsys.cli.session import BuildSession
from buildsys.errors import StageError, Unavailable, UsageError
from buildsys.manifest.shape_cases import case_values
from buildsys.report.engines import placement_text
from buildsys.report.formatting import TIMES, count, first_names, large, plain, size
from buildsys.stages.table import ENGINE
from buildsys.system.programs import require_dot

SCHEMA, DRAWING_SCHEMA = "buildsys/inspect/1", "buildsys/picture/1"
PREFIX, _HOST = "inspect:", "127.0.0.1"
_INDENT = 12
_SHOWN_OPERATORS, _SHOWN_ROWS = 12, 20
_SHOWN_CONSUMERS, _SHOWN_VALUES = 6, 8
_ENGINE_HEADER = ("schema", "target", "stage", "model", "variant", "toolchain")
Document = Mapping[str, Any]
_entry = partial(titled_lines, indent=_INDENT)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys inspect``."""
    add_names(parser, "MODEL[:STAGE]")
    parser.epilog = (
        "STAGE is export, simplify (the default), convert:PRECISION or engine:NAME;\n"
        "MODEL:STAGE@WHEN is an earlier graph: WHEN is previous, a git revision or an id from\n"
        "`buildsys history`"
    )
    add_json(parser)
    views = parser.add_mutually_exclusive_group()
    views.add_argument("--nodes", action="store_true", help="list every node")
    views.add_argument("--node", default="", help="show everything about one node")
    views.add_argument("--tensor", default="", help="show tensors of this name or pattern")
    views.add_argument(
        "--serve", action="store_true", help="show the graph in the netron viewer until Ctrl-C"
    )
    views.add_argument("--svg", default="", help="draw the graph into this file")
    parser.add_argument("--port", type=int, default=0, help="--serve: port; default: a free one")
    parser.add_argument("--from", default="", dest="begin", help="draw from this node or tensor")
    parser.add_argument("--to", default="", dest="end", help="draw up to this node or tensor")
    parser.add_argument("--depth", type=positive_integer, help="draw this many nodes from there")


def run(options: Namespace) -> int:
    """Print the requested part; by default the graph on one screen."""
    if len(options.names) != 1:
        hint = "for example `buildsys inspect resnet50:export`"
        raise UsageError("inspect takes one MODEL or MODEL:STAGE", hint)
    if not options.svg and (options.begin or options.end or options.depth):
        raise UsageError("--from, --to and --depth select a part to draw", "add --svg FILE")
    name = options.names[0].removeprefix(PREFIX)
    session = BuildSession.read_only(options.root, [without_time(name)])
    graph = find_graph(session, name)
    if options.svg or options.serve:
        require_onnx_graph(graph)
    if options.serve:
        return _serve(graph, options.port)
    head = {"schema": SCHEMA, "model": graph.action.model, "graph": graph.as_json()}
    if options.svg:
        require_dot()
        document, lines = _draw(graph, head, options)
    elif writes_onnx(graph.action):
        document, lines = _describe(session, graph, head, options)
    else:
        document, lines = _describe_engine(session, graph, head, options)
    print_answer(options, document, [*([graph.note] if graph.note else []), *lines])
    return 0


def _describe(
    session: BuildSession, graph: GraphFile, head: Document, options: Namespace
) -> tuple[Document, Sequence[str]]:
    """Describe the requested part of the graph as JSON and text."""
    dims = case_values(session.project.models[head["model"]].data["dims"])["opt"]
    request = {"graph": graph.request(), "dims": dims, "values": options.tensor}
    document = {**head, **ask_inspection("describe", request)}
    if options.node:
        return _describe_nodes(head, document, options.node)
    if options.tensor:
        return _describe_tensors(head, document, options.tensor)
    if options.nodes:
        return document, _node_table(document)
    if graph.state != STORED and graph.action.target.startswith(f"{ENGINE}:"):
        document["placement"] = session.result(graph.action.target).get("placement", {})
    return document, _graph_lines(document)


def _describe_tensors(
    head: Document, document: Document, pattern: str
) -> tuple[Document, Sequence[str]]:
    """Describe the tensors of a name or pattern, with the values of constants."""
    tensors, values = document["tensors"], document["values"]
    names = [name for name in tensors if name == pattern or fnmatchcase(name, pattern)]
    if not names:
        raise _unknown("tensor", pattern, tensors)
    lines: list[str] = []
    for name in names[:_SHOWN_ROWS]:
        tensor = tensors[name]
        lines += [
            f"{tensor['kind']} {name}: {_typed(tensor)}",
            *_entry("size", [size(tensor["bytes"])] if tensor["bytes"] is not None else []),
            *_entry("producer", filter(None, [tensor["producer"]])),
            *_entry("consumers", tensor["consumers"] or ["none"]),
            *_entry("values", _value_lines(values[name]) if name in values else []),
        ]
    more = len(names) - _SHOWN_ROWS
    lines += [f"{more} more tensors (--json lists all)"] * (more > 0)
    chosen = {n: {**tensors[n], **({"values": values[n]} if n in values else {})} for n in names}
    return {**head, "tensors": chosen}, lines


def _value_lines(values: Document) -> Iterator[str]:
    """Yield statistics and the first values of a constant."""
    number, first = values["count"], values["first"][:_SHOWN_VALUES]
    if number > 1 and "min" in values:
        facts = [f"{name} {values[name]:.6g}" for name in ("min", "max", "mean", "std")]
        kinds = {"zeros": "0", "not_finite": "NaN or infinite"}
        facts += [f"{count(values[kind])} {text}" for kind, text in kinds.items() if values[kind]]
        yield ", ".join(facts)
    more = [f"… {count(number)} in all"] if number > len(first) else []
    texts = (f"{value:.6g}" if isinstance(value, float) else str(value) for value in first)
    yield ", ".join([*texts, *more]) or "none"


def _describe_nodes(
    head: Document, document: Document, name: str
) -> tuple[Document, Sequence[str]]:
    """Describe the nodes of a name, or the producer of a tensor."""
    chosen = [node for node in document["nodes"] if node["name"] == name]
    chosen = chosen or [node for node in document["nodes"] if name in node["outputs"]]
    if not chosen:
        raise _unknown("node", name, [node["label"] for node in document["nodes"]])
    nodes: list[Document] = []
    lines: list[str] = []
    for node in chosen:
        ports = filter(None, (*node["inputs"], *node["outputs"]))
        tensors = {port: document["tensors"].get(port) for port in ports}
        nodes.append({**node, "tensors": tensors})
        where = f" in {node['inside']}" if node["inside"] else ""
        lines += [
            f"{node['operator']} {node['label']}{where}",
            *_entry("attributes", (f"{key} = {text}" for key, text in node["attributes"].items())),
            *_entry("inputs", (_end(port, tensors, "producer") for port in node["inputs"])),
            *_entry("outputs", (_end(port, tensors, "consumers") for port in node["outputs"])),
            *_entry("MACs", [count(node["macs"])] if node["macs"] else []),
        ]
    return {**head, "nodes": nodes}, lines


def _describe_engine(
    session: BuildSession, graph: GraphFile, head: Document, options: Namespace
) -> tuple[Document, Sequence[str]]:
    """Describe the record of an engine, or the layers that ONNX nodes became."""
    if options.tensor:
        require_onnx_graph(graph)
    target = graph.action.target
    result = {} if graph.state == STORED else dict(session.result(target))
    layers = result.get("layer_nodes", [])
    if options.node or options.nodes:
        pairs = [(name, layer) for layer in layers for name in layer["nodes"]]
        if not pairs:
            hint = "build it on a GPU with profiling_verbosity: detailed, or inspect its ONNX graph"
            raise UsageError(f"engine.json of {target} does not name its nodes", hint)
        nodes = [{"name": n, "layer": e} for n, e in pairs if options.node in ("", n)]
        if not nodes:
            raise _unknown("node", options.node, [name for name, _ in pairs])
        rows = [(node["name"], *_layer_cells(node["layer"])) for node in nodes]
        titles = ("node", "layer", "kind", "type", "time>", "share>")
        return {**head, "nodes": nodes}, format_table(titles, rows)
    hidden = (*_ENGINE_HEADER, "layer_nodes", "refit_basis")
    all_bytes = size(result.get("engine_bytes", graph.bytes))
    return {**head, "engine": result}, [
        f"{target}: {shown_path(graph.file)}, {all_bytes}",
        "the engine has no readable graph; from engine.json:",
        *(
            f"  {name:<18}{plain(value)}"
            for name, value in result.items()
            if name not in hidden and value not in (None, "", [], {})
        ),
        *(["", *_layer_table(layers)] if layers else []),
    ]


def _layer_table(layers: Sequence[Document]) -> list[str]:
    """Format a table of the slowest layers, with the nodes that each is made of."""
    ordered = sorted(layers, key=lambda layer: -layer.get("time_ms", 0.0))[:_SHOWN_ROWS]
    rows = [(*_layer_cells(layer), first_names(layer["nodes"], 3)) for layer in ordered]
    titles = (f"{count(len(layers))} layers", "kind", "type", "time>", "share>", "made of")
    more = len(layers) - len(rows)
    return [*format_table(titles, rows), *[f"{more} more layers (--json lists all)"] * (more > 0)]


def _layer_cells(layer: Document) -> tuple[str, ...]:
    time_ms, share = layer.get("time_ms"), layer.get("share")
    return (
        layer["name"],
        layer["kind"],
        layer["precision"] or "",
        "" if time_ms is None else f"{time_ms:.4f} ms",
        "" if share is None else f"{100 * share:.1f} %",
    )


def _draw(graph: GraphFile, head: Document, options: Namespace) -> tuple[Document, Sequence[str]]:
    """Write the drawing; return its figures as JSON and as text."""
    part = {"from": options.begin, "to": options.end, "depth": options.depth}
    title = f"{head['model']}: {graph.name}"
    answer = ask_inspection("draw", {"graph": graph.request(), "title": title, **part})
    path = typed_path(options.svg)
    path.write_text(answer.pop("svg"), encoding="utf-8")
    text = f"wrote {path}: {count(answer['nodes'])} nodes in {count(answer['boxes'])} boxes"
    if answer["boxes"] < answer["nodes"]:
        text += "; draw parts of it with --from, --to and --depth"
    return {**head, "schema": DRAWING_SCHEMA, "svg": str(path), **answer}, [text]


def _serve(graph: GraphFile, port: int) -> int:
    """Serve a graph by netron until Ctrl-C or SIGTERM; port 0 is a free one.

    Raises: Unavailable: netron is not installed. StageError: the port is in use.
    """
    if find_spec("netron") is None:
        hint = "`pip install 'buildsys[netron]'` or `pip install netron` installs it"
        raise Unavailable("netron is not installed", hint)
    netron: Any = import_module("netron")
    logging.getLogger("netron").setLevel(logging.CRITICAL)  # it announces the address as well
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # a stored graph has no suffix, by which netron knows its format
    content = bytearray(graph.file.read_bytes()) if graph.state == STORED else None
    name = "model.onnx" if content else str(graph.file)
    try:
        host, bound = netron.serve(name, content, (_HOST, port), browse=False)
    except (OSError, OverflowError) as error:
        problem = f"port {port} cannot be used: {error}"
        raise StageError(problem, "without --port a free one is chosen") from None
    note = [graph.note] if graph.note else []
    print_lines([*note, f"serving at http://{host}:{bound}; stop with Ctrl-C"])
    sys.stdout.flush()
    netron.wait()
    return 0


def _unknown(kind: str, name: str, names: Iterable[str]) -> UsageError:
    error = unknown_name(kind, name, names, "`--nodes` lists all nodes and their tensors")
    return UsageError(f"the graph has no {kind} {name!r}", error.hint)


def _graph_lines(document: Document) -> list[str]:
    graph, stored = document["graph"], document["initializers"]
    opsets = ", ".join(f"{domain} {version}" for domain, version in document["opsets"].items())
    by_type = ", ".join(
        f"{count(entry['count'])} {name}" for name, entry in stored["dtypes"].items()
    )
    weights = (
        f"{count(document['parameters'])} parameters, {size(stored['bytes'])} in "
        f"{count(stored['count'])} initializers{': ' if by_type else ''}{by_type}"
    )
    largest = [
        f"{port['name']}: {_typed(port)}, {size(port['bytes'])}" for port in stored["largest"]
    ]
    functions = {entry["name"]: entry["operators"] for entry in document["functions"]}
    producer = f"{document['producer'] or 'unknown'}, IR version {document['ir_version']}"
    return [
        f"{graph['target']}: {shown_path(Path(graph['file']))}, {size(graph['bytes'])}",
        *_entry("producer", [producer]),
        *_entry("opsets", [opsets]),
        *_entry("inputs", [f"{port['name']}: {_typed(port)}" for port in document["inputs"]]),
        *_entry("outputs", [f"{port['name']}: {_typed(port)}" for port in document["outputs"]]),
        *_entry("weights", [weights]),
        *_entry("largest", largest),
        *_entry("MACs", _macs(document["macs"])),
        *_entry("providers", filter(None, [placement_text(document.get("placement", {}))])),
        *_entry("functions", [f"{name}: {_counts(counts)}" for name, counts in functions.items()]),
        "",
        *_operator_table(document),
    ]


def _macs(macs: Document) -> Iterator[str]:
    """Yield the multiply-accumulates in total, by operator, and what is not counted."""
    sizes = ", ".join(f"{name} = {value}" for name, value in macs["dims"].items())
    least = "" if macs["complete"] else "at least "
    yield f"{least}{large(macs['total'])}{f' at {sizes}' if sizes else ''}"
    shares = ", ".join(
        f"{name} {large(share['macs'])} in {share['nodes']}"
        for name, share in list(macs["operators"].items())[:_SHOWN_OPERATORS]
    )
    yield shares or "no convolution, matrix product or recurrent layer was counted"
    if macs["not_counted"]:
        yield f"not counted (unknown operators or shapes): {_counts(macs['not_counted'])}"
    if macs["loops_counted_once"]:
        yield "loop bodies are counted once, as the number of iterations is unknown"


def _operator_table(document: Document) -> list[str]:
    operators, macs = document["operators"], document["macs"]
    rows = []
    for name, number in list(operators.items())[:_SHOWN_ROWS]:
        own = macs["operators"].get(name, {}).get("macs")
        share = f"{100 * own / macs['total']:.1f} %" if own else ""
        rows.append((name, count(number), large(own) if own else "", share))
    lines = format_table(
        (f"{count(sum(operators.values()))} nodes", "count>", "MACs>", "share>"), rows
    )
    more = len(operators) - len(rows)
    return [*lines, f"{more} more operators (--json lists all)"] if more else lines


def _node_table(document: Document) -> list[str]:
    """Format one line per node in graph order, nodes of bodies indented."""
    rows = []
    for node in document["nodes"]:
        outputs = []
        for name in filter(None, node["outputs"]):
            tensor = document["tensors"].get(name, {})
            has_shape = tensor.get("shape") is not None
            outputs.append(f"{name} {_shape(tensor['shape'])}" if has_shape else name)
        indent = "  " * (node["inside"].count("/") + 1 if node["inside"] else 0)
        inputs, macs = ", ".join(node["inputs"]), large(node["macs"]) if node["macs"] else ""
        name = node["name"] or "-"
        rows.append((indent + node["operator"], name, inputs, f"→ {', '.join(outputs)}", macs))
    return format_table(("operator", "name", "inputs", "outputs", "MACs>"), rows)


def _end(name: str, tensors: Document, other: str) -> str:
    """Format an input with its producer, or an output with its consumers."""
    tensor = tensors.get(name)
    if tensor is None:  # a tensor of the graph around a body
        return name or "(omitted)"
    text = f"{name}: {_typed(tensor)}"
    if other == "producer":
        return f"{text} from {tensor['producer'] or tensor['kind']}"
    consumers = tensor["consumers"] or [tensor["kind"] if tensor["kind"] == "output" else "nothing"]
    return f"{text} to {first_names(consumers, _SHOWN_CONSUMERS)}"


def _typed(tensor: Document) -> str:
    return f"{tensor['dtype'] or 'unknown type'} {_shape(tensor['shape'])}"


def _shape(shape: Sequence[Any] | None) -> str:
    if shape is None:
        return "of unknown shape"
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {TIMES}{number}" for name, number in counts.items())
