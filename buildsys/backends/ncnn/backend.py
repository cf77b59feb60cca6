"""ncnn: networks for phones and boards, run here on the CPU.

ncnn checks nothing: inputs of other types or shapes give wrong numbers or end the process, and
errors are return codes. Everything is checked before it gets there.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ncnn
import numpy as np

from buildsys.backends.declared_ports import check_inputs, int32_array, ports_of
from buildsys.backends.interface import BuildRequest, Figures, OperatorUse, Options, Profiles, Run
from buildsys.backends.layer_figures import layer_facts
from buildsys.backends.ncnn.description import DESCRIPTION, PORTS, layer_kinds
from buildsys.errors import StageError
from buildsys.onnx_graphs.graph_reader import require_onnx
from buildsys.onnx_graphs.tensors import Array, Tensor, tensor_of
from buildsys.system.cpu import cpu_model, usable_cores

RUN_OPTIONS: Options = {"threads": 0}
_FLAGS = {
    "fp16": ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic"),
    "bf16": ("use_bf16_packed", "use_bf16_storage"),
}
_AGAIN = "copy the engine's whole folder again, or build it"


def prepare(options: Options) -> None:
    """Accept all options; ncnn computes in float32 where a processor lacks a type."""


def build(request: BuildRequest) -> Figures:
    """Write network, weights and interface; run it once."""
    require_onnx()
    from buildsys.backends.ncnn.conversion import convert

    options, engine = request.options, request.engine
    with TemporaryDirectory(dir=engine.parent) as folder:
        converted = convert(request, Path(folder))
        converted.param.replace(engine)
        converted.weights.replace(engine.with_name(DESCRIPTION.data_file))
    text = json.dumps(converted.interface, sort_keys=True)
    engine.with_name(PORTS).write_text(text + "\n")
    request.progress("running the network")
    session = NcnnSession(engine, options)
    smallest = {name: span["min"] for name, span in converted.interface["dims"].items()}
    session.run({
        port.name: tensor_of(np.zeros([smallest.get(str(n), n) for n in port.shape], port.dtype))
        for port in session.inputs
    })  # fmt: skip
    settings = {
        "precision": options["precision"],
        "threads": int(options["threads"]) or usable_cores(),
        "weights": "float16" if options["precision"] == "fp16" else "float32",
        **_flags(options["precision"]),
    }
    return {"settings": settings, "profiles": [], "messages": []}


def describe(engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()) -> Figures:
    """Describe layers, inputs and outputs."""
    interface = read_interface(engine)
    facts = layer_facts(layer_kinds(engine), (), "network")
    for role in ("inputs", "outputs"):
        names = ("name", "dtype", "shape")
        facts[role] = [{name: port[name] for name in names} for port in interface[role]]
    return facts


def load(engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()) -> "NcnnSession":
    """Load a built engine."""
    return NcnnSession(engine, options)


def device(options: Options) -> Figures:
    """Describe the CPU."""
    return {"kind": "cpu", "name": cpu_model(), "cores": usable_cores()}


def _flags(precision: str) -> dict[str, bool]:
    """Return ncnn's options for a precision; by default it computes in fp16."""
    return {flag: precision == dtype for dtype, flags in _FLAGS.items() for flag in flags}


def read_interface(engine: Path) -> dict[str, Any]:
    """Read names, types and ranges of an engine."""
    try:
        interface: dict[str, Any] = json.loads(engine.with_name(PORTS).read_text())
    except (OSError, ValueError) as error:
        text = f"ncnn cannot load {PORTS}: it is missing or damaged"
        raise StageError(text, _AGAIN) from error
    return interface


