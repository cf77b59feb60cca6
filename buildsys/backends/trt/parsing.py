"""An ONNX file as a TensorRT network: parsed, with everything that the parser refuses."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildsys.backends.base import BuildRequest, Figures, UnsupportedNode, refused
from buildsys.backends.trt import adapter
from buildsys.backends.trt.library import Library
from buildsys.backends.trt.messages import Messages, log_of
from buildsys.errors import StageError

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


def parse(library: Library, onnx: Path) -> Parsed:
    """Parse a file; a parser on a temporary network would crash the process."""
    trt, logger = library.trt, log_of(library).logger
    builder = trt.Builder(logger)
    network = adapter.create_network(library, builder)
    parser = trt.OnnxParser(network, logger)
    accepted = parser.parse_from_file(str(onnx))
    refused = [_refused_node(library, parser.get_error(index)) for index in range(parser.num_errors)]
    return Parsed(builder, network, parser, refused, bool(accepted))


def check_parsed(library: Library, request: BuildRequest, parsed: Parsed, messages: Messages) -> None:
    """Check that the parser took the whole graph.

    Raises: GraphRefusedError: all nodes that it refused. StageError: it could not read the file.
    """
    nodes = [node for node in parsed.refused if node.operator]
    others = [node.reason for node in parsed.refused if not node.operator]
    if nodes:
        refused(request, library.title, nodes, others)
    if others or not parsed.accepted:
        reason = "; ".join(others) or messages.sentence("no reason is given")
        raise StageError(f"model {request.model}: {library.title} cannot read {request.onnx.name}: {reason}")
    if parsed.network.num_outputs == 0:  # the parser takes some files that are no ONNX for an empty model
        raise StageError(f"model {request.model}: {library.title} finds no graph with outputs in {request.onnx.name}")
    tensors = [parsed.network.get_input(index) for index in range(parsed.network.num_inputs)]
    values = [tensor.name for tensor in tensors if tensor.is_shape_tensor]
    if values:
        raise StageError(
            f"model {request.model}: the values of the input {', '.join(values)} decide shapes inside the network,"
            " and an optimization profile here gives ranges of shapes only"
        )


def network_facts(library: Library, network: Any) -> Figures:
    """Return the tensors, the layers and the share of each type, before TensorRT fuses the network."""
    dtypes = adapter.DTYPES.words(library)
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    kinds = Counter(str(layer.type.name).lower() for layer in layers)
    types = Counter(dtypes[layer.get_output_type(0)] for layer in layers if layer.num_outputs)
    total = sum(types.values())
    return {
        "inputs": [_tensor_facts(dtypes, network.get_input(index)) for index in range(network.num_inputs)],
        "outputs": [_tensor_facts(dtypes, network.get_output(index)) for index in range(network.num_outputs)],
        "layers": dict(sorted(kinds.items())),
        "precision_shares": {"layers": {name: count / total for name, count in sorted(types.items())}},
    }


def _refused_node(library: Library, error: Any) -> UnsupportedNode:
    facts = adapter.error_facts(library, error)
    matches = [match for pattern in _ASSERTIONS if (match := pattern.fullmatch(facts.text))]
    reason = " ".join((matches[0]["text"] if matches else facts.text).split())
    return UnsupportedNode(
        index=facts.index, name=facts.name, operator=facts.operator, reason=reason, functions=facts.functions
    )


def _tensor_facts(dtypes: dict[Any, str], tensor: Any) -> Figures:
    # an axis whose name is unknown reads as ""
    shape = [size if size >= 0 else tensor.get_dimension_name(axis) or "?" for axis, size in enumerate(tensor.shape)]
    return {"name": tensor.name, "dtype": dtypes[tensor.dtype], "shape": shape}
