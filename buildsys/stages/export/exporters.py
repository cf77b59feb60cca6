"""Both exporters of torch.onnx.export: TorchScript, based on tracing, and dynamo."""

from __future__ import annotations

import importlib
import inspect
import io
import os
import re
import select
import signal
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import torch

from buildsys.errors import BuildsysError, CheckFailed, StageError
from buildsys.manifest.shape_cases import DimRange, format_dims
from buildsys.models.torch_model import from_torch, to_torch
from buildsys.models.user_code import describe_exception
from buildsys.onnx_graphs.onnx_file import (
    INLINE_LIMIT,
    ONE_MESSAGE_LIMIT,
    all_nodes,
    load_model,
    opsets,
    save_model,
    subgraphs,
)
from buildsys.stages.export.guards import are_close, check_guards, flat, recorded_guards
from buildsys.stages.export.request import ExportRequest, collect_warnings

_TORCHSCRIPT_OPTIONS = (
    "export_params", "keep_initializers_as_inputs", "do_constant_folding", "custom_opsets",
    "autograd_inlining",
)  # fmt: skip
_DYNAMO_OPTIONS = (
    "export_params", "keep_initializers_as_inputs", "optimize", "verify", "report", "profile",
    "dump_exported_program",
)  # fmt: skip
_TIME_STAMP = re.compile(r"_\d{4}-\d{2}-\d{2}_\d{2}-\d{2}-\d{2}-\d+")
_MISMATCHES = (
    "has a large absolute difference",
    "has a large relative difference",
    "fails ONNX checker",
)
_STRIPS_DOC_STRINGS = 5  # position among the arguments of torch._C.Graph._export_onnx
_TRAINING_MODES = {"eval": "EVAL", "preserve": "PRESERVE", "train": "TRAINING"}


def export_torchscript(request: ExportRequest) -> onnx.ModelProto:
    """Export by tracing."""
    if request.weight_bytes < ONE_MESSAGE_LIMIT:
        stream = io.BytesIO()
        _export(request, stream)
        model = onnx.load_model_from_string(stream.getvalue())
    else:  # above 2 GB the exporter writes one file per tensor next to the model
        with tempfile.TemporaryDirectory(dir=request.path.parent) as folder:
            file = Path(folder) / request.path.name
            _export(request, str(file))
            model = load_model(file)
    if request.options["export_modules_as_functions"]:
        normalize_functions(model)
        _restore_output_names(model, request)
    return model


def _export(request: ExportRequest, file: str | io.BytesIO) -> None:
    dynamic = {**request.dynamic_inputs, **request.dynamic_outputs}
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
            **_converted_options(request),
            **request.given(*_TORCHSCRIPT_OPTIONS),
        )


@contextmanager
def _doc_strings_kept() -> Iterator[None]:
    """Keep the doc strings of nodes, which hold their origins.

    ``verbose`` would also print the graph. In a torch without this internal function origins are
    unknown.
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
        return original(graph, *arguments)

    kind._export_onnx = export_onnx
    try:
        yield
    finally:
        kind._export_onnx = original


def _restore_output_names(model: onnx.ModelProto, request: ExportRequest) -> None:
    """Restore the names of outputs computed by a function."""
    written = [value.name for value in model.graph.output]
    if len(written) != len(request.output_names):
        return
    names = {old: new for old, new in zip(written, request.output_names, strict=True) if old != new}
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in model.graph.output:
        value.name = names.get(value.name, value.name)


def _converted_options(request: ExportRequest) -> dict[str, Any]:
    """Convert options to torch's enums and classes."""
    options = request.given("training", "operator_export_type", "export_modules_as_functions")
    if "training" in options:
        options["training"] = getattr(torch.onnx.TrainingMode, _TRAINING_MODES[options["training"]])
    if "operator_export_type" in options:
        name = options["operator_export_type"].upper()
        options["operator_export_type"] = getattr(torch.onnx.OperatorExportTypes, name)
    field = "export_modules_as_functions"
    if isinstance(options.get(field), list | tuple):
        classes = set()
        for path in options[field]:
            module, _, name = path.rpartition(".")
            try:
                module_class = getattr(importlib.import_module(module), name)
            except (ImportError, AttributeError, ValueError) as error:
                raise StageError(
                    f"export.{field}: there is no class {path} ({error})",
                    "check the path of the class",
                ) from error
            if not (isinstance(module_class, type) and issubclass(module_class, torch.nn.Module)):
                raise StageError(
                    f"export.{field}: {path} is not a subclass of torch.nn.Module",
                    "name a class of a module",
                )
            classes.add(module_class)
        options[field] = classes
    return options


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


def export_dynamo(request: ExportRequest) -> onnx.ModelProto:
    """Export by torch.export.

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
                external_data=request.weight_bytes >= INLINE_LIMIT,  # this file is temporary
                verbose=bool(request.options["verbose"]),
                artifacts_dir=str(folder),
                custom_translation_table=dict(request.translations) or None,
                **request.given(*_DYNAMO_OPTIONS),
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
        return load_model(file)


_LIMIT_S = 60.0
_LARGEST_BYTES = 1 << 30  # larger weights: a fork copies what the export changes


def try_export(request: ExportRequest, changes: Mapping[str, Any], project: Path) -> str | None:
    """Try a remedy, an export with changed options: "" if it works, None if unknown.

    A process exports once (see ``registrations``), so a trial is a fork of the process that failed.
    It computes with one thread: the thread pools of torch do not survive a fork.
    """
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
            model = export(changed)
            if opsets(model).get("ai.onnx") != options["opset"]:
                return f"it writes opset {opsets(model).get('ai.onnx')}"
            onnx.checker.check_model(model, full_check=True)
            if export is export_torchscript:  # dynamo refuses sizes that forward fixes
                save_model(model, changed.path)
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
    """Compare a traced graph at other sizes than the traced ones; "" if it is right.

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
    except Exception:  # the user's code may raise anything
        return True
    outputs = graph.run(tensors)
    return are_close([to_torch(outputs[name]) for name in request.output_names], flat(expected))
