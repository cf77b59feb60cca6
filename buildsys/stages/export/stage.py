"""Export stage: the manifest's network as a checked ONNX file.

Exporters do not refuse unsupported requests: they leave another opset in the file, write static
shapes for dynamic names they did not understand, and drop names beyond the last output. So the file
is read back and compared with the manifest.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import onnx
import onnx.checker
import onnx.shape_inference
from onnx import ModelProto, ValueInfoProto, helper, shape_inference

from buildsys.errors import CheckFailed, StageError
from buildsys.manifest.exports import OTHER_EXPORTS, export_change
from buildsys.models.sources.onnx import load_onnx
from buildsys.onnx_graphs.onnx_file import (
    INLINE_LIMIT,
    STANDARD,
    file_facts,
    load_model,
    nodes_of,
    opsets,
    parameter_count,
    port_of,
    ports,
    save_model,
)
from buildsys.onnx_graphs.quantizers import check_scales
from buildsys.onnx_graphs.random_nodes import random_nodes, refuse_random
from buildsys.onnx_graphs.result_types import Doubt
from buildsys.onnx_graphs.tensor_names import sort_nodes
from buildsys.onnx_graphs.tensor_types import without_weights
from buildsys.stages.export.origins import node_origins, strip_traces, write_origins
from buildsys.stages.export.result import ExportResult
from buildsys.stages.operators.local_functions import OF_PYTORCH, add_functions, pytorch_operators
from buildsys.system.files import sha256_of
from buildsys.system.user_modules import split_reference
from buildsys.workers.job import Job, StageResult

Port = Mapping[str, Any]  # name, dtype and shape in the file
Declared = Mapping[str, Mapping[str, Any]]  # name -> {shape, dtype} of the manifest
Size = int | str | None  # None is unknown
# imported by name, so its code is only in the keys of ONNX sources
_FILE_VERSIONS = "buildsys.backends.onnxruntime.file_versions"
_UNUSED = ", which forward does not use"
_REMOVE = "remove it from inputs; if forward requires the argument, give it a constant in call.args"
_MISMATCHES = (  # in warnings of the dynamo exporter
    "has a large absolute difference",
    "has a large relative difference",
    "fails ONNX checker",
)
# larger weights go to a separate file; by external_data: unset, false, true
_INLINE_LIMITS = {None: INLINE_LIMIT, False: 2**31 - 2**24, True: -1}


def run(job: Job) -> StageResult:
    """Write ``model`` (large weights to ``model.data``) and ``origins`` of its nodes.

    Raises: StageError: network or export fails, or the file differs from the manifest.
        CheckFailed: the network is random.
    """
    warnings, trained = list[str](), dict[str, str]()
    if "onnx" in job.options["source"]:
        model, figures = _read_file(job, warnings)
    else:
        model, figures = _export_network(job, warnings, trained)
        check_scales(model, "the exported graph")
    if "functions" in job.inputs:
        warnings += add_functions(model, load_model(job.inputs["functions"]))
    origins = node_origins(model, job.project)
    places = {
        operator: next(filter(None, map(origins.get, node.output)), node.name or node.output[0])
        for operator, node in random_nodes(model).items()
    }
    refuse_random({**trained, **places}, job.options["export"]["random"] or ())
    if "origins" in job.outputs:
        write_origins(origins, job.outputs["origins"])
    figures.setdefault("parameters", parameter_count(model))
    figures["opset"] = opsets(model).get("ai.onnx", 0)
    figures["ir_version"] = model.ir_version
    figures["producer"] = f"{model.producer_name} {model.producer_version}".strip()
    figures["inputs"], figures["outputs"] = ports(model)
    strip_traces(model)
    path, external = job.outputs["model"], job.options["export"]["external_data"]
    save_model(model, path, inline_limit=_INLINE_LIMITS[external])
    job.progress("checking the file")
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        from buildsys.stages.export.exporters import checker_failure

        if untranslated := pytorch_operators(nodes_of(model)):
            problem = f"{', '.join(untranslated)} {OF_PYTORCH}"
            raise StageError(problem, "remove it, and see symbolics", OTHER_EXPORTS) from error
        raise checker_failure(error, figures["exporter"]) from error
    figures["sha256"], figures["warnings"] = sha256_of(path), warnings
    return StageResult(figures={**figures, **file_facts(model, path)})


def _read_file(job: Job, warnings: list[str]) -> tuple[onnx.ModelProto, ExportResult]:
    """Read the source's ONNX file, in versions that ONNX Runtime computes."""
    source, file = job.options["source"], job.options["source"]["onnx"]
    model = load_onnx(source, job.project)
    if not model.graph.output:
        raise StageError(
            f"{file} is not an ONNX model: it has no graph with outputs",
            "name an ONNX model that has outputs",
        )
    for port in (*model.graph.input, *model.graph.output):
        kind = port.type.WhichOneof("value") or "tensor_type"  # the checker requires a type
        if kind != "tensor_type":
            raise StageError(
                f"{port.name} of {file} is of the kind {kind.removesuffix('_type')}, and only"
                " tensors can be inputs and outputs",
                "build it from tensors in the graph, or return its elements one by one",
            )
    sort_nodes(model.graph)
    model, changes = import_module(_FILE_VERSIONS).fit_versions(model, file)
    warnings += changes
    settle_shapes(model, job.options["inputs"], job.options["outputs"], file)
    _check_signature(model, job.options["inputs"], job.options["outputs"])
    return model, ExportResult(exporter="none", weights=f"from {file}")


