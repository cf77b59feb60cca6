"""OpenVINO: engines are models in its intermediate representation (IR).

The IR has the same bytes in every build and runs on all processors; the device compiles it when it
is loaded (0.1 s for resnet18). A compiled model (``compiled: true``) has no checksum, differs from
build to build, and forgets the precision that it was compiled for: its digest is checked like that
of every engine file, and the precision is set again.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import openvino as ov

from buildsys.backends.interface import (
    BuildRequest,
    Figures,
    OperatorUse,
    Options,
    UnsupportedNode,
    raise_refused,
    read_batches,
)
from buildsys.backends.layer_figures import check_precision, profiled_runs
from buildsys.backends.openvino.description import BLOB, DESCRIPTION
from buildsys.backends.openvino.session import (
    OpenVinoSession,
    call,
    compile_model,
    import_blob,
    last_words,
    layers_by_time,
    port_of,
    precision_facts,
    properties,
)
from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.graph_reader import inline_all, read_graph
from buildsys.onnx_graphs.tensors import Tensor
from buildsys.system.cpu import cpu_model, usable_cores

RUN_OPTIONS: Options = {"threads": 0, "streams": 0, "pin_threads": False, "config": {}}
_CAPABILITIES = {"fp16": "FP16", "bf16": "BF16", "int8": "INT8"}
_UNSUPPORTED = re.compile(r"(?:No conversion rule found for|following ONNX) operations: (.+)")
_OPSET = re.compile(r"-\d+$")


def prepare(options: Options) -> None:
    """Check the device, its precisions and the properties."""
    core, device = _core(), options["device"]
    if not any(name.partition(".")[0] == device for name in core.available_devices):
        listed = ", ".join(core.available_devices) or "none"
        raise Unavailable(
            f"OpenVINO finds no {device} here (devices: {listed})",
            "install its driver, or run it on a machine with one",
        )
    needed = _CAPABILITIES.get(options["precision"])
    capabilities = core.get_property(device, "OPTIMIZATION_CAPABILITIES")
    if needed and needed not in capabilities:
        name = core.get_property(device, "FULL_DEVICE_NAME")
        precisions = ("FP32", *_CAPABILITIES.values())  # others are features, such as WINOGRAD
        listed = ", ".join(capability for capability in capabilities if capability in precisions)
        raise Unavailable(
            f"{name} cannot compute in {options['precision']} (it has {listed})",
            "use another precision, or run it on another machine",
        )


def build(request: BuildRequest) -> Figures:
    """Write the IR; return the settings."""
    options = request.options
    request.progress("reading the graph")
    with TemporaryDirectory(dir=request.engine.parent) as folder:
        try:
            model = _core().read_model(str(_source(request, Path(folder))))
        except RuntimeError as error:
            if nodes := _unknown_nodes(request, error):
                raise_refused(request, "OpenVINO", nodes)
            raise StageError(f"model {request.model}: {last_words(error)}") from error
        for port in (*model.inputs, *model.outputs):
            port_of(port)  # refuses types that cannot be passed
        shapes = {name: _bounded_shape(request, name) for name in request.inputs}
        call("cannot take the shapes of the inputs", lambda: model.reshape(shapes))
        if DESCRIPTION.quantizes(options):
            model = quantize(model, request)
        # weights of an fp16 engine are rounded anyway; after a search, the graph has their types
        halved = options["precision"] == "fp16" and not options.get("auto")
        ov.save_model(model, str(request.engine), compress_to_fp16=halved)
    if options["compiled"]:
        request.progress("compiling the model")
        compiled = compile_model(_core(), request.engine, options)
        content = call("cannot export the compiled model", compiled.export_model)
        request.engine.with_name(BLOB).write_bytes(content.getvalue())
    names = ("precision", "device", "performance_hint", "pin_threads", "compiled")
    settings = {
        **{name: options[name] for name in names},
        **({"auto": True} if options.get("auto") else {}),
        "threads": int(options["threads"]) or usable_cores(),
        "streams": options["streams"] or 0,  # 0: the default
        "config": dict(options["config"]),
        "properties": properties(options),
    }
    return {"settings": settings, "profiles": [], "messages": []}


def describe(engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()) -> Figures:
    """Describe the executed layers and their types."""
    facts = precision_facts(_compiled(engine, options), options)
    hint = "lower precision_share to accept this engine (docs/manifest.md, engines)"
    check_precision(facts, options, hint)
    return facts


def load(
    engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()
) -> OpenVinoSession:
    """Compile a built engine for its device."""
    prepare(options)
    return OpenVinoSession(_compiled(engine, options))


def slowest_layers(
    engine: Path, options: Options, operators: tuple[OperatorUse, ...], inputs: Mapping[str, Tensor]
) -> list[Figures]:
    """Return the slowest layers, from OpenVINO's own counters."""
    compiled = compile_model(_core(), engine, options, PERF_COUNT="YES")
    session = OpenVinoSession(compiled)
    run = session.bind(inputs)
    times_ms: dict[str, list[float]] = {}
    for _ in profiled_runs():
        run()
        for layer in session.timings():
            times_ms.setdefault(layer.node_name, []).append(layer.real_time.total_seconds() * 1000)
    return layers_by_time(compiled, times_ms)


