"""The TorchScript exporter: torch.onnx.export(dynamo=False), based on tracing."""

from __future__ import annotations

import importlib
import io
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import torch

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import ONE_MESSAGE_LIMIT, all_nodes, load_model, subgraphs
from buildsys.stages.export.request import ExportRequest

_PLAIN_OPTIONS = (
    "export_params", "keep_initializers_as_inputs", "do_constant_folding", "custom_opsets",
    "autograd_inlining",
)  # fmt: skip
# positions among the arguments of torch._C.Graph._export_onnx
_DEFERS_WEIGHTS, _STRIPS_DOC_STRINGS = 3, 5
_TRAINING_MODES = {"eval": "EVAL", "preserve": "PRESERVE", "train": "TRAINING"}


def export_torchscript(request: ExportRequest) -> tuple[onnx.ModelProto, dict[str, bytes]]:
    """Return the exported model and the contents of initializers outside it."""
    weights: dict[str, bytes] = {}
    if request.weight_bytes < ONE_MESSAGE_LIMIT:
        stream = io.BytesIO()
        _export(request, stream, weights)
        model = onnx.load_model_from_string(stream.getvalue())
        for tensor in model.graph.initializer:
            if tensor.name in weights:
                tensor.ClearField("raw_data")
                tensor.data_location = onnx.TensorProto.EXTERNAL
    else:  # above 2 GB the exporter writes one file per tensor next to the model
        with tempfile.TemporaryDirectory(dir=request.path.parent) as folder:
            file = Path(folder) / request.path.name
            _export(request, str(file), None)
            model = load_model(file)
    if request.options["export_modules_as_functions"]:
        normalize_functions(model)
        _restore_output_names(model, request)
    return model, weights


def _export(
    request: ExportRequest, file: str | io.BytesIO, weights: dict[str, bytes] | None
) -> None:
    dynamic = {**request.dynamic_inputs, **request.dynamic_outputs}
    with _patched_serialization(weights):
        torch.onnx.export(
            request.module,
            request.arguments,
            file,  # type: ignore[arg-type]  # this exporter also takes a stream
            dynamo=False,
            opset_version=request.options["opset"],
            input_names=list(request.input_names),
            output_names=list(request.output_names),
            dynamic_axes={name: dict(axes) for name, axes in dynamic.items()},
            verbose=bool(request.options["verbose"]),
            **_converted_options(request),
            **request.given(*_PLAIN_OPTIONS),
        )


@contextmanager
def _patched_serialization(weights: dict[str, bytes] | None) -> Iterator[None]:
    """Change two hidden settings of torch's serialization of a graph.

    Doc strings hold each node's origin, as with ``verbose``, which would also print the graph. And
    weights go to ``weights``: inside the graph they would be copied four times. If a torch does not
    have this function, origins are unknown and weights stay in the graph.
    """
    kind: Any = torch._C.Graph
    original = getattr(kind, "_export_onnx", None)
    if original is None:
        yield
        return

    def export_onnx(graph: Any, *given: Any) -> Any:
        arguments = list(given)
        if arguments[_STRIPS_DOC_STRINGS : _STRIPS_DOC_STRINGS + 1] == [True]:
            arguments[_STRIPS_DOC_STRINGS] = False
        keeps_weights = arguments[_DEFERS_WEIGHTS : _DEFERS_WEIGHTS + 1] != [False]
        if weights is None or keeps_weights:
            return original(graph, *arguments)
        arguments[_DEFERS_WEIGHTS] = True
        proto, contents, *rest = original(graph, *arguments)
        weights.update(contents)
        return proto, {}, *rest

    kind._export_onnx = export_onnx
    try:
        yield
    finally:
        kind._export_onnx = original


def _restore_output_names(model: onnx.ModelProto, request: ExportRequest) -> None:
    """Restore the names of outputs computed by a function."""
    found = [value.name for value in model.graph.output]
    if len(found) != len(request.output_names):
        return
    names = {old: new for old, new in zip(found, request.output_names, strict=True) if old != new}
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in model.graph.output:
        value.name = names.get(value.name, value.name)


def _converted_options(request: ExportRequest) -> dict[str, Any]:
    """Return options as torch's enums and classes."""
    given = request.given("training", "operator_export_type", "export_modules_as_functions")
    if "training" in given:
        given["training"] = getattr(torch.onnx.TrainingMode, _TRAINING_MODES[given["training"]])
    if "operator_export_type" in given:
        name = given["operator_export_type"].upper()
        given["operator_export_type"] = getattr(torch.onnx.OperatorExportTypes, name)
    field = "export_modules_as_functions"
    if isinstance(given.get(field), list | tuple):
        classes = set()
        for path in given[field]:
            module, _, name = path.rpartition(".")
            try:
                found = getattr(importlib.import_module(module), name)
            except (ImportError, AttributeError, ValueError) as error:
                raise StageError(
                    f"export.{field}: there is no class {path} ({error})",
                    "check the path of the class",
                ) from error
            if not (isinstance(found, type) and issubclass(found, torch.nn.Module)):
                raise StageError(
                    f"export.{field}: {path} is not a subclass of torch.nn.Module",
                    "name a class of a module",
                )
            classes.add(found)
        given[field] = classes
    return given


def normalize_functions(model: onnx.ModelProto) -> None:
    """Sort local functions and all attributes; number names inside each function.

    The exporter writes them in the order of address hash tables, counts nodes across all functions,
    and names parameters after one of the calls.
    """
    _sort(model.functions, lambda function: (function.domain, function.name))
    for function in model.functions:
        names: dict[str, str] = {}
        function.input[:] = [
            names.setdefault(name, f"input_{index}") for index, name in enumerate(function.input)
        ]
        _rename_nodes(function.node, names)
        function.output[:] = [names.get(name, name) for name in function.output]
        for value in function.value_info:
            value.name = names.get(value.name, value.name)
        function.attribute[:] = sorted(function.attribute)
        _sort(function.attribute_proto, lambda attribute: attribute.name)
        _sort(function.opset_import, lambda entry: entry.domain)
    for nodes in (all_nodes(model.graph), *(function.node for function in model.functions)):
        for node in nodes:
            _sort(node.attribute, lambda attribute: attribute.name)


def _sort(field: Any, key: Any) -> None:
    # the field owns its messages, which del invalidates
    copies = [
        type(message).FromString(message.SerializeToString()) for message in sorted(field, key=key)
    ]
    del field[:]
    field.extend(copies)


def _rename_nodes(nodes: Iterable[onnx.NodeProto], names: dict[str, str], prefix: str = "") -> None:
    """Name nodes and outputs by position; ``names`` maps old to new."""
    for index, node in enumerate(nodes):
        node.name = f"{prefix}{node.op_type}_{index}"
        node.input[:] = [names.get(name, name) for name in node.input]
        for body in subgraphs(node):
            _rename_graph(body, dict(names), f"{node.name}/")
        for position, name in enumerate(node.output):
            if name:
                names[name] = f"{node.name}_{position}"
        node.output[:] = [names.get(name, name) for name in node.output]


def _rename_graph(graph: onnx.GraphProto, names: dict[str, str], prefix: str) -> None:
    for index, value in enumerate(graph.input):
        names[value.name] = value.name = f"{prefix}input_{index}"
    for index, tensor in enumerate(graph.initializer):
        names[tensor.name] = tensor.name = f"{prefix}constant_{index}"
    _rename_nodes(graph.node, names, prefix)
    for value in (*graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)
