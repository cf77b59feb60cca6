"""TensorRT-RTX: engines for RTX GPUs, built with or without a GPU at hand.

Its networks are always strongly typed: an engine's precision is that of the ONNX types. References to the
logger, the builder and the network are kept for as long as anything made from them lives, since the
library does not, and a parser on a temporary network crashes the process.

Source: TensorRT-RTX Python API reference; the traps are noted where they are avoided.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorrt_rtx as trt

from buildsys.backends.base import BuildRequest, Figures, OperatorUse, Options, Session, UnsupportedNode, refused
from buildsys.backends.cuda_driver import find_driver
from buildsys.backends.profiles import resolve_profiles
from buildsys.backends.rtx_messages import LOGGER, BuildProgress, Messages, collected_messages
from buildsys.backends.rtx_plugins import load_plugins
from buildsys.backends.rtx_session import DTYPES, RtxSession
from buildsys.backends.rtx_settings import add_profiles, check_machine, check_runs_here, configure, settings_in_force
from buildsys.errors import StageError, Unavailable

if TYPE_CHECKING:
    from buildsys.backends import tensorrt_rtx as _this_module
    from buildsys.backends.base import Backend

    _CONFORMS: Backend = _this_module

_ASSERTIONS = (  # the parser's own condition says nothing to a user, the text beside it does
    re.compile(r'.*&& "(?P<text>.+)"', re.DOTALL),
    re.compile(r"Assertion failed: .+?: (?P<text>[A-Z].+)", re.DOTALL),
)


def prepare(options: Options) -> None:
    """Check the engine's fields against this machine.

    Raises: Unavailable: a field needs a GPU that is not here. StageError: a field that can never work.
    """
    if options["workspace"] == 0:
        raise StageError("workspace: 0 leaves TensorRT-RTX no memory to work in", "give it a size, or leave it out")
    check_machine(options)


def unsupported(request: BuildRequest) -> list[UnsupportedNode]:
    """Return every node that the parser refuses; several for unknown operators, else the first."""
    with collected_messages():
        load_plugins(request.operators)
        return [node for node in _parse(request.onnx).refused if node.operator]


def build(request: BuildRequest) -> Figures:
    """Write the engine; return its settings, profiles, tensors and layers.

    The layers and the share of each type are those of the parsed network, before TensorRT fuses it.
    Raises: GraphRefusedError: all nodes that the parser refuses. StageError: why the builder gave up.
    """
    options = request.options
    profiles = resolve_profiles(request.inputs, request.dims, options["profiles"])
    with collected_messages() as messages:
        plugins = load_plugins(request.operators)
        parsed = _parse(request.onnx)
        _check_parsed(request, parsed, messages)
        builder, network = parsed.builder, parsed.network
        config = builder.create_builder_config()
        monitor = BuildProgress(request.progress)  # the configuration does not keep it alive
        config.progress_monitor = monitor
        configure(builder, config, options, messages)
        add_profiles(builder, config, profiles)
        settings = settings_in_force(builder, config, options)
        engine = builder.build_serialized_network(network, config)
        if engine is None or messages.errors:  # an error is fatal even where TensorRT-RTX goes on without
            raise StageError(f"model {request.model}: {messages.sentence('TensorRT-RTX built no engine')}")
        request.engine.write_bytes(engine)
        facts = _network_facts(network)
    named = {"plugins": plugins} if plugins else {}
    warnings = list(dict.fromkeys(messages.warnings))
    return {"settings": settings, "profiles": profiles, **facts, **named, "messages": warnings}


def describe(engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()) -> Figures:
    """Return what the engine tells on a GPU that it runs on; {} elsewhere, where it cannot be opened."""
    try:
        session = load(engine, options, operators)
    except Unavailable:
        return {}
    try:
        return session.describe()
    finally:
        unload(session)


def load(engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()) -> RtxSession:
    """Load an engine on the first GPU.

    Raises: Unavailable: no GPU here, or none that the engine is built for.
    """
    check_runs_here(options)
    load_plugins(operators)  # an engine holds only their fields
    return RtxSession(engine)


def unload(session: Session) -> None:
    """Free the engine and all its device memory."""
    if isinstance(session, RtxSession):
        session.close()


def device(options: Options) -> Figures:  # noqa: ARG001 (the same for all options)
    """Return the first GPU and the driver, or why there is none."""
    driver = find_driver()
    if not driver.gpus:
        return {"kind": "gpu", "missing": driver.missing}
    gpu = driver.gpus[0]
    return {
        "kind": "gpu",
        "name": gpu.name,
        "compute_capability": gpu.compute_capability,
        "memory_bytes": gpu.memory_bytes,
        "driver_cuda": driver.cuda_version,
    }


@dataclass
class _Parsed:
    """A network and what must outlive it."""

    builder: trt.Builder
    network: trt.INetworkDefinition
    parser: trt.OnnxParser  # the network's weights are the parser's memory
    refused: list[UnsupportedNode]
    accepted: bool


def _parse(onnx: Path) -> _Parsed:
    builder = trt.Builder(LOGGER)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, LOGGER)
    accepted = parser.parse_from_file(str(onnx))
    refused = [_refused_node(parser.get_error(index)) for index in range(parser.num_errors)]
    return _Parsed(builder, network, parser, refused, bool(accepted))


def _refused_node(error: trt.ParserError) -> UnsupportedNode:
    text = error.desc()
    matches = [match for pattern in _ASSERTIONS if (match := pattern.fullmatch(text))]
    reason = " ".join((matches[0]["text"] if matches else text).split())
    index = error.node()
    return UnsupportedNode(
        index=index if index >= 0 else None,
        name=error.node_name(),
        operator=error.node_operator(),
        reason=reason,
        functions=tuple(error.local_function_stack()),
    )


def _check_parsed(request: BuildRequest, parsed: _Parsed, messages: Messages) -> None:
    nodes = [node for node in parsed.refused if node.operator]
    others = [node.reason for node in parsed.refused if not node.operator]
    if nodes:
        refused(request, "TensorRT-RTX", nodes, others)
    if others or not parsed.accepted:
        reason = "; ".join(others) or messages.sentence("no reason is given")
        raise StageError(f"model {request.model}: TensorRT-RTX cannot read {request.onnx.name}: {reason}")
    if parsed.network.num_outputs == 0:  # the parser takes some files that are no ONNX for an empty model
        raise StageError(f"model {request.model}: TensorRT-RTX finds no graph with outputs in {request.onnx.name}")
    tensors = [parsed.network.get_input(index) for index in range(parsed.network.num_inputs)]
    values = [tensor.name for tensor in tensors if tensor.is_shape_tensor]
    if values:
        raise StageError(
            f"model {request.model}: the values of the input {', '.join(values)} decide shapes inside the network,"
            " and an optimization profile here gives ranges of shapes only"
        )


def _network_facts(network: trt.INetworkDefinition) -> Figures:
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    kinds = Counter(str(layer.type.name).lower() for layer in layers)
    types = Counter(DTYPES[layer.get_output_type(0)] for layer in layers if layer.num_outputs)
    total = sum(types.values())
    return {
        "inputs": [_tensor_facts(network.get_input(index)) for index in range(network.num_inputs)],
        "outputs": [_tensor_facts(network.get_output(index)) for index in range(network.num_outputs)],
        "layers": dict(sorted(kinds.items())),
        "precision_shares": {"layers": {name: count / total for name, count in sorted(types.items())}},
    }


def _tensor_facts(tensor: trt.ITensor) -> dict[str, Any]:
    # an axis whose name is unknown reads as ""
    shape = [size if size >= 0 else tensor.get_dimension_name(axis) or "?" for axis, size in enumerate(tensor.shape)]
    return {"name": tensor.name, "dtype": DTYPES[tensor.dtype], "shape": shape}
