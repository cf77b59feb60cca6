"""Plan of the convert stage: graphs in precisions other than fp32."""

from collections.abc import Iterator
from typing import Any

from buildsys.manifest.backend_choices import QUANTIZED
from buildsys.plan.action import Action, FileRef
from buildsys.plan.graph_points import PlannedConversion
from buildsys.plan.model_plan import ModelPlan


def plan_convert(model: ModelPlan) -> Iterator[Action]:
    """Plan the conversions for engines and ONNX Runtime baselines, and graphs in older opsets."""
    for conversion in model.conversions:
        fields = conversion_fields(model, conversion)
        tool = fields["options"].get("quantize", fields["options"]).get("tool")
        code = ["buildsys.stages.convert.typed"]
        if conversion.without_calibration:
            code = ["buildsys.stages.convert.weights_only"]
        elif conversion.precision in QUANTIZED:
            code = ["buildsys.stages.convert.quantized"]
        elif tool == "autocast":
            code.append("buildsys.stages.convert.modelopt")
        if conversion.search:
            fields["inputs"] = {**fields["inputs"], "nodes": conversion.nodes}
            fields["after"] = (*fields["after"], conversion.search_target)
        if tool in ("autocast", "modelopt"):
            fields["tools"] = (*fields["tools"], "nvidia-modelopt")
        yield model.action(
            "convert",
            f"convert/{conversion.variant}/convert.json",
            conversion.variant,
            **fields,
            outputs=conversion.graph.files(),
            code=code,
        )
    cases = model.final.cases(("min", "odd"))  # as for simplify
    for lowered in model.lowered_graphs:
        yield model.action(
            "convert",
            f"convert/{lowered.variant}/convert.json",
            lowered.variant,
            operators=model.operators.use(),
            options={
                "lowered": {"opset": lowered.opset, "ir_version": lowered.ir_version},
                "cases": cases,
                **model.final.compare,
            },
            inputs={**lowered.source.files(), **model.final.golden(cases)},
            outputs=lowered.graph.files(),
            after=(lowered.source.target, model.final.golden_target),
            code=("buildsys.stages.convert.lowered",),
            tools=("onnx", "onnxruntime", "numpy", *model.small_float_tools),
            environment=("onnxruntime",),
        )


def conversion_fields(model: ModelPlan, conversion: PlannedConversion) -> dict[str, Any]:
    """Collect what a conversion and the search for its nodes depend on."""
    spec, final, precision = model.spec, model.final, conversion.precision
    cases = final.cases(spec["verify"]["cases"])
    options: dict[str, Any]
    calibrated: dict[str, FileRef] = {}
    after: list[str] = []
    if conversion.without_calibration:
        options = dict(conversion.without_calibration)
    elif precision in QUANTIZED:
        tool = "modelopt" if spec["quantize"]["tool"] == "modelopt" else "builtin"
        algorithm = spec["calibration"]["algorithm"]
        options = {"quantize": {**spec["quantize"], "tool": tool, "algorithm": algorithm}}
        calibrated = model.calibrated("ranges", *(["batches"] if tool == "modelopt" else []))
        after = [f"calibrate:{model.name}"]
    else:
        modelopt = spec["convert"]["tool"] == "autocast"
        exclude = {"exclude": spec["convert"]["exclude"]}
        options = {"tool": "autocast"} if modelopt else exclude
    return {
        "options": {
            "precision": precision,
            **options,
            "tolerance": conversion.tolerance,
            **({"limit": "metric"} if conversion.by_metric else {}),
            "cases": cases,
            **final.compare,
        },
        "operators": model.operators.use(),
        "inputs": {
            **final.graph.files(),
            "assembled": final.assembling.assembled,
            **calibrated,
            **final.golden(cases),
            **final.golden_samples(model.samples),
        },
        "after": (final.graph.target, *after, final.golden_target, final.assembling.target),
        "tools": ("onnx", "onnxruntime", "numpy"),
        "environment": ("onnxruntime",),
    }
