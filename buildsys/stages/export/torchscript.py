"""The exporter that traces: torch.onnx.export(dynamo=False)."""

from __future__ import annotations

import importlib
import io
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import torch

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import ONE_MESSAGE_LIMIT, load_model
from buildsys.stages.export.local_functions import settle_functions
from buildsys.stages.export.request import ExportRequest

_PASSED_ON = (
    "export_params",
    "keep_initializers_as_inputs",
    "do_constant_folding",
    "custom_opsets",
    "autograd_inlining",
)
_DEFERS_WEIGHTS, _STRIPS_DOC_STRINGS = (
    3,
    5,
)  # their places among the arguments of torch._C.Graph._export_onnx
_TRAINING_MODES = {"eval": "EVAL", "preserve": "PRESERVE", "train": "TRAINING"}


def export_torchscript(request: ExportRequest) -> tuple[onnx.ModelProto, dict[str, bytes]]:
    """Trace and translate; returns the model, and the contents of the initializers that are not in it."""
    if request.weight_bytes < ONE_MESSAGE_LIMIT:
        stream, weights = io.BytesIO(), dict[str, bytes]()
        _export(request, stream, weights)
        model = onnx.load_model_from_string(stream.getvalue())
        for tensor in model.graph.initializer:
            if tensor.name in weights:
                tensor.ClearField("raw_data")
                tensor.data_location = onnx.TensorProto.EXTERNAL
        return _settled(model, request), weights
    # above 2 GB the exporter leaves one file per tensor beside the model: they are gathered later
    with tempfile.TemporaryDirectory(dir=request.path.parent) as folder:
        file = Path(folder) / request.path.name
        _export(request, str(file), None)
        return _settled(load_model(file), request), {}


def _export(
    request: ExportRequest, file: str | io.BytesIO, weights: dict[str, bytes] | None
) -> None:
    dynamic = {**request.dynamic_inputs, **request.dynamic_outputs}
    with _translating_as_wanted(weights):
        torch.onnx.export(
            request.module,
            request.arguments,
            file,  # type: ignore[arg-type]  # a stream as well, for this exporter
            dynamo=False,
            opset_version=request.options["opset"],
            input_names=list(request.input_names),
            output_names=list(request.output_names),
            dynamic_axes={name: dict(axes) for name, axes in dynamic.items()},
            verbose=bool(request.options["verbose"]),
            **_translated(request),
            **request.given(*_PASSED_ON),
        )


@contextmanager
def _translating_as_wanted(weights: dict[str, bytes] | None) -> Iterator[None]:
    """Change what torch asks of its own translation into ONNX, in two things that it gives nobody to choose.

    Each node's doc string says where it comes from, as with ``verbose``, which would print the whole graph as well.
    And weights come beside the graph, into ``weights``: as a part of it they are copied four times until they can
    be written. Where torch has no such place any more, no line is known, and weights stay in the graph.
    """
    kind: Any = torch._C.Graph
    original = getattr(kind, "_export_onnx", None)
    if original is None:
        yield
        return

    def export_onnx(graph: Any, *arguments: Any) -> Any:
        wanted = list(arguments)
        if len(wanted) > _STRIPS_DOC_STRINGS and wanted[_STRIPS_DOC_STRINGS] is True:
            wanted[_STRIPS_DOC_STRINGS] = False
        if (
            weights is None
            or len(wanted) <= _DEFERS_WEIGHTS
            or wanted[_DEFERS_WEIGHTS] is not False
        ):
            return original(graph, *wanted)
        wanted[_DEFERS_WEIGHTS] = True
        proto, contents, *rest = original(graph, *wanted)
        weights.update(contents)
        return proto, {}, *rest

    kind._export_onnx = export_onnx
    try:
        yield
    finally:
        kind._export_onnx = original


def _settled(model: onnx.ModelProto, request: ExportRequest) -> onnx.ModelProto:
    """Put right what the exporter does to modules that become functions."""
    if request.options["export_modules_as_functions"]:
        settle_functions(model)
        _restore_output_names(model, request)
    return model


def _restore_output_names(model: onnx.ModelProto, request: ExportRequest) -> None:
    """Give outputs the names back that they lose where a function makes them."""
    found = [value.name for value in model.graph.output]
    if len(found) != len(request.output_names):
        return
    names = {old: new for old, new in zip(found, request.output_names, strict=True) if old != new}
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in model.graph.output:
        value.name = names.get(value.name, value.name)


def _translated(request: ExportRequest) -> dict[str, Any]:
    """Return the options whose values in torch are not plain data."""
    given = request.given("training", "operator_export_type", "export_modules_as_functions")
    if "training" in given:
        given["training"] = getattr(torch.onnx.TrainingMode, _TRAINING_MODES[given["training"]])
    if "operator_export_type" in given:
        given["operator_export_type"] = getattr(
            torch.onnx.OperatorExportTypes, given["operator_export_type"].upper()
        )
    if isinstance(given.get("export_modules_as_functions"), list | tuple):
        given["export_modules_as_functions"] = {
            _module_class(p) for p in given["export_modules_as_functions"]
        }
    return given


def _module_class(path: str) -> type[torch.nn.Module]:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise StageError(
            f"export.export_modules_as_functions: there is no class {path} ({error})"
        ) from error
    if not (isinstance(found, type) and issubclass(found, torch.nn.Module)):
        raise StageError(
            f"export.export_modules_as_functions: {path} is not a subclass of torch.nn.Module"
        )
    return found
