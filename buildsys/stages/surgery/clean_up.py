"""Write a changed graph: put right what hooks and libraries leave behind, and let the ONNX checker judge it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from onnx import ModelProto, NodeProto, ValueInfoProto, shape_inference

from buildsys.errors import CheckFailed, StageError
from buildsys.onnx_graphs.onnx_file import all_nodes, check_file, load_model, save_model

_KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")


def write_checked(model: ModelProto, path: Path, before: Sequence[ValueInfoProto]) -> ModelProto:
    """Write ``model`` to ``path`` with fresh shapes; return it as it lies there, large weights left outside.

    Shapes of inner tensors are inferred anew, since those from before may be wrong; only what operators outside ONNX
    make keeps them, as nothing else knows them. An output that lost its shape, which cannot be inferred either, gets
    the one that it had ``before``. Opsets of domains that no node is of go: graphsurgeon leaves them.
    Raises: CheckFailed: the graph is not valid.
    """
    _forget_shapes(model)
    _forget_opsets(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_model(model, path)
    written = _with_shapes(load_model(path, external_data=False))
    _restore_outputs(written, before)
    save_model(written, path)
    try:
        check_file(path, "the graph")
    except StageError as error:
        raise CheckFailed(error.problem, error.hint) from error
    return written


def _with_shapes(model: ModelProto) -> ModelProto:
    try:
        return shape_inference.infer_shapes(model, data_prop=True)
    except (shape_inference.InferenceError, ValueError, RuntimeError):
        return model  # the checker says what is wrong


def _restore_outputs(model: ModelProto, before: Sequence[ValueInfoProto]) -> None:
    known = {value.name: value.type for value in before}
    for value in model.graph.output:
        if value.name not in known or _has_shape(value):
            continue
        if value.type.tensor_type.elem_type in (0, known[value.name].tensor_type.elem_type):
            value.type.CopyFrom(known[value.name])


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
    used = {node.domain for node in _nodes(model)} | {
        function.domain for function in model.functions
    }
    kept = [
        entry
        for entry in model.opset_import
        if entry.domain in ("", "ai.onnx") or entry.domain in used
    ]
    if len(kept) < len(model.opset_import):
        pairs = [(entry.domain, entry.version) for entry in kept]
        model.ClearField("opset_import")
        for domain, version in pairs:
            model.opset_import.add(domain=domain, version=version)


def _nodes(model: ModelProto) -> Iterator[NodeProto]:
    yield from all_nodes(model.graph)
    for function in model.functions:
        yield from function.node
