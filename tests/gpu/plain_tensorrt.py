"""TensorRT used directly, to compare with buildsys.

Runs in an interpreter with TensorRT, numpy and cuda-bindings:

plain_tensorrt.py build ONNX ENGINE PRECISION MIN OPT MAX   builds an engine with a dynamic batch
plain_tensorrt.py compare ENGINE CASE                       times bare loops and the harness
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorrt as trt

sys.path.append(str(Path(__file__).parents[2]))

from buildsys.backends.cuda.device import CudaGraph, Device
from buildsys.backends.measurement import GpuContender, GpuTiming
from buildsys.onnx_graphs.tensors import load_case
from buildsys.stages.bench.local_engine import LocalEngine

ROUNDS, RUNS = 12, 100
LOGGER = trt.Logger(trt.Logger.ERROR)


def build(onnx: str, engine: str, precision: str, *batches: str) -> dict[str, Any]:
    begun = time.perf_counter()
    builder = trt.Builder(LOGGER)
    explicit = getattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    network = builder.create_network(0 if explicit is None else 1 << int(explicit))
    parser = trt.OnnxParser(network, LOGGER)
    assert parser.parse(Path(onnx).read_bytes()), [
        parser.get_error(n).desc() for n in range(parser.num_errors)
    ]
    config = builder.create_builder_config()
    if precision == "fp16" and hasattr(trt.BuilderFlag, "FP16"):
        config.set_flag(trt.BuilderFlag.FP16)
    if hasattr(trt.PreviewFeature, "PROFILE_SHARING_0806") and trt.__version__.startswith("8."):
        config.set_preview_feature(trt.PreviewFeature.PROFILE_SHARING_0806, True)
    sources = [
        1 << int(getattr(trt.TacticSource, name))
        for name in ("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")
        if hasattr(trt.TacticSource, name)
    ]
    config.set_tactic_sources(sum(sources))
    profile = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        profile.set_shape(
            tensor.name, *((int(batch), *tuple(tensor.shape)[1:]) for batch in batches)
        )
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    assert plan is not None
    Path(engine).write_bytes(plan)
    return {
        "tensorrt": trt.__version__,
        "build_s": time.perf_counter() - begun,
        "bytes": Path(engine).stat().st_size,
    }


def compare(engine: str, case: str) -> dict[str, Any]:
    """Return times in ms of bare loops and the harness, neighbours in turns."""
    options = json.loads(os.environ["ENGINE_OPTIONS"])
    ours = LocalEngine(options["backend"], Path(engine), options, ())
    contenders = ours.bind(Path(case), GpuTiming(cuda_graph=(False, True)))
    bare = Bare(Path(engine), Path(case))
    taken: dict[str, list[float]] = {}

    def time_harness(name: str, contender: GpuContender) -> None:
        contender.block(0.02, 2)
        samples = contender.block(0.2, RUNS)
        taken.setdefault(f"{name}.gpu", []).append(statistics.median(samples.gpu_ns) / 1e6)
        taken.setdefault(f"{name}.wall", []).append(statistics.median(samples.wall_ns) / 1e6)

    def time_bare(name: str, launch: Callable[[], object]) -> None:
        taken.setdefault(f"{name}.queued", []).append(bare.queued(launch))
        gpu, wall = bare.one_at_a_time(launch)
        taken.setdefault(f"{name}.alone_gpu", []).append(gpu)
        taken.setdefault(f"{name}.alone_wall", []).append(wall)

    for number in range(ROUNDS):
        for contender, launch in zip(contenders.items(), bare.launches().items(), strict=True):
            if number % 2:
                time_harness(*contender)
            time_bare(*launch)
            if not number % 2:
                time_harness(*contender)
    facts = ours.facts()
    bare.close()
    ours.close()
    return {
        "ms": {name: statistics.median(values) for name, values in taken.items()},
        "rounds": taken,
        "facts": facts,
    }


class Bare:
    """An engine in loops of ``execute_async_v3``, without the harness."""

    def __init__(self, engine: Path, case: Path) -> None:
        self.device = Device(0)
        with self.device.current():
            self.runtime = trt.Runtime(LOGGER)
            self.engine = self.runtime.deserialize_cuda_engine(engine.read_bytes())
            self.context = self.engine.create_execution_context()
            inputs = load_case(case).inputs
            names = [
                self.engine.get_tensor_name(index) for index in range(self.engine.num_io_tensors)
            ]
            for name in (name for name in names if name in inputs):
                array = inputs[name].array
                self.context.set_input_shape(name, array.shape)
                buffer = self.device.allocate(array.nbytes)
                buffer.upload(array)
                self.context.set_tensor_address(name, buffer.address)
            for name in (name for name in names if name not in inputs):
                size = int(np.prod(tuple(self.context.get_tensor_shape(name)))) * 4
                self.context.set_tensor_address(name, self.device.allocate(size).address)
            self.begin, self.end = self.device.new_event(), self.device.new_event()
            stream = self.device.main_stream
            number = int(stream.handle)
            self.context.execute_async_v3(number)
            stream.synchronize()
            self.graph = self.device.hold(
                CudaGraph(stream, lambda: self.context.execute_async_v3(number))
            )

    def launches(self) -> dict[str, Callable[[], object]]:
        execute, stream = self.context.execute_async_v3, self.device.main_stream
        number = int(stream.handle)
        return {"bare": lambda: execute(number), "bare_graph": lambda: self.graph.launch(stream)}

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

    def one_at_a_time(self, launch: Callable[[], object]) -> tuple[float, float]:
        stream, gpu, wall = self.device.main_stream, [], []
        with self.device.current():
            for _ in range(RUNS):
                start = time.perf_counter_ns()
                self.begin.record(stream)
                launch()
                self.end.record(stream)
                self.end.wait()
                wall.append((time.perf_counter_ns() - start) / 1e6)
                gpu.append(self.end.elapsed_ns(self.begin) / 1e6)
        return statistics.median(gpu), statistics.median(wall)

    def close(self) -> None:
        with self.device.current():
            self.context = self.engine = self.runtime = None
        self.device.close()


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    answer = {"build": build, "compare": compare}[command](*arguments)
    with Path(os.environ["ANSWER"]).open("w") as file:
        json.dump(answer, file)
