"""Both exporters of torch.onnx.export: TorchScript, based on tracing, and dynamo."""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pydoc import locate
from typing import Any

import onnx
import torch

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import (
    INLINE_LIMIT,
    ONE_MESSAGE_LIMIT,
    load_model,
)
from buildsys.stages.export.request import ExportRequest, check_guards, recorded_guards

_TORCHSCRIPT_OPTIONS = (
    "export_params", "keep_initializers_as_inputs", "do_constant_folding", "custom_opsets",
    "autograd_inlining",
)  # fmt: skip
_DYNAMO_OPTIONS = (
    "export_params", "keep_initializers_as_inputs", "optimize", "verify", "report", "profile",
    "dump_exported_program",
)  # fmt: skip
_TIME_STAMP = re.compile(r"_\d{4}-\d{2}-\d{2}_\d{2}-\d{2}-\d{2}-\d+")
_STRIPS_DOC_STRINGS = 5  # position among the arguments of torch._C.Graph._export_onnx
_TRAINING_MODES = {"eval": "EVAL", "preserve": "PRESERVE", "train": "TRAINING"}
_FUNCTIONS = "export_modules_as_functions"


def export_torchscript(request: ExportRequest) -> onnx.ModelProto:
    """Export by tracing."""
    if request.weight_bytes < ONE_MESSAGE_LIMIT:
        stream = io.BytesIO()
        _trace(request, stream)
        model = onnx.load_model_from_string(stream.getvalue())
    else:  # above 2 GB the exporter writes one file per tensor next to the model
        with tempfile.TemporaryDirectory(dir=request.path.parent) as folder:
            file = Path(folder) / request.path.name
            _trace(request, str(file))
            model = load_model(file)
    if request.options[_FUNCTIONS]:  # an output computed by a function loses its name
        written = [value.name for value in model.graph.output]
        names = dict(zip(written, request.output_names, strict=False))
        for node in model.graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]
        for value in model.graph.output:
            value.name = names.get(value.name, value.name)
    return model


def _trace(request: ExportRequest, file: str | io.BytesIO) -> None:
    dynamic = {**request.dynamic_inputs, **request.dynamic_outputs}
    options = request.set_options("training", "operator_export_type", _FUNCTIONS)
    if "training" in options:
        options["training"] = getattr(torch.onnx.TrainingMode, _TRAINING_MODES[options["training"]])
    if "operator_export_type" in options:
        name = options["operator_export_type"].upper()
        options["operator_export_type"] = getattr(torch.onnx.OperatorExportTypes, name)
    if isinstance(options.get(_FUNCTIONS), list | tuple):
        options[_FUNCTIONS] = set(map(_module_class, options[_FUNCTIONS]))
    with _doc_strings_kept():
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
            **options,
            **request.set_options(*_TORCHSCRIPT_OPTIONS),
        )


@contextmanager
def _doc_strings_kept() -> Iterator[None]:
    """Keep the doc strings of nodes, which hold their origins."""
    kind: Any = torch._C.Graph
    original = kind._export_onnx

    def export_onnx(graph: Any, *arguments: Any) -> Any:
        changed = list(arguments)
        changed[_STRIPS_DOC_STRINGS : _STRIPS_DOC_STRINGS + 1] = [False]
        return original(graph, *changed)

    kind._export_onnx = export_onnx
    try:
        yield
    finally:
        kind._export_onnx = original


def _module_class(path: str) -> type[torch.nn.Module]:
    target = locate(path)
    if isinstance(target, type) and issubclass(target, torch.nn.Module):
        return target
    raise StageError(
        f"export.{_FUNCTIONS}: {path} is not a subclass of torch.nn.Module",
        "write the path of a class, such as torch.nn.ReLU",
    )


def export_dynamo(request: ExportRequest) -> onnx.ModelProto:
    """Export by torch.export.

    The exporter's reports are moved to the model's folder.
    Raises: CheckFailed: the program is wrong at sizes within ``dims``.
    """
    with tempfile.TemporaryDirectory(dir=request.path.parent) as folder:
        file = Path(folder) / request.path.name
        with recorded_guards() as guards:
            exported = torch.onnx.export(
                request.module,
                request.arguments,
                str(file),
                dynamo=True,
                opset_version=request.options["opset"],
                input_names=list(request.input_names),
                output_names=list(request.output_names),
                dynamic_shapes=request.dynamic_shapes(str),
                external_data=request.weight_bytes >= INLINE_LIMIT,  # this file is temporary
                verbose=bool(request.options["verbose"]),
                artifacts_dir=folder,
                custom_translation_table=dict(request.translations) or None,
                **request.set_options(*_DYNAMO_OPTIONS),
            )
        if exported is not None and exported.exported_program is not None:
            check_guards(exported.exported_program, guards, request)
        for report in Path(folder).glob("onnx_export_*"):
            report.rename(request.path.parent / _TIME_STAMP.sub("", report.name))
        return load_model(file)
