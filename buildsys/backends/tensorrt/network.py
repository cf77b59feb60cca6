"""Networks of TensorRT: parsed from an ONNX file, or defined by a user with TensorRT's API.

TensorRT reads weights when it builds, from arrays that it does not own. Those that a user's
function gets or gives to layers, and whatever it returns, are kept until then.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from buildsys.backends.interface import BuildRequest, Definition, UnsupportedNode, raise_refused
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.library import (
    Messages,
    TensorRTLibrary,
    dtype_words,
    is_strong,
    log_of,
)
from buildsys.errors import StageError
from buildsys.models.user_code import load_callable, reraise_as_stage_error
from buildsys.onnx_graphs.graph_reader import inline_functions, read_graph
from buildsys.onnx_graphs.tensors import load_arrays

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

Tensors = Mapping[str, Mapping[str, Any]]  # name -> shape and dtype as in the manifest
_DEFINE = (
    "write def define(network, trt): …, with the parameters weights and precision if needed;"
    " weights are contiguous arrays (numpy.ascontiguousarray), and TensorRT returns None for a"
    " layer that it refuses and for a plugin that is not registered"
)
_WEIGHTS = ("kernel", "bias", "shift", "scale", "power", "weights")  # attributes of layers
_SMALLER = {"int64": "int32"}  # for a library without the former; its parser does the same
# general remedies: a toolchain need not have onnx, so the graph cannot be examined here
_REMEDIES = (
    "export with another opset, give the operator a decomposition (ops: function) or a plugin"
    " (ops: plugin), or replace it by surgery; buildsys ops MODEL lists the support of each"
    " operator"
)
# the text after the parser's condition is the part for users
_ASSERTION = re.compile(r'.*(?:&& "|Assertion failed: .+?: (?=[A-Z]))(?P<text>.+?)"?', re.DOTALL)


@dataclass
class Parsed:
    """A network and the objects to keep alive with it."""

    builder: Any
    network: Any
    keeper: Any  # owns the memory of the network's weights


def new_builder(library: TensorRTLibrary) -> Any:
    """Make a builder."""
    log = log_of(library)
    with log.collected() as messages:
        try:
            return library.trt.Builder(log.logger)
        except TypeError as error:  # the bindings' translation of a null pointer
            reason = "; ".join([*messages.errors, *messages.warnings]) or "it gives no reason"
            hint = "check nvidia-smi: the driver may be too old, or the GPU full"
            raise StageError(f"{library.title} cannot start on this GPU: {reason}", hint) from error


def parse(
    library: TensorRTLibrary, builder: Any, request: BuildRequest, messages: Messages
) -> Parsed:
    """Parse a graph; keep the network, as a temporary one crashes.

    Raises: GraphRefusedError: all refused nodes.
    """
    network = version_adapter.create_network(library, builder, strong=is_strong(request.options))
    parser = library.trt.OnnxParser(network, log_of(library).logger)
    with _parsable(library, request.onnx) as file:
        accepted = bool(parser.parse_from_file(str(file)))
        names_all = accepted or library.has("names of all refused nodes")
        graph = None if names_all else read_graph(file)
    refused = []
    for number in range(parser.num_errors):
        node = version_adapter.refused_node(library, parser.get_error(number))
        match = _ASSERTION.fullmatch(node.reason)
        text = match["text"] if match else node.reason
        refused.append(replace(node, reason=" ".join(text.split())))
    if graph is not None:
        refused = _with_all_nodes(library, parser, graph, refused)
    nodes = [node for node in refused if node.operator]
    others = [node.reason for node in refused if not node.operator]
    if nodes:
        raise_refused(request, library.title, nodes, others, _REMEDIES)
    if others or not accepted:
        reason = "; ".join(others) or messages.error_text("no reason is given")
        problem = f"{library.title} cannot read {request.onnx.name}: {reason}"
        raise StageError(f"model {request.model}: {problem}")
    return Parsed(builder, network, parser)


@contextmanager
def _parsable(library: TensorRTLibrary, onnx: Path) -> Iterator[Path]:
    """Yield a file, for parsers without local functions a copy with them inlined."""
    if library.has("local functions") or not read_graph(onnx).functions:
        yield onnx
        return
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
    reason = "the parser does not know this operator, and there is no plugin for it"
    for index, node in enumerate(onnx_nodes):
        if index in reported or parser.supports_operator(node.op_type):
            continue
        if (node.domain, node.op_type) not in functions and not _has_plugin(library, node):
            output = next(iter(node.output), "")
            nodes.append(UnsupportedNode(index, node.name, node.op_type, reason, output=output))
    return sorted(nodes, key=lambda node: -1 if node.index is None else node.index)


def _has_plugin(library: TensorRTLibrary, node: NodeProto) -> bool:
    """Check for a plugin of the version and the namespace that a node names."""
    texts = {entry.name: entry.s.decode(errors="replace") for entry in node.attribute}
    version, namespace = texts.get("plugin_version") or "1", texts.get("plugin_namespace")
    places = [namespace] if namespace else ["", node.domain]
    find = version_adapter.find_creator
    return any(find(library, node.op_type, version, place) is not None for place in places)


def io_tensors(network: Any) -> tuple[list[Any], list[Any]]:
    """Return the inputs and the outputs."""
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    return inputs, [network.get_output(index) for index in range(network.num_outputs)]


def define_network(
    library: TensorRTLibrary, builder: Any, request: BuildRequest, messages: Messages
) -> Parsed:
    """Call the user's function on a new network, and check the result."""
    definition, options = request.definition or Definition(""), request.options
    name = definition.function
    function = load_callable(name, request.project)
    network = version_adapter.create_network(library, builder, strong=is_strong(options))
    file = definition.weights
    try:
        weights = load_arrays(file) if file else {}
    except (OSError, ValueError) as error:
        problem = f"{file and file.name} cannot be read as an .npz file: {error}"
        raise StageError(problem, "save it with numpy.savez") from error
    names = inspect.signature(function).parameters
    offered = {"weights": weights, "precision": options["precision"]}
    arguments = {**{n: offered[n] for n in offered if n in names}, **definition.kwargs}
    keeper: list[Any] = [weights]
    try:
        with (
            _assigned_weights_kept(library, keeper),
            reraise_as_stage_error(f"{name} failed", request.project),
        ):
            keeper.append(function(network, library.trt, **arguments))
    except StageError as failure:
        words = f"; {library.title} says: {messages.error_text('')}" if messages.errors else ""
        raise StageError(failure.problem + words, failure.hint or _DEFINE) from failure
    inputs, outputs = io_tensors(network)
    problems = [*_differences(library, "input", inputs, request.inputs, request.dims)]
    if definition.outputs:
        problems += _differences(library, "output", outputs, definition.outputs, request.dims)
    if messages.errors:  # some of layers appear when shapes are read
        text = f"{name} did what {library.title} refuses: {messages.error_text('')}"
        raise StageError(text, "correct the function")
    if problems:
        hint = "correct the function, or inputs, outputs and dims in the manifest"
        raise StageError(f"{name}: {'; '.join(problems)}", hint)
    return Parsed(builder, network, keeper)


