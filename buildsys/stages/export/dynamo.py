"""The exporter that captures with torch.export: torch.onnx.export(dynamo=True)."""

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
from buildsys.stages.export.request import ExportRequest, collecting_warnings

_PASSED_ON = (
    "export_params", "keep_initializers_as_inputs", "optimize", "verify", "report", "profile", "dump_exported_program",
)  # fmt: skip
_TIME_STAMP = re.compile(r"_\d{4}-\d{2}-\d{2}_\d{2}-\d{2}-\d{2}-\d+")
_MISMATCH = (
    "has a large absolute difference",
    "has a large relative difference",
    "fails ONNX checker",
)


def export_dynamo(request: ExportRequest) -> tuple[onnx.ModelProto, dict[str, bytes]]:
    """Capture and translate; returns the model, and no contents of initializers, which are all in it.

    Reports of the exporter are left beside the model.
    Raises: CheckFailed: ``verify`` was asked for and did not hold.
    """
    said: list[str] = []
    with tempfile.TemporaryDirectory(dir=request.path.parent) as folder:
        file = Path(folder) / request.path.name
        with collecting_warnings(said):
            _export(request, file)
        _keep_reports(Path(folder), request)
        mismatches = [line for line in said if any(sign in line for sign in _MISMATCH)]
        if request.options["verify"] and mismatches:
            raise CheckFailed(f"export.verify: {mismatches[0]}")
        _warn_again(said)
        return load_model(file), {}


def _export(request: ExportRequest, file: Path) -> None:
    torch.onnx.export(
        request.module,
        request.arguments,
        str(file),
        dynamo=True,
        opset_version=request.options["opset"],
        input_names=list(request.input_names),
        output_names=list(request.output_names),
        dynamic_shapes=_dynamic_shapes(request),
        external_data=request.weight_bytes >= INLINE_LIMIT,  # only of this temporary file
        verbose=bool(request.options["verbose"]),
        artifacts_dir=str(file.parent),
        custom_translation_table=dict(request.translations) or None,
        **request.given(*_PASSED_ON),
    )


def _dynamic_shapes(request: ExportRequest) -> dict[str, Any] | None:
    """Return dimension names by the names of forward's own parameters, as torch.export wants them."""
    if not request.dynamic_inputs:
        return None
    axes = [dict(request.dynamic_inputs.get(name, {})) for name in request.input_names]
    bound = inspect.signature(request.module.forward).bind(*axes)
    return dict(bound.arguments)


def _keep_reports(folder: Path, request: ExportRequest) -> None:
    for artifact in folder.glob("onnx_export_*"):
        artifact.rename(request.path.parent / _TIME_STAMP.sub("", artifact.name))


def _warn_again(messages: list[str]) -> None:
    for message in messages:
        warnings.warn(message, stacklevel=3)
