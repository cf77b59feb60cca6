"""The dynamo exporter: torch.onnx.export(dynamo=True), based on torch.export."""

from __future__ import annotations

import inspect
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

import onnx
import torch

from buildsys.errors import CheckFailed
from buildsys.onnx_graphs.onnx_file import INLINE_LIMIT, load_model
from buildsys.stages.export.guards import check_guards, recorded_guards
from buildsys.stages.export.request import ExportRequest, collect_warnings

_PLAIN_OPTIONS = (
    "export_params", "keep_initializers_as_inputs", "optimize", "verify", "report", "profile",
    "dump_exported_program",
)  # fmt: skip
_TIME_STAMP = re.compile(r"_\d{4}-\d{2}-\d{2}_\d{2}-\d{2}-\d{2}-\d+")
_MISMATCHES = (
    "has a large absolute difference",
    "has a large relative difference",
    "fails ONNX checker",
)


def export_dynamo(request: ExportRequest) -> tuple[onnx.ModelProto, dict[str, bytes]]:
    """Return the exported model; no weights are outside it.

    The exporter's reports are moved to the model's folder.
    Raises: CheckFailed: ``verify`` is set and found a difference, or the program is wrong at sizes
    within ``dims``.
    """
    messages: list[str] = []
    dynamic_shapes: dict[str, Any] | None = None
    if request.dynamic_inputs:  # by parameter of forward, as torch.export expects
        axes = [dict(request.dynamic_inputs.get(name, {})) for name in request.input_names]
        signature = inspect.signature(request.module.forward)
        dynamic_shapes = dict(signature.bind(*axes).arguments)
    with tempfile.TemporaryDirectory(dir=request.path.parent) as name:
        folder = Path(name)
        file = folder / request.path.name
        with collect_warnings(messages, request.project), recorded_guards() as guards:
            exported = torch.onnx.export(
                request.module,
                request.arguments,
                str(file),
                dynamo=True,
                opset_version=request.options["opset"],
                input_names=list(request.input_names),
                output_names=list(request.output_names),
                dynamic_shapes=dynamic_shapes,
                external_data=request.weight_bytes >= INLINE_LIMIT,  # of this temporary file only
                verbose=bool(request.options["verbose"]),
                artifacts_dir=str(folder),
                custom_translation_table=dict(request.translations) or None,
                **request.given(*_PLAIN_OPTIONS),
            )
        for report in folder.glob("onnx_export_*"):
            report.rename(request.path.parent / _TIME_STAMP.sub("", report.name))
        mismatches = [line for line in messages if any(sign in line for sign in _MISMATCHES)]
        if request.options["verify"] and mismatches:
            hint = "validate compares all sizes; set export.verify: false to see its result"
            raise CheckFailed(f"export.verify: {mismatches[0]}", hint)
        if exported is not None and exported.exported_program is not None:
            check_guards(exported.exported_program, guards, request)
        for message in messages:  # collected to find mismatches; the caller reports them
            warnings.warn(message, stacklevel=2)
        return load_model(file), {}
