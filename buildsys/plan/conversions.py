"""The actions that make graphs of other precisions than fp32, and measure what they need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from buildsys.plan import bench, calibration, custom_operators, stage_inputs
from buildsys.plan.action import Action, FileRef
from buildsys.plan.artifacts import (
    Resolved,
    calibrated,
    golden_refs,
    golden_target,
    simplified_graph,
)
from buildsys.plan.surgery_points import AFTER_SIMPLIFY, cases_at


def conversions(spec: Resolved) -> Iterator[Action]:
    """Yield the targets calibrate and convert that a model's engines and their baselines need."""
    if calibration.quantized_engines(spec):
        yield _calibrate(spec)
    for precision in dict.fromkeys(
        (*stage_inputs.converted_precisions(spec), *bench.converted_precisions(spec))
    ):
        yield (
            _quantize(spec, precision)
            if precision in calibration.QUANTIZED
            else _convert(spec, precision)
        )


def _calibrate(spec: Resolved) -> Action:
    model = spec["model"]
    taken = custom_operators.taken(spec, custom_operators.MAIN)
    data = calibration.calibration_data(spec).values()
    return Action(
        target=f"calibrate:{model}",
        stage="calibrate",
        model=model,
        variant="",
        options={**calibration.calibration_options(spec), **taken.options},
        inputs={**simplified_graph(spec).refs(), **taken.inputs},
        outputs={
            **calibrated(spec, "batches", "ranges"),
            "result": FileRef(f"{model}/calibrate/calibrate.json"),
        },
        sources=calibration.values_sources(data),
        after=(simplified_graph(spec).target, *taken.after),
        code=stage_inputs.STAGE_CODE["calibrate"],
        tools=("onnx", "onnxruntime", "numpy", *calibration.values_tools(data)),
        environment=("onnxruntime",),
        timeout_s=stage_inputs.timeout(spec, "calibrate"),
        doc=f"measure the ranges of the tensors of {model}",
    )


def _convert(spec: Resolved, precision: str) -> Action:
    tool = spec["convert"]["tool"]
    autocast = tool == "autocast"
    return _conversion(
        spec,
        precision,
        options={"tool": tool} if autocast else {},
        code=(
            *stage_inputs.STAGE_CODE["convert"],
            *(("buildsys.stages.quantize.modelopt",) if autocast else ()),
        ),
        tools=("nvidia-modelopt",) if autocast else (),
    )


def _quantize(spec: Resolved, precision: str) -> Action:
    quantize = calibration.quantize_options(spec, precision)
    by_modelopt = quantize["tool"] == "modelopt"
    return _conversion(
        spec,
        precision,
        options={"quantize": quantize},
        inputs=calibrated(spec, "ranges", *(("batches",) if by_modelopt else ())),
        after=(f"calibrate:{spec['model']}",),
        code=("buildsys.stages.convert.stage", "buildsys.stages.quantize.convert"),
        tools=("nvidia-modelopt",) if by_modelopt else (),
    )


def _conversion(
    spec: Resolved,
    precision: str,
    *,
    options: Mapping[str, Any],
    code: tuple[str, ...],
    tools: tuple[str, ...],
    inputs: Mapping[str, FileRef] | None = None,
    after: tuple[str, ...] = (),
) -> Action:
    """Return the target that makes the graph of one precision, and checks its numbers."""
    model = spec["model"]
    folder = f"{model}/convert/{precision}"
    cases = cases_at(spec, AFTER_SIMPLIFY, spec["verify"]["cases"])
    taken = custom_operators.taken(spec, custom_operators.MAIN)
    tolerance = spec["verify"][
        precision
    ]  # an engine's own limits may be wider, and are for that engine
    return Action(
        target=f"convert:{model}:{precision}",
        stage="convert",
        model=model,
        variant=precision,
        options={
            "precision": precision,
            **options,
            "tolerance": tolerance,
            "cases": cases,
            **taken.options,
        },
        inputs={
            **simplified_graph(spec).refs(),
            **(inputs or {}),
            **golden_refs(spec, cases),
            **taken.inputs,
        },
        outputs={
            "model": FileRef(f"{folder}/model.onnx"),
            "model.data": FileRef(f"{folder}/model.onnx.data", optional=True),
            "result": FileRef(f"{folder}/convert.json"),
        },
        after=(simplified_graph(spec).target, *after, golden_target(spec), *taken.after),
        code=code,
        tools=("onnx", "onnxruntime", "numpy", *tools),
        environment=("onnxruntime",),
        timeout_s=stage_inputs.timeout(spec, "convert"),
        doc=f"convert {model} to {precision} and check its numbers",
    )
