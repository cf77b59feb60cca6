"""OpenVINO models loaded on a device."""

import io
import re
import statistics
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import openvino as ov

from buildsys.backends.interface import Figures, Options, Port, Profiles, Run, required_input
from buildsys.backends.layer_figures import int8_layers, is_preprocessing, layer_facts, slowest
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Tensor, tensor_of
from buildsys.system.cpu import usable_cores

T = TypeVar("T")

# the default depends on the CPU (bfloat16 with AMX), and a compiled blob forgets it
PRECISION_HINTS = {"fp32": "f32", "fp16": "f16", "bf16": "bf16", "int8": "f32"}
DTYPES = {  # OpenVINO's name -> ONNX's
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64",
    "i32": "int32", "i16": "int16", "i8": "int8", "u64": "uint64", "u32": "uint32", "u16": "uint16",
    "u8": "uint8", "boolean": "bool", "string": "string",
}  # fmt: skip
_RUNNABLE = frozenset(DTYPES.values()) - {"bfloat16", "string"}
_RESULT = "/sink_port_0"
_LOCATION = re.compile(r"^(Exception from |Check '.*' failed at |\S+\.(cpp|hpp):\d+:?\s*)")


class OpenVinoSession:
    """A loaded engine: a compiled model and one inference request."""

    profiles: Profiles = ()

    def __init__(self, compiled: ov.CompiledModel) -> None:
        """Create a request; raise StageError for types that cannot be passed."""
        self.compiled = compiled
        self.inputs = tuple(map(port_of, compiled.inputs))
        self.outputs = tuple(map(port_of, compiled.outputs))
        self._request = compiled.create_infer_request()

    def run(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> dict[str, Tensor]:
        """Return the outputs by name."""
        # by index: names of tensors may be numbers
        feeds = {index: _array(port, inputs) for index, port in enumerate(self.inputs)}
        call(
            "cannot run the engine",
            lambda: self._request.infer(feeds, share_inputs=True),
            "sizes must be within dims of the manifest",
        )
        return {
            port.name: tensor_of(np.array(self._request.get_output_tensor(index).data), port.dtype)
            for index, port in enumerate(self.outputs)
        }

    def bind(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> Run:
        """Return a call for inputs in the request's own memory."""
        self.run(inputs, profile)  # reports wrong inputs, and allocates the outputs
        held = [_array(port, inputs) for port in self.inputs]
        for index, array in enumerate(held):
            self._request.set_input_tensor(index, ov.Tensor(array, shared_memory=True))
        request = self._request

        def run(_held: object = held) -> None:
            request.infer(share_outputs=True)  # starting and waiting hands over to a thread

        return run

    def timings(self) -> list[Any]:
        """Return OpenVINO's times of the layers in the last run, with PERF_COUNT."""
        status = ov.ProfilingInfo.Status.EXECUTED
        return [layer for layer in self._request.get_profiling_info() if layer.status == status]

    def close(self) -> None:
        """Free request and model."""
        del self._request, self.compiled

    def duplicate(self) -> "OpenVinoSession":
        """Make a session with another request."""
        return OpenVinoSession(self.compiled)


def properties(options: Options) -> dict[str, str]:
    """Collect the properties of a device; the precision is always among them."""
    # after a search, the graph has the types: OpenVINO 2026.4 keeps them with f32, and fuses away
    # its own marks of nodes in float32 (``precise``)
    precision = "fp32" if options.get("auto") else options["precision"]
    chosen = {"INFERENCE_PRECISION_HINT": PRECISION_HINTS[precision]}
    if options["performance_hint"]:
        chosen["PERFORMANCE_HINT"] = str(options["performance_hint"]).upper()
    if options["device"] == "CPU":
        chosen["INFERENCE_NUM_THREADS"] = str(int(options["threads"]) or usable_cores())
        chosen["ENABLE_CPU_PINNING"] = "YES" if options["pin_threads"] else "NO"
    if options["streams"] or not options["performance_hint"]:
        chosen["NUM_STREAMS"] = str(options["streams"] or 1)
    return {**chosen, **options["config"]}


def compile_model(
    core: ov.Core, model: ov.Model | Path, options: Options, **further: str
) -> ov.CompiledModel:
    """Compile a model for the device of ``options``."""
    source = str(model) if isinstance(model, Path) else model
    chosen = {**properties(options), **further}
    return call(
        "cannot compile the model", lambda: core.compile_model(source, options["device"], chosen)
    )


def import_blob(core: ov.Core, blob: Path, options: Options) -> ov.CompiledModel:
    """Load a compiled model, with its precision set again."""
    try:
        content = io.BytesIO(blob.read_bytes())
        return core.import_model(content, options["device"], properties(options))
    except (OSError, RuntimeError) as error:
        problem = f"{blob.name} is missing, damaged, or compiled for another version or processor"
        hint = "build it here, or set compiled: false; the log has OpenVINO's message"
        traceback.print_exception(error)
        raise StageError(problem, hint) from error


def call(what: str, function: Callable[[], T], hint: str = "") -> T:
    """Call OpenVINO; raise its error in one sentence."""
    try:
        return function()
    except (RuntimeError, TypeError, ValueError) as error:
        raise StageError(f"OpenVINO {what}: {last_words(error)}", hint) from error


def last_words(error: BaseException) -> str:
    """Return the useful part of an error: its last line that is no place in C++."""
    lines = [_LOCATION.sub("", line.strip()) for line in str(error).splitlines()]
    text = next((line for line in reversed(lines) if line), type(error).__name__)
    return text if len(text) <= 400 else f"{text[:400]}…"


def port_of(port: Any) -> Port:
    """Return an input or output."""
    # a tensor also has the names of the nodes that the compiler folds into it
    name = port.get_node().get_friendly_name().removesuffix(_RESULT)
    dtype = DTYPES.get(port.get_element_type().get_type_name(), "")
    if dtype not in _RUNNABLE:
        raise StageError(
            f"{name} has the type {dtype or port.get_element_type()}, which cannot be passed to"
            " OpenVINO from Python",
            "add a cast to a type of numpy: surgery: [{cast: …}]",
        )
    shape = tuple(
        size.get_length() if size.is_static else None for size in port.get_partial_shape()
    )
    return Port(name, dtype, shape)


def _array(port: Port, inputs: Mapping[str, Tensor]) -> Any:
    # another type is refused: OpenVINO would convert it silently
    return np.asarray(required_input(port, inputs).array, order="C")


# they compute nothing, or only shapes
_COMPUTES_NOTHING = frozenset((
    "Input", "Output", "Parameter", "Result", "Constant", "Const", "Reorder", "Reshape", "Convert",
    "ShapeOf", "Shapeof", "MemoryInput", "MemoryOutput", "Broadcast", "Squeeze", "Unsqueeze",
))  # fmt: skip
_HEAVY = ("Convolution", "Deconvolution", "FullyConnected", "GroupConvolution", "MatMul")
_INT8 = ("int8", "uint8")
_MOST_NODES = 50


def precision_facts(compiled: ov.CompiledModel, options: Options) -> Figures:
    """Collect the executed layers by kind, and the share of each type."""
    layers = [layer for layer in executed_layers(compiled) if not is_preprocessing(layer[3])]
    dtypes = (dtype for _, kind, dtype, _ in layers if kind not in _COMPUTES_NOTHING)
    heavy = (dtype == "int8" for _, kind, dtype, _ in layers if kind in _HEAVY)
    facts = layer_facts((kind for _, kind, _, _ in layers), dtypes, "engine")
    return {**facts, **int8_layers(heavy, options)}


def layers_by_time(
    compiled: ov.CompiledModel, times_ms: Mapping[str, list[float]]
) -> list[Figures]:
    """Collect the slowest layers of a model compiled with PERF_COUNT, the slowest first."""
    layers = {name: (kind, dtype, nodes) for name, kind, dtype, nodes in executed_layers(compiled)}
    entries: list[Figures] = []
    for name, timed in slowest({name: statistics.median(ms) for name, ms in times_ms.items()}):
        kind, dtype, nodes = layers.get(name, ("layer", None, []))
        facts = {"name": name, "kind": kind, "precision": dtype}
        entries.append({**facts, **timed, "nodes": nodes[:_MOST_NODES]})
    return entries


def executed_layers(compiled: ov.CompiledModel) -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield name, kind, type and ONNX nodes of each executed layer."""
    for op in compiled.get_runtime_model().get_ordered_ops():
        facts: dict[str, Any] = {key: str(value.value) for key, value in op.get_rt_info().items()}
        dtype = facts.get("runtimePrecision", "")
        dtype = DTYPES.get(dtype, dtype) or "unknown"
        names = [name for name in facts.get("originalLayersNames", "").split(",") if name]
        nodes = [name for name in names if not name.startswith(("Constant_", "Convert_"))]
        kind = facts.get("layerType", op.get_type_name())
        # u8 activations with i8 weights
        yield op.get_friendly_name(), kind, "int8" if dtype in _INT8 else dtype, nodes
