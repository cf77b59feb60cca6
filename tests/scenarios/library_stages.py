"""Stages that use the real libraries, to compare a forked worker with a fresh process.

As a program it does the same without a worker:
``python -m tests.scenarios.library_stages NAME FOLDER``.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from buildsys.workers.job import Job, StageResult


def run(job: Job) -> StageResult:
    return StageResult(figures=STAGES[job.options["do"]](job.outputs["result"].parent))


def export(folder: Path) -> dict[str, str]:
    import torch
    from onnxscript.function_libs.torch_lib import ops, registration

    del ops  # fills the registry, of which every dynamo export parses 500 functions
    functions = registration.default_registry._registry
    for name in set(functions):
        if not any(part in name for part in ("conv", "batch_norm", "relu")):
            del functions[name]
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()
    ).eval()
    image = torch.ones(1, 3, 32, 32)
    digests = {}
    for name, options in {
        "script": {"dynamo": False, "opset_version": 17},
        "dynamo": {"dynamo": True},
    }.items():
        torch.onnx.export(
            network,
            (image,),
            folder / f"{name}.onnx",
            external_data=False,
            verbose=False,
            **options,
        )
        digests[name] = _digest(_without_stack_traces((folder / f"{name}.onnx").read_bytes()))
    digests["output"] = _digest(network(image.expand(16, 3, 32, 32)).detach().numpy().tobytes())
    return digests


def simplify(folder: Path) -> dict[str, str]:
    import numpy as np
    import onnx
    import onnxruntime
    import onnxsim

    rng = np.random.default_rng(0)
    weight = onnx.numpy_helper.from_array(rng.normal(size=(256, 256)).astype(np.float32), "weight")
    nodes = [
        onnx.helper.make_node("Identity", ["weight"], ["same"]),
        onnx.helper.make_node("MatMul", ["x", "same"], ["product"]),
        onnx.helper.make_node("Relu", ["product"], ["y"]),
    ]
    tensors = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [512, 256])
        for name in "xy"
    ]
    graph = onnx.helper.make_graph(nodes, "g", tensors[:1], tensors[1:], [weight])
    opsets = [onnx.helper.make_opsetid("", 17)]
    simple, _ = onnxsim.simplify(onnx.helper.make_model(graph, ir_version=8, opset_imports=opsets))
    assert [node.op_type for node in simple.graph.node] == ["MatMul", "Relu"]
    session = onnxruntime.InferenceSession(
        simple.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    x = rng.normal(size=(512, 256)).astype(np.float32)
    (y,) = session.run(None, {"x": x})
    return {
        "graph": _digest(simple.SerializeToString()),
        "y": _digest(y.tobytes()),
        "blas": _digest((x @ x.T).tobytes()),
    }


def name_loaded(folder: Path) -> dict[str, str]:
    names = ("torch", "sympy", "onnxsim", "onnxruntime", "numpy")
    return {name: str(name in sys.modules) for name in names}


def import_torch(folder: Path) -> dict[str, str]:
    import torch

    return {
        "sum": str(torch.ones(3).sum().item()),
        "found": str(importlib.util.find_spec("torch") is not None),
    }


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
    stage.__name__: stage
    for stage in (export, simplify, name_loaded, import_torch, list_threads, open_rtx_library)
}


def _without_stack_traces(model: bytes) -> bytes:
    """Drop where the exporter was called from: it is not the same place in a worker."""
    import onnx

    proto = onnx.load_from_string(model)
    for node in proto.graph.node:
        del node.metadata_props[:]
    return proto.SerializeToString(deterministic=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    gc.disable()  # a second less while torch is imported
    print(json.dumps(STAGES[sys.argv[1]](Path(sys.argv[2]))), flush=True)
    os._exit(0)