@contextmanager
def _assigned_weights_kept(library: TensorRTLibrary, keeper: list[Any]) -> Iterator[None]:
    """Keep weights that the block assigns to layers, as in ``layer.kernel = array``.

    A network keeps the arrays in calls such as ``add_constant``, but not these.
    """

    def keeping(own: property) -> property:
        def assign(layer: Any, value: Any) -> None:
            keeper.append(value)
            own.__set__(layer, value)

        return property(own.fget, assign)

    changed = []
    for owner in vars(library.trt).values():
        for attribute in _WEIGHTS if getattr(owner, "__name__", "").endswith("Layer") else ():
            own = vars(owner).get(attribute)
            if isinstance(own, property) and own.fset is not None:
                changed.append((owner, attribute, own))
                setattr(owner, attribute, keeping(own))
    try:
        yield
    finally:
        for owner, attribute, own in reversed(changed):
            setattr(owner, attribute, own)


def _differences(
    library: TensorRTLibrary,
    kind: str,
    tensors: Sequence[Any],
    declared: Tensors,
    dims: Mapping[str, Mapping[str, Any]],
) -> Iterator[str]:
    """Yield differences between a network's ports and the manifest's."""
    words = dtype_words(library)
    by_name = {tensor.name: tensor for tensor in tensors}
    if by_name.keys() != declared.keys():
        own, expected = ", ".join(by_name) or "none", ", ".join(declared) or "none"
        yield f"the network has the {kind}s {own}, and the manifest {expected}"
    for name, tensor in by_name.items():
        dtype, shape = (declared.get(name, {}).get(field) for field in ("dtype", "shape"))
        own_dtype = words[tensor.dtype]
        if dtype and own_dtype not in (dtype, _SMALLER.get(dtype)):
            yield f"{kind} {name} is {own_dtype}, and {dtype} in the manifest"
        try:
            sizes = list(tensor.shape)
        except (RuntimeError, ValueError):  # the shapes of its layers contradict each other
            yield f"{kind} {name} has no shape that TensorRT can compute"
            continue
        is_output = kind == "output"
        if shape is not None and not (
            len(sizes) == len(shape)
            and all(_fits(*pair, dims, is_output) for pair in zip(sizes, shape, strict=True))
        ):
            declared_sizes = ", ".join("null" if size is None else str(size) for size in shape)
            text = f"{kind} {name} has the shape {sizes}, and [{declared_sizes}] in the manifest"
            yield f"{text} (-1 is any size)"


def _fits(size: int, declared: Any, dims: Mapping[str, Mapping[str, Any]], is_output: bool) -> bool:
    """Compare a size of a network, -1 if dynamic, with the manifest's."""
    if span := dims.get(declared) if isinstance(declared, str) else None:
        return size == -1 or span["min"] == size == span["max"]
    # a size of an output may follow from values
    return declared is None or size == declared or (size == -1 and is_output)