def _export_network(
    job: Job, warnings: list[str], trained: dict[str, str]
) -> tuple[onnx.ModelProto, ExportResult]:
    """Build and export the network; return the model with figures.

    Adds warnings, and layers in training mode with their places.
    """
    import torch

    from buildsys.models.torch_model import make_network
    from buildsys.stages.export import registrations
    from buildsys.stages.export.exporters import export
    from buildsys.stages.export.request import collect_warnings, export_request, training_layers

    options, exporter = job.options, job.options["export"]["exporter"]
    if job.threads:
        torch.set_num_threads(job.threads)
    job.progress("building the network")
    file, _ = split_reference(options["source"].get("python", ""))
    with registrations.collected_registrations(file) as of_network:
        network = make_network(options, job.project)
    registered: list[registrations.Registration] = []
    if "symbolics" in options:
        registered = registrations.register_symbolics(options, job.project, of_network)
    table: registrations.Table = {}
    if "translations" in options:
        table, registered = registrations.make_translations(options, job.project)
    with training_layers(job.project) as layers:
        request = export_request(network, options, job.project, job.outputs["model"], table)
    trained |= layers
    job.progress(f"exporting with {exporter}")
    doubts: list[Doubt] = []
    with collect_warnings(warnings, doubts, job.project):
        model = export(request)
    mismatches = [text for text in warnings if any(sign in text for sign in _MISMATCHES)]
    if options["export"]["verify"] and mismatches:
        hint = "validate compares all sizes; set export.verify: false to see its result"
        raise CheckFailed(f"export.verify: {mismatches[0]}", hint)
    reason = "the network has no such operator, or torch's own function takes precedence"
    warnings += [
        f"{registration.described} was never used: {reason}"
        for registration in registered
        if not registration.calls
    ]
    opset, written = options["export"]["opset"], opsets(model).get("ai.onnx", 0)
    if written != opset:
        problem = f"the {exporter} exporter wrote opset {written} instead of {opset}"
        same = export_change(exporter=exporter, opset=written)
        traced = export_change(exporter="torchscript", opset=opset)
        raise StageError(problem, "", (same, traced, *OTHER_EXPORTS))
    settle_shapes(model, options["inputs"], options["outputs"], job.outputs["model"].name)
    values = [doubt["text"] for doubt in doubts if doubt["kind"] == "value"]
    _check_signature(model, options["inputs"], options["outputs"], request.output_names, values)
    figures = ExportResult(
        exporter=exporter,
        doubts=doubts,
        weights=network.weights,
        parameters=sum(parameter.numel() for parameter in network.module.parameters()),
    )
    return model, figures


def _check_signature(
    model: onnx.ModelProto,
    inputs: Declared,
    outputs: Declared,
    output_names: Sequence[str] | None = None,
    traced: Sequence[str] = (),
) -> None:
    """Compare names, order, dtypes and dimensions of inputs and outputs.

    ``output_names`` are the expected names if ``outputs`` declares none, ``traced`` the tracer's
    warnings about values. A named dimension must be dynamic in the file; a fixed one may be unknown
    there, but not different.
    Raises: StageError: lists all differences.
    """
    file_inputs, file_outputs = ports(model)
    written = Counter(port["name"] for port in file_outputs)
    problems = [
        *(f"{count} outputs are named {name}" for name, count in written.items() if count > 1),
        *_differences("input", file_inputs, inputs, list(inputs)),
        *_differences("output", file_outputs, outputs, list(outputs) or output_names),
    ]
    if problems:
        problem, hint = "the ONNX file differs from the manifest: " + "; ".join(problems), ""
        if _UNUSED in problem and traced:
            problem = problem.replace(_UNUSED, f": tracing made its value constant: {traced[0]}")
        elif _UNUSED in problem:
            hint = _REMOVE
        raise StageError(problem, hint, OTHER_EXPORTS)


