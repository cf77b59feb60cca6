"""Parse an ONNX file to a TensorRT network."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from buildsys.backends.interface import (
    BuildRequest,
    Figures,
    UnsupportedNode,
    raise_refused,
    shares,
)
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.library import DTYPES, TensorRTLibrary
from buildsys.backends.tensorrt.log import Messages, log_of
from buildsys.errors import StageError
from buildsys.onnx_graphs.graph_reader import read_graph

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

# general remedies: a toolchain need not have onnx, so the graph cannot be examined here
_REMEDIES = (
    "export with another opset, give the operator a decomposition (ops: function) or a plugin"
    " (ops: plugin), or replace it by surgery; buildsys ops --model MODEL lists the support of each"
    " operator"
)
_ASSERTIONS = (  # the text after the parser's condition is the part for users
    re.compile(r'.*&& "(?P<text>.+)"', re.DOTALL),
    re.compile(r"Assertion failed: .+?: (?P<text>[A-Z].+)", re.DOTALL),
)


@dataclass
class Parsed:
    """A network and the objects to keep alive with it."""

    builder: Any
    network: Any
    keeper: Any  # owns the memory of the network's weights
    refused: list[UnsupportedNode]
    accepted: bool


def new_builder(library: TensorRTLibrary) -> Any:
    """Make a builder.

    Raises: StageError: CUDA cannot be used on this machine, or the GPU is out of memory.
    """
    log = log_of(library)
    with log.collected() as messages:
        try:
            builder = library.trt.Builder(log.logger)
        except TypeError as error:  # the bindings' translation of a null pointer
            reasons = dict.fromkeys([*messages.errors, *messages.warnings])
            reason = "; ".join(reasons) or "it gives no reason"
            hint = "check nvidia-smi: the driver may be too old, or the GPU full"
            raise StageError(f"{library.title} cannot start on this GPU: {reason}", hint) from error
    return builder


def parse(library: TensorRTLibrary, builder: Any, onnx: Path, *, strong: bool = True) -> Parsed:
    """Parse a file; keep the network, as a temporary one crashes.

    Raises: StageError: it has local functions for a parser without them, and onnx is missing.
    """
    network = version_adapter.create_network(library, builder, strong=strong)
    parser = library.trt.OnnxParser(network, log_of(library).logger)
    with _parsable(library, onnx) as file:
        accepted = bool(parser.parse_from_file(str(file)))
        names_all = accepted or library.has("names of all refused nodes")
        graph = None if names_all else read_graph(file)
    refused = []
    for number in range(parser.num_errors):
        node = version_adapter.refused_node(library, parser.get_error(number))
        matches = (match for pattern in _ASSERTIONS if (match := pattern.fullmatch(node.reason)))
        match = next(matches, None)
        text = match["text"] if match else node.reason
        refused.append(replace(node, reason=" ".join(text.split())))
    if graph is not None:
        refused = _with_all_nodes(library, parser, graph, refused)
        refused.sort(key=lambda problem: -1 if problem.index is None else problem.index)
    refused = [replace(node, until=library.newest_opset) for node in refused]
    return Parsed(builder, network, parser, refused, accepted)


def check_parsed(
    library: TensorRTLibrary, request: BuildRequest, parsed: Parsed, messages: Messages
) -> None:
    """Check a parsed graph for refused nodes.

    Raises: GraphRefusedError: all nodes that it refused. StageError: it could not read the file.
    """
    nodes = [node for node in parsed.refused if node.operator]
    others = [node.reason for node in parsed.refused if not node.operator]
    if nodes:
        raise_refused(request, library.title, nodes, others, _REMEDIES)
    problem = ""
    if others or not parsed.accepted:
        reason = "; ".join(others) or messages.error_text("no reason is given")
        problem = f"cannot read {request.onnx.name}: {reason}"
    elif parsed.network.num_outputs == 0:  # the parser accepts some files that are not ONNX
        problem = f"finds no graph with outputs in {request.onnx.name}"
    if problem:
        raise StageError(f"model {request.model}: {library.title} {problem}")


def network_facts(library: TensorRTLibrary, network: Any) -> Figures:
    """Collect layers and shares per type, before fusion."""
    dtypes = DTYPES.words(library)
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    kinds = Counter(str(layer.type.name).lower() for layer in layers)
    types = Counter(dtypes[layer.get_output_type(0)] for layer in layers if layer.num_outputs)
    return {
        "layers": dict(sorted(kinds.items())),
        "precision_shares": {"layers": shares(types)},
        "precision_of": "network",
    }


@contextmanager
def _parsable(library: TensorRTLibrary, onnx: Path) -> Iterator[Path]:
    """Yield a file, for parsers without local functions a copy with them inlined."""
    if library.has("local functions") or not read_graph(onnx).functions:
        yield onnx
        return
    from buildsys.onnx_graphs.graph_reader import inline_functions

    with TemporaryDirectory() as folder:
        copy = Path(folder) / onnx.name
        inline_functions(onnx, copy)
        data = onnx.with_name(f"{onnx.name}.data")
        if data.exists():
            copy.with_name(data.name).symlink_to(data.resolve())
        yield copy


def _with_all_nodes(
    library: TensorRTLibrary, parser: Any, model: ModelProto, refused: Sequence[UnsupportedNode]
) -> list[UnsupportedNode]:
    """Add names of reported nodes, and unreported nodes of unknown operators."""
    onnx_nodes = model.graph.node
    nodes = []
    for refusal in refused:
        if refusal.index is not None and refusal.index < len(onnx_nodes):
            node = onnx_nodes[refusal.index]
            output = next(iter(node.output), "")
            refusal = replace(refusal, name=node.name, operator=node.op_type, output=output)
        nodes.append(refusal)
    reported = {refusal.index for refusal in refused}
    functions = {(function.domain, function.name) for function in model.functions}
    for index, node in enumerate(onnx_nodes):
        if index in reported or parser.supports_operator(node.op_type):
            continue
        if (node.domain, node.op_type) not in functions and plugin_creator(library, node) is None:
            reason = "the parser does not know this operator, and there is no plugin for it"
            output = next(iter(node.output), "")
            nodes.append(UnsupportedNode(index, node.name, node.op_type, reason, output=output))
    return nodes


def plugin_wanted(node: NodeProto) -> tuple[str, str]:
    """Find the version and the namespace that a node asks for, "" for any namespace."""
    texts = {entry.name: entry.s.decode(errors="replace") for entry in node.attribute}
    return texts.get("plugin_version") or "1", texts.get("plugin_namespace", "")


def plugin_creator(library: TensorRTLibrary, node: NodeProto) -> Any:
    """Find the parser's plugin creator for a node, or None."""
    version, namespace = plugin_wanted(node)
    for place in [namespace] if namespace else ["", node.domain]:
        creator = version_adapter.find_creator(library, node.op_type, version, place)
        if creator is not None:
            return creator
    return None
