"""A small network with calibration; its stages run without the orchestrator."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from small_graphs import parse, weights
from stage_jobs import job_files, manifest

from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.onnx_graphs.tensors import save_case, tensor_of
from buildsys.plan.action import Action
from buildsys.project.plan import plan_model
from buildsys.stages.calibrate import stage as calibrate
from buildsys.stages.convert import stage as convert
from buildsys.stages.engine import stage as engine
from buildsys.stages.search import stage as search
from buildsys.stages.verify import stage as verify
from buildsys.workers.job import Job, StageResult

STAGES = {
    "calibrate": calibrate,
    "search": search,
    "convert": convert,
    "engine": engine,
    "verify": verify,
}
FLOAT = TensorProto.FLOAT


def images_net(opset: int = 17) -> onnx.ModelProto:
    """conv → relu → conv → global average pool → flatten → gemm, on images of 3 x 8 x 8."""
    text = """(float[batch,3,8,8] x) => (float[batch,5] y) {
        ["/first"] c1 = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
        ["/relu"] r1 = Relu(c1)
        ["/second"] c2 = Conv <pads = [1, 1, 1, 1]> (r1, w2)
        ["/pool"] p = GlobalAveragePool(c2)
        ["/flat"] f = Flatten(p)
        ["/head"] y = Gemm <transB = 1, beta = 0.5> (f, w3, b3) }"""
    stored = {
        "w1": weights(4, 3, 3, 3), "b1": weights(4, seed=1), "w2": weights(4, 4, 3, 3, seed=2),
        "w3": weights(5, 4, seed=3), "b3": 4 * weights(5, seed=4),
    }  # fmt: skip
    return parse(text, stored, opset)


def overflowing_net() -> onnx.ModelProto:
    """conv → pool → gemm with values around 1e7 in the middle, and unnamed nodes."""
    text = """(float[batch,3,8,8] x) => (float[batch,5] y) {
        ["/first"] c = Conv <pads = [1, 1, 1, 1]> (x, w1)
        ["/k"] k = Constant <value = float[1] {1000.0}> ()
        ["/up"] a = Mul(c, k)
        b = Mul(a, k)
        d = Div(b, k)
        ["/down"] e = Div(d, k)
        ["/pool"] p = GlobalAveragePool(e)
        ["/flat"] f = Flatten(p)
        ["/head"] y = Gemm <transB = 1> (f, w3) }"""
    return parse(text, {"w1": weights(4, 3, 3, 3), "w3": weights(5, 4, seed=3)})


def uneven_net() -> onnx.ModelProto:
    """``images_net`` with channels that one scale cannot hold: smaller by up to a million."""
    scale, model = np.logspace(0, -6, 4).astype(np.float32), images_net()
    stored = initializers(model)
    replace_weights(
        model,
        w1=stored["w1"] * scale.reshape(4, 1, 1, 1),
        b1=stored["b1"] * scale,
        w2=stored["w2"] / scale.reshape(1, 4, 1, 1),
    )
    return model


def initializers(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def replace_weights(model: onnx.ModelProto, **arrays: np.ndarray) -> None:
    for tensor in model.graph.initializer:
        if tensor.name in arrays:
            tensor.CopyFrom(numpy_helper.from_array(arrays[tensor.name], tensor.name))


def image_manifest(precision: str = "int8", **sections: Any) -> dict[str, Any]:
    """Return a manifest with one engine; calibration data is random by default."""
    calibration = {
        "data": {"x": {"random": "normal"}},
        "batches": 2,
        **sections.pop("calibration", {}),
    }
    return manifest(
        source={"onnx": "net.onnx"},
        inputs={"x": {"shape": ("batch", 3, 8, 8)}},
        engines=({"backend": "onnxruntime", "name": "e", "precision": precision},),
        calibration={name: value for name, value in calibration.items() if value is not None},
        **sections,
    )


class Chain:
    """A build folder with the simplified graph and its golden outputs."""

    def __init__(self, folder: Path, model: onnx.ModelProto | None = None, **sections: Any) -> None:
        self.project, self.build = folder, folder / "build"
        self.resolved = image_manifest(**sections)
        self.model = model or images_net()
        graph = self.build / "m/simplify/model.onnx"
        graph.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(self.model, graph)
        self._golden()

    def action(self, target: str) -> Action:
        return next(action for action in plan_model(self.resolved) if action.target == target)

    def run(self, target: str, stage: str = "", **options: Any) -> StageResult:
        """Run a target, or another stage with its inputs and further options."""
        action = self.action(target)
        job = Job(
            target=target,
            stage=action.stage,
            model="m",
            variant=action.variant,
            options={**action.options, **options},
            project=self.project,
            **job_files(action, self.build),
        )
        return STAGES[stage or action.stage].run(job)

    def quantize(self, precision: str = "int8") -> StageResult:
        self.run("calibrate:m")
        return self.run(f"convert:m:{precision}")

    def quantized(self, precision: str = "int8") -> onnx.ModelProto:
        return onnx.load(self.build / f"m/convert/{precision}/model.onnx")

    def _golden(self) -> None:
        graph = OrtGraph(self.build / "m/simplify/model.onnx")
        folder = self.build / "m/reference"
        folder.mkdir(parents=True, exist_ok=True)
        for case, batch in {"min": 1, "opt": 3, "max": 8, "odd": 5}.items():
            values = (
                np.random.default_rng(batch).standard_normal((batch, 3, 8, 8)).astype(np.float32)
            )
            inputs = {"x": tensor_of(values)}
            save_case(folder / f"{case}.npz", inputs, graph.run(inputs))
