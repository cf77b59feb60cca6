"""An ONNX file as a TensorRT network: parsed, with everything that the parser refuses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from buildsys.backends.interface import BuildRequest, Figures, UnsupportedNode, refused
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.enum_tables import DTYPES
from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.log import Messages, log_of
from buildsys.backends.tensorrt.onnx_nodes import OnnxNodes, read_nodes
from buildsys.errors import StageError

# where nobody can look at the graph more closely: an interpreter of a toolchain need not have onnx
_REMEDIES = (
    "export with another opset, give the operator a decomposition (ops: function) or a plugin (ops: plugin), or replace"
    " it by surgery; doit ops --model MODEL tells what takes which operator"
)
_ASSERTIONS = (  # the parser's own condition says nothing to a user, the text beside it does
    re.compile(r'.*&& "(?P<text>.+)"', re.DOTALL),
    re.compile(r"Assertion failed: .+?: (?P<text>[A-Z].+)", re.DOTALL),
)


@dataclass
class Parsed:
    """A network and what must outlive it: the library does not keep them alive."""

    builder: Any
    network: Any
    parser: Any  # the network's weights are the parser's memory
    refused: list[UnsupportedNode]
    accepted: bool


def parse(library: Library, builder: Any, onnx: Path, *, strong: bool = True) -> Parsed:
    """Parse a file; a parser on a temporary network would crash the process."""
    network = version_adapter.create_network(library, builder, strong=strong)
    parser = library.trt.OnnxParser(network, log_of(library).logger)
    accepted = bool(parser.parse_from_file(str(onnx)))
    refused = [
        _refused_node(library, parser.get_error(index)) for index in range(parser.num_errors)
    ]
    if not accepted and not version_adapter.names_nodes(library):
        refused = _named(library, parser, refused, read_nodes(onnx))
    return Parsed(builder, network, parser, refused, accepted)


def new_builder(library: Library) -> Any:
    """Return a builder.

    Raises: StageError: CUDA cannot be used on this machine, or the GPU is out of memory.
    """
    log = log_of(library)
    with log.collected() as messages:
        try:
            builder = library.trt.Builder(log.logger)
        except TypeError as error:  # what the bindings make of a null pointer
            reason = (
                "; ".join(dict.fromkeys([*messages.errors, *messages.warnings]))
                or "it gives no reason"
            )
            hint = "look at nvidia-smi: the driver may be too old, or the GPU full"
            raise StageError(f"{library.title} cannot start on this GPU: {reason}", hint) from error
    return builder


def check_parsed(
    library: Library, request: BuildRequest, parsed: Parsed, messages: Messages
) -> None:
    """Check that the parser took the whole graph.

    Raises: GraphRefusedError: all nodes that it refused. StageError: it could not read the file.
    """
    nodes = [node for node in parsed.refused if node.operator]
    others = [node.reason for node in parsed.refused if not node.operator]
    if nodes:
        refused(request, library.title, nodes, others, _REMEDIES)
    if others or not parsed.accepted:
        reason = "; ".join(others) or messages.sentence("no reason is given")
        raise StageError(
            f"model {request.model}: {library.title} cannot read {request.onnx.name}: {reason}"
        )
    if (
        parsed.network.num_outputs == 0
    ):  # the parser takes some files that are no ONNX for an empty model
        raise StageError(
            f"model {request.model}: {library.title} finds no graph with outputs in {request.onnx.name}"
        )


def network_facts(library: Library, network: Any) -> Figures:
    """Return the layers and the share of each type, before TensorRT fuses the network."""
    dtypes = DTYPES.words(library)
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    kinds = Counter(str(layer.type.name).lower() for layer in layers)
    types = Counter(dtypes[layer.get_output_type(0)] for layer in layers if layer.num_outputs)
    total = sum(types.values())
    return {
        "layers": dict(sorted(kinds.items())),
        "precision_shares": {
            "layers": {name: count / total for name, count in sorted(types.items())}
        },
        "precision_of": "network",
    }


def _named(
    library: Library, parser: Any, refused: Sequence[UnsupportedNode], onnx: OnnxNodes
) -> list[UnsupportedNode]:
    """Return refused nodes with name and operator, and all others whose operator the parser does not know.

    A parser that stops at the first node tells no more than its number.
    """
    found = []
    for each in refused:
        known = each.index is not None and each.index < len(onnx.nodes)
        node = onnx.nodes[each.index] if known and each.index is not None else None
        named = (
            replace(each, name=node.name, operator=node.operator, output=node.output)
            if node
            else each
        )
        found.append(named)
    told = {each.index for each in found}
    for index, node in enumerate(onnx.nodes):
        is_known = (
            parser.supports_operator(node.operator)
            or (node.domain, node.operator) in onnx.functions
        )
        if (
            index not in told
            and not is_known
            and version_adapter.find_creator(library, node.operator, "1", "") is None
        ):
            reason = "the parser does not know this operator, and there is no plugin for it"
            found.append(
                UnsupportedNode(index, node.name, node.operator, reason, output=node.output)
            )
    return sorted(found, key=lambda each: -1 if each.index is None else each.index)


def _refused_node(library: Library, error: Any) -> UnsupportedNode:
    facts = version_adapter.error_facts(library, error)
    matches = [match for pattern in _ASSERTIONS if (match := pattern.fullmatch(facts.text))]
    reason = " ".join((matches[0]["text"] if matches else facts.text).split())
    return UnsupportedNode(
        index=facts.index,
        name=facts.name,
        operator=facts.operator,
        reason=reason,
        functions=facts.functions,
    )
