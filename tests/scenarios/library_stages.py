"""Stages that look at the libraries of their worker."""

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

from buildsys.workers.job import Job, StageResult


def run(job: Job) -> StageResult:
    return StageResult(figures=STAGES[job.options["do"]](job.outputs["result"].parent))


def name_loaded(folder: Path) -> dict[str, str]:
    names = ("torch", "sympy", "onnxsim", "onnxruntime", "numpy")
    return {name: str(name in sys.modules) for name in names}


def find_torch(folder: Path) -> dict[str, str]:
    return {"found": str(importlib.util.find_spec("torch") is not None)}


def list_threads(folder: Path) -> dict[str, str]:
    tasks = {"server": Path(f"/proc/{os.getppid()}/task"), "own": Path("/proc/self/task")}
    return {whose: str(sum(1 for _ in threads.iterdir())) for whose, threads in tasks.items()}


def open_rtx_library(folder: Path) -> dict[str, str]:
    import ctypes

    import tensorrt_rtx

    ctypes.CDLL("libtensorrt_rtx.so")  # as its parser does when it meets a Python plugin
    builder = tensorrt_rtx.Builder(tensorrt_rtx.Logger(tensorrt_rtx.Logger.ERROR))
    network = builder.create_network(0)
    x = network.add_input("x", tensorrt_rtx.float32, (1, 4))
    network.mark_output(network.add_activation(x, tensorrt_rtx.ActivationType.RELU).get_output(0))
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(tensorrt_rtx.ComputeCapability.SM86, 0)
    copies = {
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "libtensorrt_rtx" in line
    }
    engine = builder.build_serialized_network(network, config)
    return {"copies": str(len(copies)), "built": str(engine is not None and engine.nbytes > 0)}


STAGES: dict[str, Callable[[Path], dict[str, str]]] = {
    stage.__name__: stage for stage in (name_loaded, find_torch, list_threads, open_rtx_library)
}
