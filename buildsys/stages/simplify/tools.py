"""The simplifiers onnxsim, without its metadata and random file names, and onnxslim."""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

from onnx import GraphProto, ModelProto, TensorProto, helper
from onnx.external_data_helper import load_external_data_for_model

from buildsys.errors import StageError, Unavailable
from buildsys.manifest.exports import KEEP_GRAPH
from buildsys.onnx_graphs.onnx_file import (
    all_nodes,
    data_path,
    load_model,
    operator_name,
    outside_bytes,
    save_model,
    subgraphs,
    tool_errors,
)
from buildsys.onnx_graphs.quantizers import QUANTIZE_PAIR
from buildsys.onnx_graphs.tensor_types import FreshNames
from buildsys.stages.common.node_patterns import matching_names

_MAX_THRESHOLD = 2**31 - 10000  # onnxsim refuses larger ones


def simplify_by_onnxsim(
    source: Path, target: Path, spec: Mapping[str, Any], initializers_are_inputs: bool
) -> None:
    """Write the simplified graph of ``source`` to ``target``.

    Raises: StageError: onnxsim refuses the graph or an option.
    """
    options: dict[str, Any] = {
        "skip_constant_folding": not spec["constant_folding"],
        "skip_shape_inference": not spec["shape_inference"],
        "perform_optimization": spec["fuse"],
        "mutable_initializer": initializers_are_inputs,
    }
    onnxsim = _import_onnxsim()
    native, what = onnxsim.onnxsim_cpp2py_export, "pass of onnxsim"
    # first, as it registers passes of both lists; onnxsim 0.7 has no further ones
    further: list[str] = getattr(native, "_list_other_optimizers", list)()
    passes = native._list_optimizers()
    skipped = matching_names("simplify.skip_passes", spec["skip_passes"], passes, what)
    extra = matching_names("simplify.extra_passes", spec["extra_passes"], further, what)
    options["skipped_optimizers"] = skipped
    if extra:
        options["extra_optimizers"] = extra
    threshold = spec["tensor_size_threshold"]
    if threshold is not None:
        options["tensor_size_threshold"] = f"{min(threshold, _MAX_THRESHOLD)}B"
    os.environ.setdefault("ONNXSIM_CERTIFY", "0")  # no proof: the stage compares outputs
    # weights inside a graph would be in memory once more, in addition to the tool's copies
    is_external = data_path(source).exists()
    skeleton = load_model(source, external_data=False) if is_external else ModelProto()
    order = {tensor.name: index for index, tensor in enumerate(skeleton.graph.initializer)}
    offloaded = [] if initializers_are_inputs else offload_weights(skeleton)
    graph: str | ModelProto = str(source)
    if offloaded:
        load_external_data_for_model(skeleton, str(source.parent))
        graph = skeleton
    with tool_errors("onnxsim cannot simplify the graph", changes=KEEP_GRAPH):
        model: ModelProto = onnxsim.simplify(graph, **options)[0]
    others = [prop for prop in model.metadata_props if not prop.key.startswith("onnxsim.")]
    del model.metadata_props[:]
    model.metadata_props.extend(others)
    restore_weights(model, offloaded)
    unshare_zero_points(model)
    # in the same order, the weights file is identical unless weights changed, and stored once
    model.graph.initializer.sort(key=lambda tensor: order.get(tensor.name, len(order)))
    save_model(model, target, weights_of=source)


def _import_onnxsim() -> ModuleType:
    """Import onnxsim without torch: 0.5 s instead of 1.6 s."""
    hidden = "torch" not in sys.modules
    if hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        import onnxsim
    finally:
        if hidden:
            del sys.modules["torch"]
    module: ModuleType = onnxsim
    return module


