"""Jobs of the surgery stage on small graphs, from manifests through schema and plan."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from small_graphs import data_role, write

from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.errors import BuildsysError
from buildsys.manifest.shape_cases import concrete_shape
from buildsys.models.golden_inputs import golden_input
from buildsys.onnx_graphs.onnx_file import load_model
from buildsys.onnx_graphs.tensors import Case, Tensor, load_case, save_case, tensor_of
from buildsys.project.model import ModelSpec
from buildsys.project.plan import plan_model
from buildsys.stages.surgery import stage as surgery
from buildsys.workers.job import Job, StageResult

X = {"x": {"shape": ["batch", 3, 8, 8]}}
BATCH = {"batch": {"min": 1, "opt": 2, "max": 4}}


def resolved(steps: Sequence[Mapping[str, Any]], **sections: Any) -> dict[str, Any]:
    """Return the manifest of an ONNX file with these steps after its export."""
    defaults = {"model": "m", "source": {"onnx": "m.onnx"}, "inputs": X, "dims": BATCH}
    spec = ModelSpec.model_validate({**defaults, "surgery": list(steps), **sections})
    return spec.model_dump(mode="json", by_alias=True)


class Surgery:
    """A project with an exported graph, its golden cases and its surgery target."""

    def __init__(
        self, folder: Path, model: onnx.ModelProto, steps: Sequence[Mapping[str, Any]], **more: Any
    ) -> None:
        self.folder = folder
        self._spec = resolved(steps, **more)
        actions = {action.target: action for action in plan_model(self._spec)}
        action = next(action for action in actions.values() if action.stage == "surgery")
        build = folder / "build"
        write(build / "m/export", model)
        self._save_golden(build, actions["reference:m"].options)
        outputs = {role: build / ref.path for role, ref in action.outputs.items()}
        outputs["model"].parent.mkdir(parents=True, exist_ok=True)
        inputs = {role: build / ref.path for role, ref in action.inputs.items()}
        self.job = Job(
            target=action.target,
            stage="surgery",
            model="m",
            variant="after_export",
            options=action.options,
            inputs={
                **{k: v for k, v in inputs.items() if v.is_file()},
                **data_role(inputs["model"]),
            },
            outputs=outputs,
            project=folder,
        )

    def _save_golden(self, build: Path, options: Mapping[str, Any]) -> None:
        graph = OrtGraph(build / "m/export/model.onnx")
        (build / "m/reference").mkdir()
        for case, dims in options["cases"].items():
            inputs = {
                name: golden_input(
                    name,
                    concrete_shape(tensor["shape"], dims),
                    tensor["dtype"],
                    options["data"][name],
                    case=case,
                    seed=0,
                    project=self.folder,
                )
                for name, tensor in options["inputs"].items()
            }
            save_case(build / f"m/reference/{case}.npz", inputs, graph.run(inputs))

    def add_further_case(self, name: str, batch: int, **outputs: Tensor) -> None:
        """Add a golden case for validate, with ``outputs`` instead of the graph's."""
        x = tensor_of(np.random.default_rng(1).standard_normal((batch, 3, 8, 8)), "float32")
        found = OrtGraph(self.job.inputs["model"]).run({"x": x})
        path = self.folder / f"build/m/reference/{name}.npz"
        save_case(path, {"x": x}, {**found, **outputs})
        self.job = replace(self.job, inputs={**self.job.inputs, f"case.{name}": path})

    def run(self) -> StageResult:
        return surgery.run(self.job)

    def error(self) -> str:
        """Return the message of a failing run."""
        try:
            result = self.run()
        except BuildsysError as error:
            return str(error)
        assert result.status == "failed"
        return f"{result.reason}; {result.hint}"

    @property
    def graph(self) -> onnx.ModelProto:
        return load_model(self.job.outputs["model"])

    def case(self, name: str) -> Case:
        return load_case(self.job.outputs[f"case.{name}"])

    def golden(self, name: str) -> Case:
        return load_case(self.job.inputs[f"case.{name}"])


def hook(folder: Path, text: str, name: str = "plugins/hooks/hook.py") -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text))


def agree(surgery: Surgery, case: str) -> None:
    """Check the new golden cases against the changed graph."""
    golden = surgery.case(case)
    found = OrtGraph(surgery.job.outputs["model"]).run(golden.inputs)
    assert set(found) == set(golden.outputs)
    for name, tensor in golden.outputs.items():
        assert tensor.dtype == found[name].dtype
        np.testing.assert_allclose(found[name].array, tensor.array, rtol=1e-4, atol=1e-6)
