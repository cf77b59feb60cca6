"""A classifier of scikit-learn's digits, trained in a second, with its engines and samples."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from sklearn.datasets import load_digits
from small_graphs import parse
from stage_jobs import job_files, manifest
from torch import nn

from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.onnx_graphs.tensors import Array, save_case, tensor_of
from buildsys.project.plan import plan_model
from buildsys.stages.calibrate import stage as calibrate
from buildsys.stages.convert import stage as convert
from buildsys.stages.engine import stage as engine
from buildsys.stages.evaluate import stage as evaluate
from buildsys.stages.predict import stage as predict
from buildsys.stages.search import stage as search
from buildsys.stages.verify import stage as verify
from buildsys.system.toolchains import Toolchain
from buildsys.workers.job import Job, StageResult

STAGES = {
    "predict": predict, "calibrate": calibrate, "convert": convert, "engine": engine,
    "evaluate": evaluate, "search": search, "verify": verify,
}  # fmt: skip
TRAINED = 800  # digits; the others are evaluated
NET = """\
from torch import nn


def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
"""


@cache
def digits() -> tuple[Array, Array]:
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return (data.images[order, None] / 16).astype(np.float32), data.target[order]


@cache
def trained() -> Mapping[str, torch.Tensor]:
    """Train with a fixed seed."""
    images, labels = (torch.from_numpy(array[:TRAINED]) for array in digits())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
        optimizer = torch.optim.Adam(net.parameters(), 5e-3)
        for _ in range(120):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
    return net.state_dict()


def graph() -> onnx.ModelProto:
    text = """(float[batch,1,8,8] x) => (float[batch,10] y) {
        ["/flat"] f = Flatten(x)
        ["/first"] a = Gemm <transB = 1> (f, w1, b1)
        ["/relu"] r = Relu(a)
        ["/second"] y = Gemm <transB = 1> (r, w2, b2) }"""
    names = {"w1": "1.weight", "b1": "1.bias", "w2": "3.weight", "b2": "3.bias"}
    return parse(text, {name: trained()[key].numpy() for name, key in names.items()})


def predicted(images: Array) -> Array:
    (scores,) = OrtGraph(graph().SerializeToString()).run({"x": tensor_of(images)}).values()
    return scores.array.argmax(axis=1)


class Digits:
    """A project with the network, its build folder and one engine."""

    net = NET
    trained = staticmethod(trained)
    graph = staticmethod(graph)

    def __init__(self, folder: Path, evaluation: Mapping[str, Any], **sections: Any) -> None:
        """Write network, graph, samples and golden cases."""
        self.project, self.build = folder, folder / "build"
        (folder / "net.py").write_text(self.net)
        torch.save(self.trained(), folder / "weights.pt")
        images, labels = digits()
        np.savez(folder / "val.npz", x=images[TRAINED:], labels=labels[TRAINED:])
        np.savez(folder / "calibration.npz", x=images[:64])
        np.savez(folder / "dark.npz", x=images[:64] * 0.01)
        fields: dict[str, Any] = {
            "source": {"python": "net.py:make", "weights": {"file": "weights.pt"}},
            "inputs": {"x": {"shape": ["batch", 1, 8, 8]}},
            "outputs": {"y": {"shape": ["batch", 10]}},
            "dims": {"batch": {"min": 1, "opt": 32, "max": 64}},
            "engines": [{"backend": "onnxruntime", "name": "e", "intra_op_threads": 1}],
            "evaluate": {"data": {"npz": "val.npz"}, "metric": "top1", **evaluation},
        }
        self.resolved = manifest(**{**fields, **sections})
        self.actions = {action.target: action for action in plan_model(self.resolved)}
        path = self.build / "m/simplify/model.onnx"
        path.parent.mkdir(parents=True)
        onnx.save(self.graph(), path)

    def quantize(self, *targets: str) -> None:
        """Make the golden cases, the ranges and the int8 graph."""
        self.save_golden()
        for target in ("calibrate:m", *(targets or ("convert:m:int8",))):
            self.run(target)

    def save_golden(self) -> None:
        session = OrtGraph(self.graph().SerializeToString())
        for case, batch in {"min": 1, "opt": 32, "max": 64, "odd": 5}.items():
            inputs = {"x": tensor_of(digits()[0][:batch])}
            path = self.build / f"m/reference/{case}.npz"
            path.parent.mkdir(exist_ok=True)
            save_case(path, inputs, session.run(inputs))

    def evaluated(self, toolchain: Toolchain | None = None) -> StageResult:
        """Build the engine, and compare it with the original model."""
        self.run("engine:m:e")
        self.run("predict:m")
        return self.run("evaluate:m:e", toolchain)

    def run(self, target: str, toolchain: Toolchain | None = None) -> StageResult:
        action = self.actions[target]
        job = Job(
            target=target, stage=action.stage, model="m", variant=action.variant,
            options=action.options, project=self.project, toolchain=toolchain,
            in_own_interpreter=toolchain is not None, **job_files(action, self.build),
        )  # fmt: skip
        return STAGES[action.stage].run(job)
