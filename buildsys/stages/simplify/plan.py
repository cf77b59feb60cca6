"""Plan of the simplify stage: the same graph with fewer nodes."""

from __future__ import annotations

from collections.abc import Iterator

from buildsys.plan.action import Action, FileRef
from buildsys.plan.custom_operators import NO_OPERATORS
from buildsys.plan.model_plan import ModelPlan


def plan_simplify(model: ModelPlan) -> Iterator[Action]:
    """Plan the simplification and its comparison in ONNX Runtime."""
    name, point, section = model.name, model.unsimplified, model.spec["simplify"]
    tool = section["tool"]
    compares = tool != "none"
    # two cases are enough, as validate runs both graphs in all of them
    cases = point.cases(("min", "odd")) if compares else {}
    golden = (point.golden_target,) if compares else ()
    operators = model.operators.use() if compares else NO_OPERATORS
    tools: tuple[str, ...] = ("onnx",)
    if compares:
        shapes = ("sympy",) if tool == "onnxslim" else ()
        tools += (tool, *shapes, "onnxruntime", "numpy", *model.small_float_tools)
    yield Action(
        **model.fields("simplify"),
        options={
            "simplify": section,
            "cases": cases,
            "inputs": point.inputs,
            **(point.compare if compares else {}),
            **operators.options,
        },
        inputs={**point.graph.files(), **point.golden(cases), **operators.inputs},
        outputs={
            **model.final.source.files(),
            "assembled": model.assembled,
            "result": FileRef(f"{name}/simplify/graph.json"),
        },
        after=tuple(dict.fromkeys((point.graph.target, *golden, *operators.after))),
        code=("buildsys.stages.simplify.stage",),
        tools=tools,
        environment=(tool, "onnxruntime") if compares else (),
        doc=f"simplify the graph of {name}",
    )
