"""Plan of the simplify stage: the same graph with fewer nodes."""

from collections.abc import Iterator

from buildsys.plan.action import Action
from buildsys.plan.custom_operators import NO_OPERATORS
from buildsys.plan.model_plan import ModelPlan


def plan_simplify(model: ModelPlan) -> Iterator[Action]:
    """Plan the simplification and its comparison in ONNX Runtime."""
    point, section = model.unsimplified, model.spec["simplify"]
    tool = section["tool"]
    compares = tool != "none"
    # two cases are enough, as validate runs both graphs in all of them
    cases = point.cases(("min", "odd")) if compares else {}
    golden = (point.golden_target,) if compares else ()
    tools: tuple[str, ...] = ("onnx",)
    if compares:
        shapes = ("sympy",) if tool == "onnxslim" else ()
        tools += (tool, *shapes, "onnxruntime", "numpy", *model.small_float_tools)
    yield model.action(
        "simplify",
        "simplify/graph.json",
        operators=model.operators.use() if compares else NO_OPERATORS,
        options={
            "simplify": section,
            "cases": cases,
            "inputs": point.inputs,
            **(point.compare if compares else {}),
        },
        inputs={**point.graph.files(), **point.golden(cases)},
        outputs={**model.final.source.files(), "assembled": model.final.source.assembled},
        after=(point.graph.target, *golden),
        tools=tools,
        environment=(tool, "onnxruntime") if compares else (),
    )
