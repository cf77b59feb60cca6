"""Write a changed graph: put right what hooks and libraries leave behind, and let the ONNX checker judge it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from onnx import ModelProto, NodeProto, ValueInfoProto, shape_inference

from buildsys.errors import CheckFailed, StageError
from buildsys.onnx_graph import all_nodes, check_file, load_model, save_model

_KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")


def write_checked(model: ModelProto, path: Path) -> ModelProto:
    """Write ``model`` to ``path`` with fresh shapes; return it as it lies there, large weights left outside.

    Shapes of inner tensors are inferred anew, since those from before may be wrong; only what operators outside ONNX
    make keeps them, as nothing else knows them. Opsets of domains that no node is of go, graphsurgeon leaves them.
    Raises: CheckFailed: the graph is not valid.
    """
    _forget_shapes(model)
    _forget_opsets(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_model(model, path)
    try:
        check_file(path, "the graph")
    except StageError as error:
        raise CheckFailed(error.problem, error.hint) from error
    written = load_model(path, external_data=False)
    inferred = shape_inference.infer_shapes(written, data_prop=True)
    save_model(inferred, path)
    return inferred


def restore_output_shapes(model: ModelProto, before: ModelProto, path: Path) -> None:
    """Give outputs that lost their shape, and whose shape cannot be inferred, the one from before."""
    known = {value.name: value for value in before.graph.output}
    lost = [value for value in model.graph.output if value.name in known and not _has_shape(value)]
    for value in lost:
        if value.type.tensor_type.elem_type in (0, known[value.name].type.tensor_type.elem_type):
            value.type.CopyFrom(known[value.name].type)
    if lost:
        save_model(model, path)


def _has_shape(value: ValueInfoProto) -> bool:
    return bool(value.type.tensor_type.HasField("shape"))


def _forget_shapes(model: ModelProto) -> None:
    functions = {(function.domain, function.name) for function in model.functions}
    foreign = {
        name
        for node in model.graph.node
        if node.domain not in _KNOWN_DOMAINS and (node.domain, node.op_type) not in functions
        for name in node.output
    }
    kept = [value for value in model.graph.value_info if value.name in foreign]
    copies = [ValueInfoProto.FromString(value.SerializeToString()) for value in kept]
    model.graph.ClearField("value_info")
    model.graph.value_info.extend(copies)


def _forget_opsets(model: ModelProto) -> None:
    used = {node.domain for node in _nodes(model)} | {function.domain for function in model.functions}
    kept = [entry for entry in model.opset_import if entry.domain in ("", "ai.onnx") or entry.domain in used]
    if len(kept) < len(model.opset_import):
        pairs = [(entry.domain, entry.version) for entry in kept]
        model.ClearField("opset_import")
        for domain, version in pairs:
            model.opset_import.add(domain=domain, version=version)


def _nodes(model: ModelProto) -> Iterator[NodeProto]:
    yield from all_nodes(model.graph)
    for function in model.functions:
        yield from function.node
