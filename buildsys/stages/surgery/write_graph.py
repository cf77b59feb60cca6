"""Changed graphs, cleaned up, written and checked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from onnx import ModelProto, ValueInfoProto, shape_inference

from buildsys.errors import CheckFailed, StageError
from buildsys.onnx_graphs.onnx_file import all_nodes, check_file, load_model, save_model

_ONNX_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")


def write_checked(model: ModelProto, path: Path, before: Sequence[ValueInfoProto]) -> ModelProto:
    """Write ``model`` with fresh shapes; return it without external data.

    Inner shapes are inferred again, as old ones may be wrong; only outputs of custom operators keep
    theirs, which cannot be inferred. An output without a shape gets the one it had ``before``.
    Opsets of unused domains are removed: graphsurgeon leaves them.
    Raises: CheckFailed: the graph is invalid.
    """
    _drop_shapes(model)
    _drop_unused_opsets(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_model(model, path)
    written = load_model(path, external_data=False)
    # the checker reports the reason of a failure
    with suppress(shape_inference.InferenceError, ValueError, RuntimeError):
        written = shape_inference.infer_shapes(written, data_prop=True)
    known = {value.name: value.type for value in before}
    for value in written.graph.output:
        if value.name in known and not value.type.tensor_type.HasField("shape"):
            old = known[value.name]
            if value.type.tensor_type.elem_type in (0, old.tensor_type.elem_type):
                value.type.CopyFrom(old)
    save_model(written, path)
    try:
        check_file(path, "the graph")
    except StageError as error:
        raise CheckFailed(error.problem, error.hint) from error
    return written


def _drop_shapes(model: ModelProto) -> None:
    functions = {(function.domain, function.name) for function in model.functions}
    custom = {
        name
        for node in model.graph.node
        if node.domain not in _ONNX_DOMAINS and (node.domain, node.op_type) not in functions
        for name in node.output
    }
    kept = [value for value in model.graph.value_info if value.name in custom]
    copies = [ValueInfoProto.FromString(value.SerializeToString()) for value in kept]
    model.graph.ClearField("value_info")
    model.graph.value_info.extend(copies)


def _drop_unused_opsets(model: ModelProto) -> None:
    used = {"", "ai.onnx"}
    used |= {node.domain for node in all_nodes(model.graph)}
    for function in model.functions:
        used |= {function.domain, *(node.domain for node in function.node)}
    pairs = [(entry.domain, entry.version) for entry in model.opset_import]
    model.ClearField("opset_import")
    for domain, version in pairs:
        if domain in used:
            model.opset_import.add(domain=domain, version=version)
