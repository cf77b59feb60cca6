"""Graphs and ONNX Runtime: its operators, refused nodes, facts of a saved graph, slow nodes."""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from buildsys.backends.interface import Figures, Options, UnsupportedNode
from buildsys.backends.layer_figures import int8_layers, is_preprocessing, shares, slowest
from buildsys.backends.onnxruntime.execution_providers import provider_name
from buildsys.errors import CheckFailed
from buildsys.onnx_graphs.graph_reader import read_graph
from buildsys.onnx_graphs.onnx_file import dtype_name, ports, subgraphs
from buildsys.onnx_graphs.tensor_types import element_types

_DOMAINS = {"ai.onnx": ""}
_CRASHES_LIST = "OpenVINOExecutionProvider"  # built in (onnxruntime-openvino 1.24.1)
_OPEN = 2**31 - 1  # a kernel for this version until a newer one is registered


class Operator(NamedTuple):
    """An operator by its domain, "" for ONNX's own, and its name."""

    domain: str
    name: str


@lru_cache(maxsize=1)
def _kernel_definitions() -> Mapping[Operator, list[Any]]:
    """Collect the CPU provider's kernels by operator; none if they are not listed."""
    list_kernels = getattr(ort_state, "get_all_opkernel_def", None)
    if list_kernels is None or _CRASHES_LIST in ort_state.get_available_providers():
        return {}
    definitions: dict[Operator, list[Any]] = {}
    for kernel in list_kernels():
        if kernel.provider == "CPUExecutionProvider":
            operator = Operator(_DOMAINS.get(kernel.domain, kernel.domain), kernel.op_name)
            definitions.setdefault(operator, []).append(kernel)
    return definitions


@lru_cache(maxsize=1)
def schema_versions() -> Mapping[Operator, tuple[int, ...]]:
    """Return the known opsets with a new version of each operator."""
    opsets: dict[Operator, set[int]] = {}
    for schema in ort_state.get_all_operator_schema():
        operator = Operator(_DOMAINS.get(schema.domain, schema.domain), schema.name)
        opsets.setdefault(operator, set()).add(int(schema.since_version))
    return {operator: tuple(sorted(versions)) for operator, versions in opsets.items()}


def kernel_types(operator: Operator, since_version: int) -> tuple[str, ...]:
    """List the implemented types of the first type parameter, e.g. float, double.

    A kernel for an open range of versions is for the version that it begins with.
    """
    types: set[str] = set()
    for kernel in _kernel_definitions().get(operator, ()):
        first, last = kernel.version_range
        if first == since_version or (last != _OPEN and first <= since_version <= last):
            types.update(next(iter(kernel.type_constraints.values()), ("all",)))
    return tuple(sorted(name.removeprefix("tensor(").removesuffix(")") for name in types))


_NO_KERNEL = re.compile(r"Could not find an implementation for (\w+)\(\d+\) node with name '(.*?)'")


def refused_nodes(
    model_file: Path, provided: Collection[str], refusal: str
) -> list[UnsupportedNode]:
    """List all nodes with unknown operators, else the one without a kernel in ``refusal``.

    ``provided`` are operators of custom libraries, as DOMAIN::NAME; ``refusal`` is ONNX Runtime's
    text. A file that is not a model has no nodes.
    """
    try:
        model = onnx.load(str(model_file), load_external_data=False)
    except (OSError, DecodeError):
        return []
    implemented = {f"{function.domain}::{function.name}" for function in model.functions}
    implemented |= {*provided}
    unknown, without_kernel = [], []
    groups = [
        ((), model.graph.node),
        *(((function.name,), function.node) for function in model.functions),
    ]
    kernel = _NO_KERNEL.search(refusal)
    for inside, nodes in groups:
        for index, node in _nodes(nodes):
            operator = Operator(_DOMAINS.get(node.domain, node.domain), node.op_type)
            output = next(iter(node.output), "")
            refuse = partial(
                UnsupportedNode, index, node.name, node.op_type, functions=inside, output=output
            )
            if kernel and (node.op_type, node.name) == (kernel[1], kernel[2]):
                reason = "ONNX Runtime has no CPU kernel for it with its types"
                without_kernel.append(refuse(reason))
            is_known = operator in schema_versions()
            if not is_known and f"{node.domain}::{node.op_type}" not in implemented:
                domain = operator.domain or "ai.onnx"
                reason = f"not an operator of the domain {domain} in this ONNX Runtime"
                unknown.append(refuse(f"{reason}, and no function of the model"))
    return unknown or without_kernel


def _nodes(nodes: Any) -> Iterator[tuple[int, Any]]:
    """Yield nodes of all levels with their outermost node's index."""
    for index, node in enumerate(nodes):
        yield index, node
        for body in subgraphs(node):
            yield from ((index, inner) for _, inner in _nodes(body.node))


# convolutions and matrix products, by what they compute with
_INT8_LAYERS = frozenset((
    "ConvInteger", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat", "QAttention",
    "QGemm", "QLinearConv", "QLinearMatMul",
))  # fmt: skip
_FLOAT_LAYERS = frozenset((
    "Attention", "Conv", "ConvTranspose", "FusedConv", "FusedGemm", "FusedMatMul", "Gemm", "MatMul",
    "NhwcFusedConv",
))  # fmt: skip


