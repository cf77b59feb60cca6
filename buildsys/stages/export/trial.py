"""Trial of a remedy: an export with other options, in a child.

A process exports once (see ``registrations``), so a trial is a fork of the process that failed. It
computes with one thread: the thread pools of torch do not survive a fork.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import torch

from buildsys.errors import BuildsysError
from buildsys.models.user_code import describe_exception
from buildsys.onnx_graphs.onnx_file import opsets
from buildsys.stages.export.dynamo import export_dynamo
from buildsys.stages.export.request import ExportRequest
from buildsys.stages.export.torchscript import export_torchscript

_LIMIT_S = 60.0
_LARGEST_BYTES = 1 << 30  # of weights: a fork copies what the export changes


def try_export(request: ExportRequest, changes: Mapping[str, Any], project: Path) -> str | None:
    """Return the problem of an export with changed options. "": it works, None: unknown."""
    if request.weight_bytes > _LARGEST_BYTES:
        return None
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, _problem(request, changes, project).encode()[:4096] or b"\0")
        finally:
            os._exit(0)  # no cleanup of what belongs to the parent
    os.close(writer)
    try:
        is_ready = bool(select.select([reader], [], [], _LIMIT_S)[0])
        answer = os.read(reader, 4096).decode(errors="replace") if is_ready else ""
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if not answer:  # too slow, or it crashed
        return "it ends with a crash" if is_ready else None
    return answer.strip("\0")


def _problem(request: ExportRequest, changes: Mapping[str, Any], project: Path) -> str:
    torch.set_num_threads(1)
    options = {**request.options, **changes}
    export = export_dynamo if options["exporter"] == "dynamo" else export_torchscript
    with TemporaryDirectory(dir=request.path.parent) as folder:
        changed = replace(request, options=options, path=Path(folder) / "model.onnx")
        try:
            model, weights = export(changed)
            if opsets(model).get("ai.onnx") != options["opset"]:
                return f"it writes opset {opsets(model).get('ai.onnx')}"
            if not weights:
                onnx.checker.check_model(model, full_check=True)
        except BuildsysError as error:
            return str(error).splitlines()[0]
        except Exception as error:  # exporters raise any class
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            return describe_exception(cause, project)
    return ""
