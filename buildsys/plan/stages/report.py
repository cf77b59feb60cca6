"""Plan of the report stage: all results on one page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buildsys.plan.action import Action, FileRef
from buildsys.plan.model_plan import ModelPlan

_GRAPH_STAGES = ("export", "surgery", "simplify", "convert")  # their graphs are described
_HIDDEN = ("timeout", "toolchains")  # decide no result
_RARE = ("symbolics", "translations", "ops", "surgery", "calibration")  # hidden if empty


def plan_report(model: ModelPlan, results: Sequence[Action]) -> Action:
    """Plan the report on ``results``, all other actions."""
    name, graphs = model.name, [action for action in results if action.stage in _GRAPH_STAGES]
    outputs = {"result": FileRef(f"{name}/report/report.json")}
    if "markdown" in model.spec["report"]["formats"]:
        outputs["markdown"] = FileRef(f"{name}/report/report.md")
    return Action(
        target=f"report:{name}",
        stage="report",
        model=name,
        variant="",
        options={"manifest": _shown_manifest(model)},
        inputs={
            **{action.target: action.outputs["result"] for action in results},
            **{f"graph:{action.target}": action.outputs["model"] for action in graphs},
        },
        outputs=outputs,
        after=tuple(action.target for action in results),
        code=("buildsys.stages.report.stage",),
        tools=("onnx",),
        timeout_s=model.timeout("report"),
        doc=f"report on {name}",
    )


def _shown_manifest(model: ModelPlan) -> dict[str, Any]:
    """Return the manifest without insignificant fields and empty rare sections."""
    spec, hidden = model.spec, {*_HIDDEN}
    if not model.needs_calibration:
        hidden.add("quantize")
    if spec["convert"] == {"tool": "builtin"}:
        hidden.add("convert")
    hidden |= {section for section in _RARE if not spec.get(section)}
    shown = {section: value for section, value in spec.items() if section not in hidden}
    if spec.get("toolchains"):  # without the paths of their interpreters
        shown["toolchains"] = {n: {"env": t["env"]} for n, t in spec["toolchains"].items()}
    return shown
