"""Stage export: the manifest's network as a checked ONNX file."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnx.checker
import onnx.shape_inference

from buildsys.errors import BuildsysError, StageError
from buildsys.onnx_graphs.onnx_file import (
    INLINE_LIMIT,
    file_facts,
    load_model,
    opsets,
    parameter_count,
    ports,
    save_model,
)
from buildsys.stages.export.origins import node_origins, write_origins
from buildsys.stages.export.signature import check_opset, check_signature
from buildsys.stages.export.strip_metadata import strip_traces
from buildsys.stages.operators.function_placement import add_functions
from buildsys.system.files import sha256_of
from buildsys.workers.job import Job, StageResult

if TYPE_CHECKING:
    from buildsys.models.torch_model import Network
    from buildsys.stages.export.registrations import Registration
    from buildsys.stages.export.request import ExportRequest

_OPERATOR_SECTIONS = ("symbolics", "translations", "ops")
# weights up to this size stay in the file: external_data unset, false, true
_INLINE_LIMITS = {None: INLINE_LIMIT, False: 2**31 - 2**24, True: -1}


def run(job: Job) -> StageResult:
    """Write ``model`` (and ``model.data`` beside it where the weights are large), and ``origins`` of its nodes.

    Raises: StageError: the network or the export fails, or the file is not what the manifest asks for.
    """
    warnings: list[str] = []
    weights: dict[str, bytes] = {}  # by name, of the initializers that are not in the model
    if "onnx" in job.options["source"]:
        model, origin = (
            _given_model(job),
            {"exporter": "none", "weights": f"from {job.options['source']['onnx']}"},
        )
    else:
        model, weights, origin = _exported_model(job, warnings)
    if "functions" in job.inputs:
        warnings += add_functions(model, load_model(job.inputs["functions"]))
    figures = {"parameters": parameter_count(model), **origin, **_model_figures(model)}
    if "origins" in job.outputs:
        write_origins(node_origins(model, job.project), job.outputs["origins"])
    stripped = strip_traces(model)
    path, external = job.outputs["model"], job.options["export"]["external_data"]
    save_model(model, path, inline_limit=_INLINE_LIMITS[external], weights_of=weights)
    job.progress("checking the file")
    with ThreadPoolExecutor(max_workers=1) as beside:
        digest = beside.submit(sha256_of, path)
        _check_file(path, origin["exporter"])
    figures |= {**file_facts(model, path), "sha256": digest.result()}
    return StageResult(figures={**figures, "warnings": warnings, "stripped": stripped})


def _model_figures(model: onnx.ModelProto) -> dict[str, Any]:
    inputs, outputs = ports(model)
    producer = f"{model.producer_name} {model.producer_version}".strip()
    opset = opsets(model).get("ai.onnx", 0)
    return {
        "opset": opset,
        "ir_version": model.ir_version,
        "producer": producer,
        "inputs": inputs,
        "outputs": outputs,
    }


def _exported_model(
    job: Job, warnings: list[str]
) -> tuple[onnx.ModelProto, dict[str, bytes], dict[str, Any]]:
    # torch is not needed for a ready ONNX file
    import torch

    from buildsys.models.torch_model import make_network
    from buildsys.stages.export.registrations import unused
    from buildsys.stages.export.request import collecting_warnings

    options, exporter = job.options, job.options["export"]["exporter"]
    if job.threads:
        torch.set_num_threads(job.threads)
    job.progress("building the network")
    network = make_network(options, job.project)
    request = _request(network, options, job.outputs["model"])
    request, taught = _teach(request, options, job.project)
    job.progress(f"exporting with {exporter}")
    with collecting_warnings(warnings):
        model, weights = _export(request, job)
    warnings += unused(taught)
    check_opset(model, options["export"]["opset"], exporter)
    _check_exported_signature(model, options, request.output_names)
    parameters = sum(parameter.numel() for parameter in network.module.parameters())
    modules = dict(
        Counter(type(module).__name__ for module in network.module.modules()).most_common()
    )
    origin = {
        "exporter": exporter,
        "weights": network.weights,
        "parameters": parameters,
        "modules": modules,
    }
    return model, weights, origin


def _request(network: Network, options: Mapping[str, Any], path: Path) -> ExportRequest:
    """Call the network once and return what to ask the exporter for, now that its outputs are known."""
    import torch

    from buildsys.models.torch_model import (
        FlatCall,
        check_outputs,
        example_inputs,
        is_flat,
        name_outputs,
    )
    from buildsys.stages.export.request import ExportRequest, named_axes

    inputs = example_inputs(options)
    with torch.no_grad():
        result = (
            network.result(inputs) if network.example_result is None else network.example_result
        )
    outputs = name_outputs(result, options["outputs"])
    check_outputs(outputs, options["outputs"], options["example"], inputs)
    _refuse_complex({**inputs, **outputs})
    by_position = is_flat(result) and not any(network.keywords.values())
    return ExportRequest(
        module=network.module if by_position else FlatCall(network),
        arguments=tuple(inputs.values()),
        input_names=tuple(inputs),
        output_names=tuple(outputs),
        dynamic_inputs=named_axes(options["inputs"]),
        dynamic_outputs=named_axes(options["outputs"]),
        options=options["export"],
        path=path,
    )


def _teach(
    request: ExportRequest, options: Mapping[str, Any], project: Path
) -> tuple[ExportRequest, list[Registration]]:
    """Teach the exporter the operators of the manifest."""
    if "symbolics" in options:
        from buildsys.stages.export.symbolics import register_symbolics

        return request, register_symbolics(options, project)
    if "translations" in options:
        from buildsys.stages.export.translations import make_translations

        table, registrations = make_translations(options, project)
        return replace(request, translations=table), registrations
    return request, []


def _refuse_complex(tensors: Mapping[str, Any]) -> None:
    for name, tensor in tensors.items():
        if tensor.is_complex():
            raise StageError(
                f"{name} is complex, which neither exporter can write as a graph input or output",
                "pass real and imaginary parts: torch.view_as_complex and view_as_real convert inside the network",
            )


def _export(request: ExportRequest, job: Job) -> tuple[onnx.ModelProto, dict[str, bytes]]:
    exporter, opset = request.options["exporter"], request.options["opset"]
    if exporter == "dynamo":
        from buildsys.stages.export.dynamo import export_dynamo as export
    else:
        from buildsys.stages.export.torchscript import export_torchscript as export
    try:
        return export(request)
    except BuildsysError:
        raise
    except Exception as error:  # exporters raise whatever comes their way
        if own := _own_failure(error):
            raise own from error
        from buildsys.stages.export.failures import export_failure

        traceback.print_exception(error)  # into the log: the sentence below is its last line only
        declared = [section for section in _OPERATOR_SECTIONS if job.options.get(section)]
        raise export_failure(error, exporter, opset, job.project, declared) from error


def _own_failure(error: BaseException) -> BuildsysError | None:
    """Return the failure of a function that the exporter was taught, which it wraps in its own."""
    current: BaseException | None = error
    while current is not None and not isinstance(current, BuildsysError):
        current = current.__cause__
    return current


def _check_exported_signature(
    model: onnx.ModelProto, options: Mapping[str, Any], names: tuple[str, ...]
) -> None:
    inputs = options["inputs"]
    if (
        options["export"]["export_params"] is False
    ):  # the weights are inputs then, after the network's own
        extra = list(model.graph.input)[len(inputs) :]
        inputs = {**inputs, **{value.name: {"shape": None, "dtype": None} for value in extra}}
    check_signature(model, inputs, options["outputs"], names)


def _given_model(job: Job) -> onnx.ModelProto:
    shown = job.options["source"]["onnx"]
    file = job.project / shown
    if not file.is_file():
        raise StageError(f"{shown} does not exist in the project")
    model = load_model(file)
    if not model.graph.output:
        raise StageError(f"{shown} is not an ONNX model: it has no graph with outputs")
    check_signature(model, job.options["inputs"], job.options["outputs"])
    return model


def _check_file(path: Path, exporter: str) -> None:
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        from buildsys.stages.export.failures import checker_failure

        raise checker_failure(error, exporter) from error