def device(options: Options) -> Figures:
    """Describe the device and what it can compute in."""
    core, name = _core(), options["device"]
    on_cpu = {"kind": "cpu", "name": cpu_model(), "cores": usable_cores()}
    facts: Figures = on_cpu if name == "CPU" else {"kind": "xpu"}
    with suppress(RuntimeError):
        facts.setdefault("name", str(core.get_property(name, "FULL_DEVICE_NAME")))
        capabilities: Any = core.get_property(name, "OPTIMIZATION_CAPABILITIES")
        return {**facts, "capabilities": " ".join(capabilities)}
    return {**facts, "missing": f"OpenVINO finds no {name}"}


def _compiled(engine: Path, options: Options) -> ov.CompiledModel:
    if options["compiled"]:
        return import_blob(_core(), engine.with_name(BLOB), options)
    return compile_model(_core(), engine, options)


@cache
def _core() -> ov.Core:
    return ov.Core()


def _source(request: BuildRequest, folder: Path) -> Path:
    """Prepare the graph, with its local functions inlined: OpenVINO does not know them."""
    try:
        if not read_graph(request.onnx).functions:
            return request.onnx
    except StageError:  # OpenVINO says more about a file that is not ONNX
        return request.onnx
    import onnx

    inlined = folder / "model.onnx"
    onnx.save(inline_all(onnx.load(str(request.onnx))), str(inlined))
    return inlined


def _unknown_nodes(request: BuildRequest, error: RuntimeError) -> list[UnsupportedNode]:
    """List the nodes that an error names."""
    match = _UNSUPPORTED.search(str(error))
    if match is None:
        return []
    reason = "OpenVINO does not support this operator"
    operators = {_OPSET.sub("", name.strip()) for name in match[1].split(",")}
    nodes = []
    for index, node in enumerate(read_graph(request.onnx).graph.node):
        parts = [node.domain, node.op_type] if node.domain else [node.op_type]
        if ".".join(parts) in operators:
            nodes.append(UnsupportedNode(index, node.name, "::".join(parts), reason))
    return nodes or [UnsupportedNode(None, "", name, reason) for name in sorted(operators)]


def _bounded_shape(request: BuildRequest, name: str) -> ov.PartialShape:
    """Return the shape of an input with its ranges: other shapes are refused."""
    sizes = []
    for size in request.inputs[name]["shape"]:
        span = request.dims[size] if isinstance(size, str) else None
        sizes.append(ov.Dimension(span["min"], span["max"]) if span else ov.Dimension(size))
    return ov.PartialShape(sizes)


def quantize(model: ov.Model, request: BuildRequest) -> ov.Model:
    """Return ``model`` with int8 quantizers, from the calibration data of the manifest."""
    assert request.calibration is not None
    os.environ.setdefault("NNCF_CI", "1")  # no telemetry
    try:
        import nncf
    except ImportError as error:
        raise Unavailable(
            f"int8 engines of OpenVINO need NNCF: {error}", "pip install 'buildsys[openvino]'"
        ) from error
    inputs = [port_of(port).name for port in model.inputs]
    batches = list(read_batches(request.calibration.batches, inputs))
    options = request.options
    kind = nncf.ModelType.TRANSFORMER if options["model_type"] == "transformer" else None
    request.progress(f"quantizing with {len(batches)} batches")
    nncf.set_log_level("ERROR")
    try:
        quantized: ov.Model = nncf.quantize(
            model,
            nncf.Dataset(batches),
            preset=nncf.QuantizationPreset[options["quantization_preset"].upper()],
            subset_size=len(batches),
            model_type=kind,
            # weights of 7 bits: the engine runs on all processors, and those without VNNI overflow
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                overflow_fix=nncf.OverflowFix.ENABLE
            ),
        )
    except (RuntimeError, ValueError, nncf.ValidationError) as error:
        cause = " ".join(str(error).split())[:400]
        problem = f"model {request.model}: NNCF cannot quantize it: {cause}"
        hint = "set quantization_preset: mixed, or use another precision"
        raise StageError(problem, hint) from error
    return quantized
