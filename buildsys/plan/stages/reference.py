"""Plan of the reference stage: golden inputs and outputs of the network."""

from __future__ import annotations

from collections.abc import Iterator

from buildsys.plan.action import Action, FileRef
from buildsys.plan.custom_operators import NO_OPERATORS, OperatorUse
from buildsys.plan.input_data import data_files, image_tools
from buildsys.plan.model_plan import ModelPlan


def plan_reference(model: ModelPlan) -> Iterator[Action]:
    """Plan the computation of golden inputs and outputs."""
    name = model.name
    cases = model.exported.golden_cases()
    data = {role: tensor["data"] for role, tensor in model.spec["inputs"].items()}
    operators = _operators_of_onnx_file(model)
    yield Action(
        target=f"reference:{name}",
        stage="reference",
        model=name,
        variant="",
        options={**model.network_options, "cases": cases, "data": data, **operators.options},
        inputs=operators.inputs,
        outputs={
            **model.exported.golden(cases),
            "result": FileRef(f"{name}/reference/reference.json"),
        },
        sources=(*model.network_sources, *data_files(data.values())),
        weights=model.weights,
        after=operators.after,
        code=("buildsys.stages.reference.stage",),
        tools=(
            "numpy",
            *model.network_tools,
            *(("onnx", "onnxruntime") if model.is_onnx else ()),
            *model.small_float_tools,
            *image_tools(data.values()),
        ),
        environment=("onnxruntime",) if model.is_onnx else ("torch",),
        timeout_s=model.timeout("reference"),
        doc=f"golden inputs and outputs of {name}",
    )


def _operators_of_onnx_file(model: ModelPlan) -> OperatorUse:
    """Return the custom operators of an ONNX source."""
    if not model.is_onnx:
        return NO_OPERATORS
    use, functions = model.operators.use(), model.operators.graph_functions
    if not functions:
        return use
    inputs = {"graph_functions": functions["functions"], **use.inputs}
    return OperatorUse(use.options, inputs, after=(model.operators.target,))
