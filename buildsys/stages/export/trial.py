"""Trial of a remedy: an export with other options, in a child.

A process exports once (see ``registrations``), so a trial is a fork of the process that failed. It
computes with one thread: the thread pools of torch do not survive a fork.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import torch

from buildsys.errors import BuildsysError
from buildsys.manifest.shape_cases import DimRange, format_dims
from buildsys.models.torch_model import from_torch, to_torch
from buildsys.models.user_code import describe_exception
from buildsys.onnx_graphs.onnx_file import opsets, save_model
from buildsys.stages.export.dynamo import export_dynamo
from buildsys.stages.export.guards import are_close, flat
from buildsys.stages.export.request import ExportRequest
from buildsys.stages.export.torchscript import export_torchscript

_LIMIT_S = 60.0
_LARGEST_BYTES = 1 << 30  # of weights: a fork copies what the export changes


def try_export(request: ExportRequest, changes: Mapping[str, Any], project: Path) -> str | None:
    """Return the problem of an export with changed options. "": it works, None: unknown."""
    on_gpu = any(tensor.is_cuda for tensor in request.arguments)  # CUDA does not survive a fork
    if on_gpu or request.weight_bytes > _LARGEST_BYTES:
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
            if export is export_torchscript:  # dynamo refuses sizes that forward fixes
                save_model(model, changed.path, weights_of=weights)
                return _size_problem(changed)
        except BuildsysError as error:
            return str(error).splitlines()[0]
        except Exception as error:  # exporters raise any class
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            return describe_exception(cause, project)
    return ""


def _size_problem(request: ExportRequest) -> str:
    """Return "" if a traced graph is right at other sizes than the traced ones.

    A graph that ONNX Runtime cannot load, or that differs at the traced sizes, may have another
    problem, which its checks report.
    """
    ranges = request.ranges
    sizes = {
        name: _other_size(size, ranges[name]) if name in ranges else size
        for name, size in request.example.items()
    }
    if sizes == request.example:
        return ""
    # by name: it decides only on a message, so it is in no key
    runtime = import_module("buildsys.backends.onnxruntime.session")
    try:
        inputs = request.inputs_at(sizes)
        graph = runtime.OrtGraph(request.path, runtime.session_options(intra_op_threads=1))
        if not _is_right(graph, request, request.arguments):
            return ""
    except BuildsysError:  # or the manifest's data has no such size
        return ""
    with suppress(BuildsysError):  # such as a view of a fixed size
        if _is_right(graph, request, inputs):
            return ""
    return f"its graph is right only for the traced sizes, {format_dims(request.example)}"


def _other_size(size: int, span: DimRange) -> int:
    """Return the next size of a range, or the one before the last."""
    step = span["multiple_of"] or 1
    return size + step if size + step <= (span["max"] or 0) else max(size - step, span["min"] or 0)


def _is_right(graph: Any, request: ExportRequest, inputs: tuple[torch.Tensor, ...]) -> bool:
    """Compare a graph with the network; one that refuses the inputs counts as right."""
    tensors = {
        name: from_torch(tensor) for name, tensor in zip(request.input_names, inputs, strict=True)
    }
    try:
        with torch.no_grad():
            expected = request.module(*(tensor.clone() for tensor in inputs))
    except Exception:  # of the user's code
        return True
    found = graph.run(tensors)
    return are_close([to_torch(found[name]) for name in request.output_names], flat(expected))