def simplify_by_onnxslim(
    source: Path, target: Path, spec: Mapping[str, Any], initializers_are_inputs: bool
) -> None:
    """Write the simplified graph of ``source`` to ``target``.

    Raises: Unavailable: onnxslim is not installed. StageError: it refuses the graph.
    """
    if initializers_are_inputs:
        raise StageError("onnxslim cannot keep initializers that are inputs", changes=KEEP_GRAPH)
    try:
        import onnxslim
        from onnxslim.core.pattern.registry import DEFAULT_FUSION_PATTERNS
    except ImportError as error:
        raise Unavailable("onnxslim is not installed", "pip install 'buildsys[slim]'") from error
    skipped = [] if spec["constant_folding"] else ["constant_folding"]
    skipped += [] if spec["fuse"] else ["graph_fusion"]
    patterns, names = spec["skip_passes"], [*DEFAULT_FUSION_PATTERNS]
    fusions = matching_names("simplify.skip_passes", patterns, names, "fusion of onnxslim")
    model = load_model(source)
    with tool_errors("onnxslim cannot simplify the graph", changes=KEEP_GRAPH):
        slimmed = onnxslim.slim(
            model,
            no_shape_infer=not spec["shape_inference"],
            skip_optimizations=skipped or None,
            skip_fusion_patterns=fusions or None,
            size_threshold=spec["tensor_size_threshold"],
        )
    unshare_zero_points(slimmed)
    save_model(slimmed, target)


def unshare_zero_points(model: ModelProto) -> None:
    """Give each quantizer its own zero point again.

    ONNX Runtime (1.32) otherwise cannot optimize the graph on processors without VNNI, where it
    replaces signed weights and their zero points.
    """
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    fresh, used = FreshNames(model.graph), set[str]()
    for node in model.graph.node:
        name = node.input[2] if node.op_type in QUANTIZE_PAIR and len(node.input) > 2 else ""
        if name in used:
            node.input[2] = fresh.new(name)
            model.graph.initializer.add().CopyFrom(stored[name])
            model.graph.initializer[-1].name = node.input[2]
        used |= {name} & stored.keys()


_LARGE_BYTES = 1 << 20
# Operator -> index of its weight. Without MatMul: with a following Add it becomes a Gemm, and those
# with the same input are merged, both only if the weights are known.
_WEIGHT_INDEX = {"Conv": 1, "ConvTranspose": 1, "Gather": 0, "Gemm": 1}
_FOLDED = "BatchNormalization"  # is folded into preceding weights


def offload_weights(model: ModelProto) -> list[TensorProto]:
    """Turn large, unused-by-rewrites external weights into inputs; return their tensors.

    A simplifier copies a graph several times, weights included: vgg11's 507 MB become 1.2 GB of
    memory, with the same weights in the end. As a graph input a weight has no value to fold or
    rewrite, so the changes hold for every value, and the weight is copied from file to file.

    Nothing is offloaded if most of the weights would stay: the rest is copied once more for the
    tool.
    """
    if model.functions or any(node.op_type == _FOLDED for node in all_nodes(model.graph)):
        return []
    stored, names = model.graph.initializer, _plain_weights(model.graph)
    large = (t for t in stored if t.name in names and outside_bytes(t) >= _LARGE_BYTES)
    offloaded = [deepcopy(tensor) for tensor in large]
    if 2 * sum(map(outside_bytes, offloaded)) < sum(map(outside_bytes, stored)):
        return []
    _remove(stored, offloaded)
    model.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in offloaded
    )
    return offloaded


def restore_weights(model: ModelProto, offloaded: Sequence[TensorProto]) -> None:
    """Undo ``offload_weights`` in the simplified graph, without unused weights."""
    _remove(model.graph.input, offloaded)
    used = {name for node in all_nodes(model.graph) for name in node.input}
    model.graph.initializer.extend(tensor for tensor in offloaded if tensor.name in used)


def _remove(field: Any, tensors: Iterable[TensorProto]) -> None:
    names = {tensor.name for tensor in tensors}
    for index in reversed(range(len(field))):
        if field[index].name in names:
            del field[index]


def _plain_weights(graph: GraphProto) -> set[str]:
    """List initializers only used as weights of activations, never of constants."""
    varying = {value.name for value in graph.input} - {tensor.name for tensor in graph.initializer}
    uses, weight_uses = Counter[str](value.name for value in graph.output), Counter[str]()
    for node in graph.node:
        uses.update(node.input)
        for body in subgraphs(node):
            uses.update(value.name for value in body.output)
            uses.update(name for inner in all_nodes(body) for name in inner.input)
        if varying.intersection(node.input):
            varying.update(node.output)
            index = _WEIGHT_INDEX.get(operator_name(node))
            if index is not None and index < len(node.input):
                weight_uses[node.input[index]] += 1
    return {name for name, count in weight_uses.items() if uses[name] == count}
