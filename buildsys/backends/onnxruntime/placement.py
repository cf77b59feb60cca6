"""The execution provider of each node, and the nodes that were not to run on the CPU.

ONNX Runtime gives a node to the first provider that takes it, and what is left to the CPU without a
word. It also puts nodes on the CPU that a GPU could run: those that compute shapes, as their
results are needed there. These have no inputs but shapes and constants.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import onnxruntime as ort

from buildsys.backends.interface import Figures, Options, shares, slowest
from buildsys.backends.onnxruntime.execution_providers import (
    CPU,
    allows_cpu,
    engine_providers,
    provider_name,
)
from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.errors import CheckFailed, Unavailable
from buildsys.onnx_graphs.graph_reader import read_graph

_RECORD = "session.record_ep_graph_assignment_info"
_SINCE = "1.24"  # the first ONNX Runtime that reports it
_SHAPES = ("Shape", "Size")
_MOST_NAMED = 100  # in a result
_MOST_IN_A_SENTENCE = 5  # in a sentence


class _Node(NamedTuple):
    operator: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} ({self.operator})" if self.name else f"a {self.operator}"


def record_placement(session: ort.SessionOptions) -> None:
    """Let a session remember the provider of each node."""
    session.add_session_config_entry(_RECORD, "1")


def read_placement(graph: OrtGraph, model: Path, options: Options) -> Figures:
    """Read {provider: {"nodes": …}} of a session; {} if ONNX Runtime does not report it.

    The CPU has further figures: ``shapes``, its nodes that compute shapes, and ``names``, the first
    of the others.
    """
    if not hasattr(graph.session, "get_provider_graph_assignment_info"):
        if allows_cpu(options):
            return {}
        raise Unavailable(
            f"onnxruntime {ort.__version__} does not report the providers of nodes, so nodes on the"
            " CPU would go unnoticed",
            f"pip install 'onnxruntime>={_SINCE}', or add cpu to providers",
        )
    by_title = {selected.provider.title: selected.name for selected in engine_providers(options)}
    nodes: dict[str, list[_Node]] = {name: [] for name in by_title.values() if name != CPU}
    for part in graph.session.get_provider_graph_assignment_info():
        placed = nodes.setdefault(by_title.get(part.ep_name, CPU), [])
        for node in part.get_nodes():
            domain = "" if node.domain in ("", "ai.onnx") else f"{node.domain}::"
            placed.append(_Node(f"{domain}{node.op_type}", node.name))
    placement: Figures = {name: {"nodes": len(placed)} for name, placed in nodes.items()}
    if on_cpu := nodes.get(CPU):
        of_shapes = {*_shape_nodes(read_graph(model).graph)}
        others = [str(node) for node in on_cpu if node not in of_shapes]
        placement[CPU] |= {"shapes": len(on_cpu) - len(others), "names": others[:_MOST_NAMED]}
    return placement


def check_placement(placement: Figures, options: Options) -> Iterator[str]:
    """Yield a message about nodes on the CPU."""
    others = [name for name in placement if name != CPU]
    if not others:
        return
    elsewhere = sum(placement[name]["nodes"] for name in others)
    on_cpu = placement.get(CPU, {})
    if not elsewhere:
        raise CheckFailed(
            f"no node runs on {' or '.join(others)}: all {on_cpu.get('nodes', 0)} run on the CPU",
            "read in the log if it did not start, give the inputs fixed shapes, replace the"
            " operators that it does not support, or use providers: [cpu]",
        )
    count = on_cpu.get("nodes", 0) - on_cpu.get("shapes", 0)
    if not count:
        return
    run = "runs" if count == 1 else "run"
    names = [
        *on_cpu["names"][:_MOST_IN_A_SENTENCE],
        *(["…"] if count > _MOST_IN_A_SENTENCE else []),
    ]
    text = f"{count} of {count + elsewhere} nodes {run} on the CPU: {', '.join(names)}"
    if not allows_cpu(options):
        raise CheckFailed(
            f"{text}; providers lists only {', '.join(others)}",
            "add cpu at the end of providers to allow it, or replace these operators",
        )
    yield text


def _shape_nodes(graph: Any) -> Iterator[_Node]:
    """Yield the nodes of a graph, not of bodies in it, that compute shapes or constants only."""
    from buildsys.onnx_graphs.onnx_file import operator_name  # needs onnx

    constants, sizes = {tensor.name for tensor in graph.initializer}, set[str]()
    for node in graph.node:
        inputs = {name for name in node.input if name}
        if node.op_type in _SHAPES or (inputs & sizes and inputs <= sizes | constants):
            sizes.update(node.output)
        elif inputs <= constants and not node.op_type.startswith("Random"):
            constants.update(node.output)
        else:
            continue
        yield _Node(operator_name(node), node.name)


_SUFFIX = "_kernel_time"  # events end with it
_CONTAINERS = ("If", "Loop", "Scan")  # the nodes of their bodies have times as well
_NAMES = {"float": "float32", "double": "float64"}  # others have ONNX's names
_NARROWEST_FIRST = (
    "int4", "uint4", "float8e4m3fn", "float8e5m2", "int8", "uint8", "bfloat16", "float16",
    "float32", "float64",
)  # fmt: skip


def read_layers(profile: Path, *, with_providers: bool = False) -> list[Figures]:
    """Read the slowest nodes with their mean times, without the first run.

    ``with_providers`` adds the provider of each, and its share of the time of all nodes.
    """
    events = json.loads(profile.read_bytes())
    runs = sorted(event["ts"] for event in events if event.get("name") == "model_run")
    begin, count = (runs[1], len(runs) - 1) if len(runs) > 1 else (runs[0], 1)
    nodes: dict[str, Mapping[str, Any]] = {}
    times_ms: dict[str, float] = defaultdict(float)
    by_provider: dict[str, float] = defaultdict(float)
    for event in events:
        name, arguments = str(event.get("name", "")), event.get("args", {})
        is_node = name.endswith(_SUFFIX) and arguments.get("op_name") not in _CONTAINERS
        if is_node and event["ts"] >= begin:
            name, time_ms = name.removesuffix(_SUFFIX), event["dur"] / 1000 / count
            nodes[name] = arguments
            times_ms[name] += time_ms
            by_provider[provider_name(str(arguments.get("provider", "")))] += time_ms
    of_time = shares(by_provider)
    layers = []
    for name, timed in slowest(times_ms):
        kind, provider = str(nodes[name].get("op_name", "")), str(nodes[name].get("provider", ""))
        layer = {"name": name, "kind": kind, "precision": _precision(nodes[name]), **timed}
        if with_providers:
            share = of_time.get(provider_name(provider), 0.0)
            layer |= {"provider": provider_name(provider), "provider_share": round(share, 4)}
        layers.append(layer)
    return layers


def _precision(arguments: Mapping[str, Any]) -> str | None:
    """Return the narrowest type of activations or weights among inputs and outputs."""
    outputs = list(_types(arguments.get("output_type_shape", ())))
    dtypes = {*outputs, *_types(arguments.get("input_type_shape", ()))}
    return next((dtype for dtype in _NARROWEST_FIRST if dtype in dtypes), next(iter(outputs), None))


def _types(ports: Iterable[Mapping[str, Any]]) -> list[str]:
    return [_NAMES.get(name, name) for port in ports for name in port]