class NcnnSession:
    """A loaded engine."""

    profiles: Profiles = ()

    def __init__(self, engine: Path, options: Options) -> None:
        """Load the network; raise StageError for a damaged one."""
        self._interface = read_interface(engine)
        self.inputs, self.outputs = (
            ports_of(self._interface[role]) for role in ("inputs", "outputs")
        )
        self._net = ncnn.Net()
        settings = self._net.opt
        settings.num_threads = int(options["threads"]) or usable_cores()
        settings.use_vulkan_compute = False
        for flag, value in _flags(options["precision"]).items():
            setattr(settings, flag, value)
        weights = engine.with_name(DESCRIPTION.data_file)
        loads = ((engine, self._net.load_param), (weights, self._net.load_model))
        for file, read in loads:
            if not file.is_file() or read(str(file)):
                raise StageError(f"ncnn cannot load {file.name}: it is missing or damaged", _AGAIN)

    def run(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> dict[str, Tensor]:
        """Return the outputs by name."""
        results = [self._extract(sample) for sample in self._samples(inputs)]
        outputs = {}
        for port, mats in zip(self._interface["outputs"], zip(*results, strict=True), strict=True):
            arrays = [_array_of(mat, port) for mat in mats]
            is_batch = isinstance(next(iter(port["shape"]), None), str)
            array = np.concatenate(arrays) if is_batch else arrays[0]
            outputs[port["name"]] = tensor_of(array, port["dtype"])
        return outputs

    def bind(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> Run:
        """Return a call that leaves its outputs in the library's memory."""
        self.run(inputs, profile)  # reports wrong inputs
        samples = self._samples(inputs)
        return lambda: [self._extract(sample) for sample in samples]

    def close(self) -> None:
        """Free the network."""
        self._net.clear()
        del self._net

    def duplicate(self) -> "NcnnSession":
        """Return this session: every call has its own memory."""
        return self

    def _extract(self, sample: list[ncnn.Mat]) -> list[ncnn.Mat]:
        """Compute the outputs of one sample."""
        extractor, outputs = self._net.create_extractor(), []
        codes = [extractor.input(f"in{index}", mat) for index, mat in enumerate(sample)]
        for index in range(len(self.outputs)):
            code, mat = extractor.extract(f"out{index}")
            codes.append(code)
            outputs.append(mat)
        if any(codes):
            text = f"ncnn cannot run the engine: it returned {', '.join(map(str, codes))}"
            raise StageError(text, "the log has ncnn's messages")
        return outputs

    def _samples(self, inputs: Mapping[str, Tensor]) -> list[list[ncnn.Mat]]:
        """Return the inputs of each sample, in memory of their own."""
        check_inputs(self.inputs, self._interface["dims"], inputs)
        arrays = []
        for port in self.inputs:
            array = inputs[port.name].array
            array = int32_array(port.name, array, "ncnn") if port.dtype == "int64" else array
            arrays.append(np.ascontiguousarray(array))  # a scalar becomes a vector
        varies = [isinstance(next(iter(port.shape), None), str) for port in self.inputs]
        count = next((len(a) for a, varied in zip(arrays, varies, strict=True) if varied), 1)
        axes = [port["batch_axis"] for port in self._interface["inputs"]]
        return [
            [
                # a Mat refers to the array's memory: a clone has its own
                ncnn.Mat(array[index : index + 1] if varied else array, batch_index=axis).clone()
                for array, varied, axis in zip(arrays, varies, axes, strict=True)
            ]
            for index in range(count)
        ]


def _array_of(mat: ncnn.Mat, port: Mapping[str, Any]) -> Array:
    """Copy an output of one sample into an array of the graph's shape."""
    array: Array = np.array(mat.numpy(batch_index=port["batch_axis"]))
    shape = [1 if isinstance(size, str) else size for size in port["shape"]]
    same = [n for n in array.shape if n != 1] == [n for n in shape if n != 1]
    if array.dtype != np.float32 or not same:
        text = f"ncnn returns {port['name']} as {array.dtype} {list(array.shape)}"
        text = f"{text} instead of {port['dtype']} {shape}"
        raise StageError(text, "build this engine with another backend")
    return array.reshape(shape)
