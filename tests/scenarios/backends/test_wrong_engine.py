"""A wrong engine at batch 2 is reported everywhere."""

import json
from typing import Any

from project_folder import ProjectFolder

from buildsys.project.load import load_project
from buildsys.project.plan import plan_model
from buildsys.stages.report import stage as report
from buildsys.workers.job import Job

NETWORK = '''\
import torch


class BakedIn(torch.nn.Linear):
    """Right in PyTorch; its export gives every item of a batch what the first one gets."""

    def __init__(self):
        super().__init__(4, 3)

    def forward(self, x):
        y = super().forward(x)
        return y[:1].expand(x.shape[0], 3) if torch.onnx.is_in_onnx_export() else y
'''
MANIFEST = """\
model: baked
source: {python: plugins/models/baked.py:BakedIn, seed: 0}
inputs: {x: {shape: [batch, 4]}}
outputs: {y: {shape: [batch, 3]}}
dims: {batch: {min: 1, opt: 2, max: 8}}
engines:
  - {backend: onnxruntime, name: ort}
  - backend: tensorrt_rtx
    name: rtx
    profiles:
      - {x: {min: [1, 4], opt: [1, 4], max: [1, 4]}}
      - {x: {min: [2, 4], opt: [5, 4], max: [6, 4]}}
bench: {duration: 5ms, warmup: 1ms, baselines: [], noise: null}
"""


def report_of(project: ProjectFolder) -> tuple[str, dict[str, Any]]:
    """Return the report on existing results and its figures; a failed check skips it."""
    spec = load_project(project.root).models["baked"].data
    action = next(action for action in plan_model(spec) if action.stage == "report")
    build = project.root / "build"
    inputs = {
        role: build / ref.path
        for role, ref in action.inputs.items()
        if (build / ref.path).is_file()
    }
    outputs = {role: project.root / "expected" / ref.path for role, ref in action.outputs.items()}
    outputs["result"].parent.mkdir(parents=True)
    found = report.run(
        Job(
            target=action.target, stage="report", model="baked", variant="", options=action.options,
            inputs=inputs, outputs=outputs, project=project.root,
        )
    )  # fmt: skip
    return outputs["markdown"].read_text(), dict(found.figures)


def test_exact_at_batch_1_and_wrong_at_batch_2(project: ProjectFolder) -> None:
    (project.root / "plugins/models/baked.py").write_text(NETWORK)
    (project.root / "configs/models/baked.yaml").write_text(MANIFEST)
    ran = project.doit("--continue", "verify:baked:ort", "verify:baked:rtx")
    assert ran.code == 1, ran.out
    line, again = [line for line in ran.out.splitlines() if line.startswith("failed ")]
    wrong = (
        "the engine ort of baked is wrong in 3 of 4 cases: output 'y', case opt (batch 2): at [1, "
    )
    assert wrong in line
    assert line.rstrip().count("it is right in min") == 1
    assert "details: build/baked/verify/ort.json" in line
    assert wrong in again

    result = json.loads((project.root / "build/baked/verify/ort.json").read_text())
    assert (result["status"], result["cases"]["min"]["y"]["passed"]) == ("failed", True)
    assert {failure["case"]: failure["dims"] for failure in result["failures"]} == {
        "opt": {"batch": 2}, "max": {"batch": 8}, "odd": {"batch": 3}
    }  # fmt: skip
    assert all(
        failure["index"][0] > 0 and failure["actual"] != failure["expected"]
        for failure in result["failures"]
    )

    text, figures = report_of(project)
    verdict = next(line for line in text.splitlines() if line.startswith("**"))
    assert "failed" in verdict.lower()
    assert "verify:baked:ort" in verdict
    assert wrong.partition(": at [")[0] in text
    (check,) = [check for check in figures["checks"] if check["target"] == "verify:baked:ort"]
    assert {line["case"]: line["passed"] for line in check["comparisons"]} == {
        "min": True, "opt": False, "max": False, "odd": False
    }  # fmt: skip

    golden = {path.stem for path in (project.root / "build/baked/reference").glob("*.npz")}
    # two for the engine rtx alone, and the further cases
    assert golden >= {
        *("min", "opt", "max", "odd", "batch=5", "batch=6"),
        *("drawn-1", "drawn-2", "seed-1", "seed-2", "zeros", "large", "sizes"),
    }
    asked = json.loads((project.root / "build/baked/engine/rtx/engine.json").read_text())
    assert [profile["x"]["max"] for profile in asked["profiles"]] == [[1, 4], [6, 4]]
