"""Plan of the surgery stage: changes to the exported or simplified graph."""

from collections.abc import Iterator
from typing import Any

from buildsys.manifest.shape_cases import AFTER_EXPORT, AFTER_SIMPLIFY, changes_golden
from buildsys.plan.action import Action
from buildsys.plan.graph_points import size_ranges
from buildsys.plan.model_plan import ModelPlan
from buildsys.plan.network import data_files, image_tools
from buildsys.system.user_modules import source_of

_TOLERANCE = ("rtol", "cosine", "atol", "top1")


def plan_surgery(model: ModelPlan) -> Iterator[Action]:
    """Plan the steps on the exported and on the simplified graph, if any."""
    yield from _plan_steps(model, AFTER_EXPORT)
    yield from _plan_steps(model, AFTER_SIMPLIFY)


def _plan_steps(model: ModelPlan, when: str) -> Iterator[Action]:
    after_export = when == AFTER_EXPORT
    before = model.exported if after_export else model.unsimplified
    point = model.unsimplified if after_export else model.final
    spec, steps = model.spec, point.steps
    if not steps:
        return
    origins, golden_changes = before.origins, changes_golden(steps)
    cases: dict[str, dict[str, Any]] = {
        case: {"dims": model.case_values[case], "golden": origins[case]}
        for case in point.cases(point.values)
    }
    options: dict[str, Any] = {
        "steps": [{f: value for f, value in step.items() if f != "when"} for step in steps],
        "inputs": before.inputs,
        "cases": cases,
    }
    if golden_changes:
        options["tolerance"] = {field: spec["validate"][field] for field in _TOLERANCE}
    if any(step.get("changes") == "nothing" for step in steps):
        options["spans"], options["data"] = size_ranges(before), before.data
    if any(step.get("inputs") for step in steps):
        options["seed"] = spec["source"]["seed"]
    files: list[str] = []
    data = []
    for step in steps:
        reference = step.get("reference") or {}
        callables = [step.get("function"), reference.get("python")]
        files += [source_of(function) for function in callables if function]
        declared = [tensor["data"] for tensor in (step.get("inputs") or {}).values()]
        files += data_files((reference, *declared))
        data += declared
    graphsurgeon = any(step.get("graph") == "graphsurgeon" for step in steps)
    read = before.golden(dict.fromkeys(case["golden"] for case in cases.values()))
    written = point.golden(cases) if golden_changes else {}
    if golden_changes and point.has_further:
        read |= before.golden(model.further_names, optional=True)
        written |= point.golden(model.further_names, optional=True)
    if golden_changes and not after_export:
        read["assembled"], written["assembled"] = point.source.assembled, point.graph.assembled
    yield model.action(
        "surgery",
        f"surgery/{when}/surgery.json",
        when,
        operators=model.operators.use(),
        options=options,
        inputs={**point.source.files(), **read},
        outputs={**point.graph.files(), **written},
        sources=files,
        after=(point.source.target, before.golden_target),
        tools=(
            *(("python",) if files else ()),
            "onnx",
            "onnxruntime",
            "numpy",
            *(("onnx-graphsurgeon",) if graphsurgeon else ()),
            *image_tools(data),
            *model.small_float_tools,
        ),
        environment=("onnxruntime",),
    )
