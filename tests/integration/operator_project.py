"""A project with one custom operator, and its stages."""

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from buildsys.onnx_graphs.tensors import save_case, tensor_of
from buildsys.project.model import model_fields
from buildsys.project.plan import plan_model
from buildsys.workers.job import Job, StageResult

OP = "custom_domain::customOp2"
REPOSITORY = Path(__file__).parents[2]
SWISH = """
from onnx import helper

NODES = [("Relu", ["x"], ["z"]), ("Sigmoid", ["z"], ["s"]), ("Mul", ["z", "s"], ["y"])]


def swish():
    nodes = [helper.make_node(*node) for node in NODES]
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_function("custom_domain", "customOp2", ["x"], ["y"], nodes, opsets)
"""
NEGATIVE = SWISH.replace('("Mul", ["z", "s"], ["y"])', '("Neg", ["s"], ["y"])')
_VALUE = helper.make_tensor_value_info


@dataclass(frozen=True)
class OperatorProject:
    """A project in a folder, with its build folder."""

    root: Path

    def write(self, path: str, text: str | bytes) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())

    def take(self, *paths: str) -> None:
        """Copy files of this repository."""
        for path in paths:
            self.write(path, (REPOSITORY / path).read_bytes())

    def plan(self, ops: Iterable[Mapping[str, Any]], **sections: Any) -> dict[str, Any]:
        """Return target -> action of a model from an ONNX file."""
        spec = {
            "model": "m",
            "source": {"onnx": "m.onnx"},
            "inputs": {"x": {"shape": ["batch", 4]}},
            "outputs": {"y": {"shape": ["batch", 4]}},
            "dims": {"batch": {"min": 1, "opt": 2, "max": 4}},
            "engines": [
                {"backend": "onnxruntime", "name": "ort"},
                {"backend": "tensorrt_rtx", "name": "rtx"},
            ],
            "ops": list(ops),
            **sections,
        }
        resolved = model_fields(spec)
        return {action.target: action for action in plan_model(resolved)}

    def run(self, target: str, ops: Iterable[Mapping[str, Any]], **sections: Any) -> StageResult:
        """Run a stage of the model in this process, on the outputs of earlier stages."""
        action = self.plan(ops, **sections)[target]
        build = self.root / "build"
        outputs = {role: build / ref.path for role, ref in action.outputs.items()}
        for path in outputs.values():
            path.parent.mkdir(parents=True, exist_ok=True)
        inputs = {role: build / ref.path for role, ref in action.inputs.items()}
        inputs = {role: path for role, path in inputs.items() if path.is_file()}
        job = Job(
            target, action.stage, "m", action.variant, action.options, inputs, outputs, self.root
        )
        result: StageResult = import_module(f"buildsys.stages.{action.stage}.stage").run(job)
        return result

    def run_all(
        self, targets: Iterable[str], ops: Iterable[Mapping[str, Any]], **sections: Any
    ) -> StageResult:
        """Run stages in order; each must pass. Return the last result."""
        ops = list(ops)
        for target in targets:
            result = self.run(target, ops, **sections)
            assert result.status == "passed", (target, result)
        return result

    def built(self, path: str) -> Path:
        return self.root / "build" / "m" / path

    def save_graph(self, *, opset: int = 17, **attributes: Any) -> None:
        """Write an ONNX file with a single node of the operator."""
        node = helper.make_node(
            "customOp2", ["x"], ["y"], "swish", domain="custom_domain", **attributes
        )
        shape = ["batch", 4]
        graph = helper.make_graph(
            [node],
            "m",
            [_VALUE("x", TensorProto.FLOAT, shape)],
            [_VALUE("y", TensorProto.FLOAT, shape)],
        )
        imports = [helper.make_opsetid("", opset), helper.make_opsetid("custom_domain", 1)]
        onnx.save(
            helper.make_model(graph, opset_imports=imports, ir_version=9), self.root / "m.onnx"
        )

    def save_golden(self) -> None:
        """Write the operator's results as golden outputs."""
        for case, batch in {"min": 1, "opt": 2, "max": 4, "odd": 3}.items():
            x = np.random.default_rng(batch).standard_normal((batch, 4)).astype(np.float32)
            z = np.maximum(x, 0)
            path = self.built(f"reference/{case}.npz")
            path.parent.mkdir(parents=True, exist_ok=True)
            save_case(path, {"x": tensor_of(x)}, {"y": tensor_of(z / (1 + np.exp(-z)))})
