"""Sessions of ONNX Runtime, with tensors of any ONNX type."""

import ctypes
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from buildsys.backends.interface import Port, Profiles, Run
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import BIT_DTYPES, Tensor, tensor_of

_ORT_NAMES = {"float": "float32", "double": "float64"}  # others have ONNX's names
_ONNX_TYPE_NUMBERS = {
    "bfloat16": 16, "float8e4m3fn": 17, "float8e4m3fnuz": 18, "float8e5m2": 19,
    "float8e5m2fnuz": 20, "float8e8m0": 24,
}  # fmt: skip
_PACKED = ("uint4", "int4", "float4e2m1", "uint2", "int2")  # several elements share a byte
FAILURES = (
    *(getattr(ort_errors, name) for name in (
        "EngineError", "EPFail", "Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf",
        "ModelLoaded", "NoModel", "NoSuchFile", "NotImplemented", "RuntimeException",
    ) if hasattr(ort_errors, name)),
    RuntimeError, ValueError, TypeError,
)  # fmt: skip
# with the path, which differs between machines
_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : (Load model from .*? failed: ?)?")
_FAILED_NODE = re.compile(r"while running (\S+) node\. Name:'([^']*)' Status Message: (.*)")
_CODE = re.compile(r"^.*\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_LONGEST = 250  # characters
_CPP_PLACE = re.compile(r"^\S+:\d+ .*? was false\. |^\S+:\d+ \S+ ")
_FLOAT32 = "most kernels are for float32: convert the network and its inputs"
_NO_KERNEL = re.compile(r"Could not find an implementation for (\S+) node with name '([^']*)'")

_LEVELS = {
    "disable": "ORT_DISABLE_ALL", "basic": "ORT_ENABLE_BASIC", "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}  # fmt: skip
_ON_GPU = ("CUDAExecutionProvider", "TensorrtExecutionProvider")  # with inputs in GPU memory

T = TypeVar("T")


class OrtGraph:
    """One ONNX graph loaded in ONNX Runtime."""

    def __init__(
        self,
        model: Path | bytes,
        options: ort.SessionOptions | None = None,
        providers: Sequence[str] | None = ("CPUExecutionProvider",),
        libraries: Iterable[Path] = (),
        title: str = "the graph",
    ) -> None:
        """Load ``model``; a graph with external data needs a path.

        ``libraries`` contain custom operators; each is registered once. ``title`` is for messages.
        Without ``providers``, those of ``options`` are used.
        """
        source = str(model) if isinstance(model, Path) else model
        settings = options or session_options()
        for library in dict.fromkeys(libraries):
            # absolute, or the loader would search its own folders for it
            register = partial(settings.register_custom_ops_library, str(library.absolute()))
            _call(f"cannot take the operator library {library.name}", register)
        self.session: ort.InferenceSession = _call(
            f"cannot load {title}",
            lambda: ort.InferenceSession(
                source, sess_options=settings, providers=providers, enable_fallback=0
            ),
        )
        self._title = title
        self.inputs = tuple(_port(argument) for argument in self.session.get_inputs())
        self.outputs = tuple(_port(argument) for argument in self.session.get_outputs())
        self._input_names = [port.name for port in self.inputs]
        self._names = [port.name for port in self.outputs]
        self._returns_bits = any(port.dtype in BIT_DTYPES for port in self.outputs)

    profiles: Profiles = ()  # it accepts the shapes that its inputs declare

    def run(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> dict[str, Tensor]:
        """Compute the outputs by name; unknown input tensors are ignored."""
        if missing := [name for name in self._input_names if name not in inputs]:
            names_of_inputs = ", ".join(inputs) or "none"
            raise StageError(
                f"the graph needs the input {missing[0]}, and only {names_of_inputs} is given",
                "declare it in the manifest's inputs",
            )
        names, what = self._names, f"cannot run {self._title}"
        feeds = {name: _feed(inputs[name]) for name in self._input_names}
        if not self._returns_bits:
            results = _call(what, lambda: self.session.run(names, feeds))
            return {
                port.name: tensor_of(value) if port.dtype == "string" else Tensor(value, port.dtype)
                for port, value in zip(self.outputs, results, strict=True)
            }
        # with OrtValues: ``run`` cannot return types unknown to numpy
        values = {
            name: ort.OrtValue.ortvalue_from_numpy(feed) if isinstance(feed, np.ndarray) else feed
            for name, feed in feeds.items()
        }
        results = _call(what, lambda: self.session.run_with_ort_values(names, values))
        return {
            port.name: _read(value, port.dtype)
            for port, value in zip(self.outputs, results, strict=True)
        }

    def bind(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> Run:
        """Return a call for inputs and outputs on the device."""
        self.run(inputs)  # reports wrong inputs
        ports = (*self.inputs, *self.outputs)
        if any(port.dtype == "string" or port.dtype in BIT_DTYPES for port in ports):
            return lambda: self.run(inputs)  # a binding cannot hold these types
        session = self.session
        device = "cuda" if set(_ON_GPU) & set(session.get_providers()) else "cpu"
        binding = session.io_binding()
        for port in self.inputs:
            array = np.asarray(inputs[port.name].array, order="C")
            value = ort.OrtValue.ortvalue_from_numpy(array, device, 0)
            binding.bind_ortvalue_input(port.name, value)
        for port in self.outputs:
            binding.bind_output(port.name, device)

        def run() -> None:
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()

        return run

    def duplicate(self) -> "OrtGraph":
        """Return this session: ONNX Runtime runs it in several threads at once."""
        return self

    def close(self) -> None:
        """Free the session's threads and memory, despite remaining references."""
        self.__dict__.pop("session", None)


def session_options(
    *,
    optimization: str = "disable",
    intra_op_threads: int = 0,
    inter_op_threads: int = 1,
    severity: int = 3,
    few_runs: bool = False,
    entries: Mapping[str, str] | None = None,
) -> ort.SessionOptions:
    """Make options for ``OrtGraph``; ``optimization`` is disable, basic, extended or all.

    ``entries`` replace the default configuration. ``few_runs`` disables prepacking of weights: for
    vgg11 it takes half a second and a copy of all weights, too much for a handful of runs.
    ``severity`` 3 logs errors only. The log of ONNX Runtime goes to stderr, in a worker to the
    target's log.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, _LEVELS[optimization])
    options.intra_op_num_threads = intra_op_threads
    options.inter_op_num_threads = inter_op_threads
    options.log_severity_level = severity
    chosen = {
        # int8 weights are unsigned on x86 without VNNI: sums of signed products overflow 16 bits
        "session.x64quantprecision": "1",
        # idle threads sleep: spinning pays only where engines are timed
        "session.intra_op.allow_spinning": "0",
        **({"session.disable_prepacking": "1"} if few_runs else {}),
        **(entries or {}),
    }
    for name, value in chosen.items():  # once each: ONNX Runtime warns of a second value
        options.add_session_config_entry(name, value)
    return options


def _call(what: str, function: Callable[[], T]) -> T:
    """Call ONNX Runtime; raise its error on one line, without its codes."""
    try:
        return function()
    except FAILURES as error:
        raise explain(what, error) from error


def explain(what: str, error: BaseException) -> StageError:
    """Return ONNX Runtime's error as one sentence."""
    text = " ".join(_PREFIX.sub("", str(error)).split())
    kernel, node = _NO_KERNEL.search(text), ""
    if kernel:
        text = f"there is no kernel for {kernel[1]} with these types (node {kernel[2]})"
    while failed := _FAILED_NODE.search(text):  # last, a node in the body of another
        node, text = f"{failed[1]} (node {failed[2]}) failed: ", failed[3]
    text = node + _CPP_PLACE.sub("", _CODE.sub("", text) if node else text)
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return StageError(f"ONNX Runtime {what}: {text}", _FLOAT32 if kernel else "")


def _port(argument: Any) -> Port:
    kind = str(argument.type)
    dtype = kind.removeprefix("tensor(").removesuffix(")")
    if not kind.startswith("tensor("):
        raise StageError(
            f"{argument.name} is a {kind}, and only tensors can be inputs and outputs",
            "build the sequence from tensors in the graph, or return its elements one by one",
        )
    if dtype in _PACKED:
        raise StageError(
            f"{argument.name} has the type {kind}, which cannot be an input or output here",
            "let the network return and take tensors with elements of at least a byte",
        )
    return Port(argument.name, _ORT_NAMES.get(dtype, dtype), tuple(argument.shape))


def _feed(tensor: Tensor) -> Any:
    if tensor.dtype == "string":
        return tensor.array.astype(object)
    array = np.asarray(tensor.array, order="C")
    if tensor.dtype in BIT_DTYPES:
        number = _ONNX_TYPE_NUMBERS[tensor.dtype]
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, number)
    return array


def _read(value: ort.OrtValue, dtype: str) -> Tensor:
    if dtype not in BIT_DTYPES:
        return tensor_of(value.numpy(), dtype)
    shape, stored = tuple(value.shape()), np.dtype(BIT_DTYPES[dtype])
    size = int(np.prod(shape, dtype=np.int64)) * stored.itemsize
    # OrtValue.numpy() refuses these types, so the bytes are copied from memory
    raw = ctypes.string_at(value.data_ptr(), size) if size else b""
    return Tensor(np.frombuffer(raw, stored).reshape(shape).copy(), dtype)
