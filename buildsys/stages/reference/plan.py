"""Plan of the reference stage: golden inputs and outputs of the network."""

from __future__ import annotations

from collections.abc import Iterator

from buildsys.plan.action import Action, FileRef
from buildsys.plan.custom_operators import NO_OPERATORS, OperatorUse
from buildsys.plan.model_plan import ModelPlan, data_files, image_tools


def plan_reference(model: ModelPlan) -> Iterator[Action]:
    """Plan the computation of golden inputs and outputs."""
    name = model.name
    cases = model.exported.cases(model.exported.values)
    data = model.network_options["data"].values()
    operators = NO_OPERATORS
    if model.is_onnx:
        operators = model.operators.use()
        if functions := model.operators.graph_functions:
            inputs = {"graph_functions": functions["functions"], **operators.inputs}
            operators = OperatorUse(operators.options, inputs, after=(model.operators.target,))
    yield Action(
        **model.fields("reference"),
        options={
            **model.network_options,
            "cases": cases,
            **({"further": model.further} if model.further else {}),
            **operators.options,
        },
        inputs=operators.inputs,
        outputs={
            **model.exported.golden(cases),
            **model.exported.golden(model.further_names, optional=True),
            **model.definition_weights,
            "result": FileRef(f"{name}/reference/reference.json"),
        },
        sources=tuple(dict.fromkeys((*model.network_sources, *data_files(data)))),
        weights=model.weights,
        after=operators.after,
        code=("buildsys.stages.reference.stage", *model.network_code),
        tools=(
            "numpy",
            *model.network_tools,
            *(("onnx", "onnxruntime") if model.is_onnx else ()),
            *model.small_float_tools,
            *image_tools(data),
        ),
        environment=("onnxruntime",) if model.is_onnx else model.environment,
        alone_on_gpu=model.on_gpu,
        server="torch" if model.is_torch else "light",
        doc=f"golden inputs and outputs of {name}",
    )