def graph_facts(model_file: Path, options: Options) -> Figures:
    """Collect a graph's tensors, operators, and shares of types."""
    model = read_graph(model_file)
    nodes = Counter(
        f"{node.domain}:{node.op_type}" if node.domain else node.op_type
        for node in model.graph.node
    )
    weights: Counter[str] = Counter()
    for initializer in model.graph.initializer:
        itemsize = int(helper.tensor_dtype_to_np_dtype(initializer.data_type).itemsize)
        weights[_type_name(initializer.data_type)] += math.prod(initializer.dims) * itemsize
    # ONNX cannot infer types across ONNX Runtime's own operators, which count as their input's type
    types, by_type, kinds = element_types(model), Counter[str](), list[str]()
    for node in model.graph.node:
        input_types = (types[name] for name in node.input if types.get(name))
        dtype = types.get(node.output[0]) or next(input_types, 0)
        types.update({name: dtype for name in node.output if name not in types})
        if not is_preprocessing(node.output):
            by_type[_type_name(dtype)] += 1
            kinds.append(node.op_type)
    layers = [kind for kind in kinds if kind in _INT8_LAYERS | _FLOAT_LAYERS]
    inputs, outputs = ports(model)
    for port in (*inputs, *outputs):
        port["shape"] = ["?" if size is None else size for size in port["shape"] or ()]
    return {
        "inputs": inputs,
        "outputs": outputs,
        "layers": dict(sorted(nodes.items())),
        "precision_shares": {"layers": shares(by_type), "weights": shares(weights)},
        **int8_layers((kind in _INT8_LAYERS for kind in layers), options),
    }


def _type_name(elem_type: int) -> str:
    return "unknown" if elem_type <= TensorProto.UNDEFINED else dtype_name(elem_type)


_KERNELS = {
    "int4": ("MatMulNBits",),
    "dynamic": (
        "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "ConvInteger",
        "QAttention",
    ),
}  # fmt: skip


def check_kernels(engine: Path, options: Options) -> None:
    """Check that the optimized graph still computes with quantized weights."""
    is_dynamic = options.get("quantization") == "dynamic"
    kernels = _KERNELS.get("dynamic" if is_dynamic else str(options["precision"]))
    if kernels is None:
        return
    nodes = read_graph(engine).graph.node
    if not any(node.op_type in kernels for node in nodes):
        raise CheckFailed(
            f"the engine was requested in {options['precision']}, but none of its nodes is a"
            f" {' or '.join(kernels)}",
            "lower its graph_optimization_level: ONNX Runtime has undone the quantization",
        )


_CAST = "InsertedPrecisionFreeCast_"  # prefix of the fp32 copy of a tensor
_BLOCKED = "_nchwc"  # suffix of a blocked convolution's name
_REORDERS = ("ReorderInput", "ReorderOutput")  # they reorder memory and compute nothing
_MOST_NODES = 50  # per node


def source_nodes(source: Any, engine: Any) -> dict[str, list[str]]:
    """Find the nodes of ``source`` that each changed node of ``engine`` computes.

    ONNX Runtime keeps the names of nodes that it does not change, and of the tensors that a fused
    node returns; a convolution for a blocked layout (NCHWc) is named after its tensor. Other nodes
    belong to the nodes next to them, and nodes inside subgraphs are left out.
    """
    nodes = list(enumerate(source.node))
    held = {value.name for value in (*engine.input, *engine.initializer)}
    same = {(node.name, node.op_type): place for place, node in enumerate(engine.node) if node.name}
    ends: dict[str, int] = {}  # tensor of the source -> place in the engine
    for place, node in enumerate(engine.node):
        if node.op_type not in _REORDERS:
            outputs = [name.removeprefix(_CAST) for name in node.output]
            ends |= dict.fromkeys([*outputs, node.name.removesuffix(_BLOCKED)], place)
    owners: dict[int, int] = {}  # number in the source -> place in the engine
    readers: dict[str, int] = {}
    for n, node in reversed(nodes):
        places = [same.get((node.name, node.op_type))]
        places += [table.get(name) for table in (ends, readers) for name in node.output]
        owner = next((place for place in places if place is not None), None)
        if owner is not None and not held & {*node.output}:
            owners[n] = owner
            readers |= dict.fromkeys(node.input, owner)
    producers: dict[str, int] = {}
    for n, node in nodes:
        before = [producers[name] for name in node.input if name in producers]
        if before and not held & {*node.output}:
            owners.setdefault(n, max(before))
        if n in owners:
            producers |= dict.fromkeys(node.output, owners[n])
    origins: list[list[str]] = [[] for _ in engine.node]
    for n, node in nodes:
        if n in owners:
            origins[owners[n]].append(node.name or next(iter(node.output), ""))
    pairs = zip(engine.node, origins, strict=True)
    return {node.name: own[:_MOST_NODES] for node, own in pairs if node.name and own != [node.name]}


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