def _differences(
    kind: str, file_ports: Sequence[Port], declared: Declared, expected: Sequence[str] | None
) -> Iterator[str]:
    written = [port["name"] for port in file_ports]
    missing = [name for name in expected or () if name not in written]
    if kind == "input" and missing and set(written) < set(expected or ()):
        yield f"the file lacks {', '.join(missing)}{_UNUSED}"
    elif expected is not None and written != list(expected):
        yield (
            f"its {kind}s are {', '.join(written) or 'none'},"
            f" the manifest declares {', '.join(expected)}"
        )
    for port in file_ports:
        if port["name"] not in declared:
            continue
        what, tensor = f"{kind} {port['name']}", declared[port["name"]]
        if tensor["dtype"] not in (None, port["dtype"]):
            yield f"{what} is {port['dtype']}, the manifest declares {tensor['dtype']}"
        sizes, dims = port["shape"], tensor["shape"]
        if sizes is None or dims is None:
            continue
        if len(sizes) != len(dims):
            yield f"{what} has the shape {list(sizes)}, the manifest declares {list(dims)}"
            continue
        for axis, (size, dim) in enumerate(zip(sizes, dims, strict=True)):
            if isinstance(size, int) and dim not in (None, size):
                yield f"{what}: axis {axis} is {size} in the file, the manifest declares {dim}"


def settle_shapes(model: ModelProto, inputs: Declared, outputs: Declared, title: str) -> None:
    """Replace the shapes of outputs by inferred sizes, then names, then declared sizes.

    A fixed size whose axis is not inferred stays if all inputs are fixed, or nothing is known about
    the shape, as after a custom operator. Inner tensors lose theirs.
    Raises: StageError: an output has no shape anywhere.
    """
    stored = {tensor.name for tensor in model.graph.initializer}
    ports = [port for port in model.graph.input if port.name not in stored]
    for port in (*model.graph.input, *model.graph.output):
        for dim in port.type.tensor_type.shape.dim if _has_shape(port) else ():
            if dim.dim_value < 0:  # some exporters' unknown size
                dim.Clear()
    for port in ports:
        declared = (inputs.get(port.name) or {}).get("shape")
        if not _is_tensor(port) or declared is None:
            continue
        written = port_of(port)["shape"] or declared
        if len(written) == len(declared):  # else the signature is refused
            named = [d if isinstance(d, str) else None for d in declared]
            pairs = zip(written, named, strict=True)
            _set_shape(port, [name if size is None else size for size, name in pairs])
    sizes = [size for port in ports for size in port_of(port)["shape"] or (None,)]
    names = {size for size in sizes if isinstance(size, str)}
    is_fixed = all(isinstance(size, int) for size in sizes)
    # the types of others are inferred, and onnx takes a type without a shape for no elements
    nodes = (node for node in model.graph.node if node.domain not in STANDARD)
    custom = {name for node in nodes for name in node.output}
    values = [value for value in model.graph.value_info if value.name in custom]
    del model.graph.value_info[:]
    model.graph.value_info.extend(_without_shapes(values))
    inferred = _inferred_shapes(model)
    for port in filter(_is_tensor, model.graph.output):
        written, declared = port_of(port)["shape"], (outputs.get(port.name) or {}).get("shape")
        shapes, by_onnx = [], inferred.get(port.name)
        if by_onnx is not None:
            shapes.append([s if isinstance(s, int) or s in names else None for s in by_onnx])
        if written is not None:
            # an output without elements, perhaps of the example alone, would not be compared
            is_believed = (is_fixed or by_onnx is None) and (0 in sizes or 0 not in written)
            shapes.append([s if is_believed or isinstance(s, str) else None for s in written])
        if declared is not None:
            shapes.append(list(declared))
        if not shapes:
            raise StageError(
                f"the file {title} has no shape for {port.name}, and none can be inferred",
                f"declare it, with null for unknown sizes: outputs: {{{port.name}: {{shape:"
                " [batch, null]}}",
            )
        same_rank = [shape for shape in shapes if len(shape) == len(shapes[0])]
        axes = zip(*same_rank, strict=True)
        _set_shape(port, [next((size for size in s if size is not None), None) for s in axes])


def _is_tensor(port: ValueInfoProto) -> bool:
    return bool(port.type.HasField("tensor_type"))


def _has_shape(port: ValueInfoProto) -> bool:
    return _is_tensor(port) and bool(port.type.tensor_type.HasField("shape"))


def _set_shape(port: ValueInfoProto, shape: Sequence[Size]) -> None:
    kind = port.type.tensor_type.elem_type
    port.type.CopyFrom(helper.make_tensor_type_proto(kind, list(shape)))


def _inferred_shapes(model: ModelProto) -> dict[str, Sequence[Size] | None]:
    """Infer the shapes of all outputs from the inputs."""
    skeleton = without_weights(model)
    graph, outputs = skeleton.graph, [*_without_shapes(skeleton.graph.output)]
    del graph.output[:]
    graph.output.extend(outputs)
    with suppress(onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        graph = shape_inference.infer_shapes(skeleton, data_prop=True).graph
    return {port.name: port_of(port)["shape"] for port in graph.output}


def _without_shapes(values: Sequence[ValueInfoProto]) -> Iterator[ValueInfoProto]:
    """Yield copies that only have a type."""
    for value in values:
        copy = ValueInfoProto()
        copy.CopyFrom(value)
        if _is_tensor(copy):
            copy.type.tensor_type.ClearField("shape")
        yield copy
