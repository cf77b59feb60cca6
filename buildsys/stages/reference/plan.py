"""Plan of the reference stage: golden inputs and outputs of the network."""

from collections.abc import Iterator

from buildsys.plan.action import Action
from buildsys.plan.custom_operators import NO_OPERATORS, PlannedOperator
from buildsys.plan.model_plan import ModelPlan
from buildsys.plan.network import data_files, image_tools


def plan_reference(model: ModelPlan) -> Iterator[Action]:
    """Plan the computation of golden inputs and outputs."""
    cases = model.exported.cases(model.exported.values)
    data = model.network.options["data"].values()
    operators, uncompared = NO_OPERATORS, model.spec["validate"]["uncompared"]
    if model.network.is_onnx:
        operators = model.operators.use()
        if functions := model.operators.graph_functions:
            inputs = {"graph_functions": functions["functions"], **operators.inputs}
            operators = PlannedOperator(operators.options, inputs, after=(model.operators.target,))
    yield model.action(
        "reference",
        "reference/reference.json",
        runs_network=True,
        operators=operators,
        options={
            **model.network.options,
            "cases": cases,
            **({"random": random} if (random := model.spec["export"]["random"]) else {}),
            **({"uncompared": uncompared} if uncompared else {}),
            **({"further": model.further} if model.further else {}),
            **({"samples": model.samples} if model.samples else {}),
        },
        outputs={
            **model.exported.golden(cases),
            **model.exported.golden(model.further_names, optional=True),
            **model.exported.golden_sizes(model.further),
            **model.exported.golden_samples(model.samples),
            **model.definition_weights,
        },
        sources=(*data_files(data), *model.further.get("golden", {}).values()),
        tools=(
            "numpy",
            *(("onnx", "onnxruntime") if model.network.is_onnx else ()),
            *model.small_float_tools,
            *image_tools(data),
        ),
        environment=("onnxruntime",) if model.network.is_onnx else (),
    )
