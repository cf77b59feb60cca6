"""Plan of the convert stage: graphs in precisions other than fp32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from buildsys.plan.action import Action, FileRef
from buildsys.plan.model_plan import FULL_PRECISION, QUANTIZED, ModelPlan

_QUANTIZERS = {"int8": "onnxruntime", "fp8": "builtin"}  # defaults of ``quantize.tool``


def plan_convert(model: ModelPlan) -> Iterator[Action]:
    """Plan one conversion per precision of engines and ONNX Runtime baselines."""
    precisions = [engine.precision for engine in model.engines if engine.is_converted]
    precisions += [e.baseline_precision for e in model.engines if e.baseline_graph]
    spec, name, final = model.spec, model.name, model.final
    cases, operators = final.cases(spec["verify"]["cases"]), model.operators.use()
    for precision in dict.fromkeys(p for p in precisions if p != FULL_PRECISION):
        options: dict[str, Any]
        if precision in QUANTIZED:
            tool = spec["quantize"]["tool"] or _QUANTIZERS[precision]
            algorithm = spec["calibration"]["algorithm"]
            options = {"quantize": {**spec["quantize"], "tool": tool, "algorithm": algorithm}}
            code = ["buildsys.stages.quantize.convert"]
            calibrated = model.calibrated("ranges", *(["batches"] if tool == "modelopt" else []))
            after = [f"calibrate:{name}"]
            modelopt = tool == "modelopt"
        else:
            modelopt = spec["convert"]["tool"] == "autocast"
            exclude = {"exclude": spec["convert"]["exclude"]}
            options = {"tool": "autocast"} if modelopt else exclude
            code = ["buildsys.stages.quantize.modelopt"] if modelopt else []
            calibrated, after = {}, []
        graph = model.converted(precision)
        upstream = (final.graph.target, *after, final.golden_target)
        yield Action(
            **model.fields("convert", precision),
            options={
                "precision": precision,
                **options,
                "tolerance": spec["verify"][precision],  # an engine's own limits apply to it alone
                "cases": cases,
                **final.compare,
                **operators.options,
            },
            inputs={
                **final.graph.files(),
                "assembled": model.final_assembled,
                **calibrated,
                **final.golden(cases),
                **operators.inputs,
            },
            outputs={**graph.files(), "result": FileRef(f"{graph.folder}/convert.json")},
            after=tuple(dict.fromkeys((*upstream, *operators.after, model.final_assembled_target))),
            code=("buildsys.stages.convert.stage", *code),
            tools=("onnx", "onnxruntime", "numpy", *(("nvidia-modelopt",) if modelopt else ())),
            environment=("onnxruntime",),
            doc=f"convert {name} to {precision} and check its numbers",
        )
