"""TensorRT used directly, to compare with buildsys.

Runs in an interpreter with TensorRT, numpy and cuda-bindings:

plain_tensorrt.py build ONNX ENGINE PRECISION MIN OPT MAX   builds an engine with a dynamic batch
plain_tensorrt.py compare ENGINE CASE                       times bare loops and the harness
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorrt as trt
from cuda.bindings import driver as cuda

sys.path.append(str(Path(__file__).parents[2]))

from buildsys.backends.cuda_device import CudaGraph, Device
from buildsys.backends.measurement import GpuContender, GpuTiming
from buildsys.onnx_graphs.tensors import load_case
from buildsys.stages.bench.timed_engine import LocalEngine

ROUNDS, RUNS = 12, 100
LOGGER = trt.Logger(trt.Logger.ERROR)


def build_plan(
    fill: Callable[[Any], object], profiles: Sequence[Sequence[int]], *, fp16: bool = True
) -> Any:
    """Build the network that ``fill`` defines, with one profile per range of batches.

    What ``fill`` returns is kept until the engine is built.
    """
    builder = trt.Builder(LOGGER)
    explicit = getattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    network = builder.create_network(0 if explicit is None else 1 << int(explicit))
    keeper = fill(network)
    config = builder.create_builder_config()
    if fp16 and hasattr(trt.BuilderFlag, "FP16"):
        config.set_flag(trt.BuilderFlag.FP16)
    if trt.__version__.startswith("8."):
        config.set_preview_feature(trt.PreviewFeature.PROFILE_SHARING_0806, True)
    names = ("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")
    sources = [
        1 << int(getattr(trt.TacticSource, n)) for n in names if hasattr(trt.TacticSource, n)
    ]
    config.set_tactic_sources(sum(sources))
    for batches in profiles:
        profile = builder.create_optimization_profile()
        for index in range(network.num_inputs):
            tensor = network.get_input(index)
            rest = tuple(tensor.shape)[1:]
            profile.set_shape(tensor.name, *((batch, *rest) for batch in batches))
        config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    assert plan is not None
    del keeper
    return plan


def build(onnx: str, engine: str, precision: str, *batches: str) -> dict[str, Any]:
    def parse(network: Any) -> object:
        parser = trt.OnnxParser(network, LOGGER)
        assert parser.parse(Path(onnx).read_bytes()), parser.get_error(0).desc()
        return parser

    begun = time.perf_counter()
    plan = build_plan(parse, [list(map(int, batches))], fp16=precision == "fp16")
    Path(engine).write_bytes(plan)
    return {"tensorrt": trt.__version__, "build_s": time.perf_counter() - begun}


def compare(engine: str, case: str) -> dict[str, list[float]]:
    """Return times in ms of bare loops and the harness, neighbours in turns."""
    options = json.loads(os.environ["ENGINE_OPTIONS"])
    ours = LocalEngine(options["backend"], Path(engine), options, ())
    contenders = ours.bind(Path(case), GpuTiming(cuda_graph=(False, True)))
    inputs = {name: tensor.array for name, tensor in load_case(Path(case)).inputs.items()}
    bare = Bare(Path(engine), inputs)
    taken: dict[str, list[float]] = {}

    def time_harness(name: str, contender: GpuContender) -> None:
        contender.block(0.02, 2)
        samples = contender.block(0.2, RUNS)
        taken.setdefault(f"{name}.gpu", []).append(statistics.median(samples.gpu_ns) / 1e6)

    def time_bare(name: str, launch: Callable[[], object]) -> None:
        taken.setdefault(f"{name}.queued", []).append(bare.queued(launch))

    launches = bare.launches()
    for number in range(ROUNDS):
        for contender, launch in zip(contenders.items(), launches.items(), strict=True):
            if number % 2:
                time_harness(*contender)
            time_bare(*launch)
            if not number % 2:
                time_harness(*contender)
    bare.close()
    ours.close()
    return taken


class Bare:
    """An engine in TensorRT's own API, with buffers for inputs of fixed shapes."""

    def __init__(self, engine: Path, inputs: Mapping[str, np.ndarray], profile: int = 0) -> None:
        self.device = Device(0)
        with self.device.current():
            self.runtime = trt.Runtime(LOGGER)
            self.engine = self.runtime.deserialize_cuda_engine(engine.read_bytes())
            self.context = self.engine.create_execution_context()
            self.stream = int(self.device.main_stream.handle)
            self.context.set_optimization_profile_async(profile, self.stream)
            self.device.main_stream.synchronize()
            names = [self.engine.get_tensor_name(n) for n in range(self.engine.num_io_tensors)]
            for name, array in inputs.items():
                self.context.set_input_shape(name, array.shape)
            self.shapes = {name: tuple(self.context.get_tensor_shape(name)) for name in names}
            self.outputs = [name for name in names if name not in inputs]
            self.buffers = {
                name: self.device.allocate(int(np.prod(shape)) * 4)
                for name, shape in self.shapes.items()
            }
            for name, buffer in self.buffers.items():
                self.context.set_tensor_address(name, buffer.address)
            for name, array in inputs.items():
                self.buffers[name].upload(array)
            self.begin, self.end = self.device.new_event(), self.device.new_event()

    def host(self, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Copy to the GPU, compute, copy to new arrays: what a program without us does."""
        stream, buffers, results = self.stream, self.buffers, {}
        for name, array in inputs.items():
            cuda.cuMemcpyHtoDAsync(buffers[name].handle, array.ctypes.data, array.nbytes, stream)
        self.context.execute_async_v3(stream)
        for name in self.outputs:
            target = results[name] = np.empty(self.shapes[name], np.float32)
            cuda.cuMemcpyDtoHAsync(target.ctypes.data, buffers[name].handle, target.nbytes, stream)
        cuda.cuStreamSynchronize(stream)
        return results

    def on_device(self) -> None:
        self.context.execute_async_v3(self.stream)
        cuda.cuStreamSynchronize(self.stream)

    def launches(self) -> dict[str, Callable[[], object]]:
        execute, stream = self.context.execute_async_v3, self.device.main_stream
        with self.device.current():
            self.on_device()  # includes one-time work
            graph = self.device.hold(CudaGraph(stream, lambda: execute(self.stream)))
        return {"bare": lambda: execute(self.stream), "bare_graph": lambda: graph.launch(stream)}

    def queued(self, launch: Callable[[], object]) -> float:
        stream = self.device.main_stream
        with self.device.current():
            for _ in range(5):
                launch()
            self.begin.record(stream)
            for _ in range(RUNS):
                launch()
            self.end.record(stream)
            self.end.wait()
            return self.end.elapsed_ns(self.begin) / RUNS / 1e6

    def close(self) -> None:
        with self.device.current():
            self.context = self.engine = self.runtime = None
        self.device.close()


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    answer = {"build": build, "compare": compare}[command](*arguments)
    with Path(os.environ["ANSWER"]).open("w") as file:
        json.dump(answer, file)
