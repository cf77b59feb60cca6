"""Plan of the calibrate stage: ranges of tensors for int8 and fp8."""

from collections.abc import Iterator
from typing import Any

from buildsys.plan.action import Action
from buildsys.plan.model_plan import ModelPlan
from buildsys.plan.network import data_files, image_tools


def plan_calibrate(model: ModelPlan) -> Iterator[Action]:
    """Plan the calibration, if an engine needs it."""
    if not model.needs_calibration:
        return
    final, section = model.final, model.spec["calibration"]
    fields = ["algorithm", "batches", "seed"]
    fields += ["percentile"] if section["algorithm"] == "percentile" else []
    data = calibration_data(model)
    dims = {dim: span["opt"] for dim, span in final.dims.items()}
    if section["batch_size"] is not None:
        first = [tensor["shape"][0] for tensor in final.inputs.values() if tensor["shape"]]
        dims |= {dim: section["batch_size"] for dim in first if isinstance(dim, str)}
    runs_python = any("python" in (entry or ()) for entry in data.values())
    yield model.action(
        "calibrate",
        "calibrate/calibrate.json",
        operators=model.operators.use(),
        options={
            "calibration": {**{field: section[field] for field in fields}, "data": data},
            "inputs": final.inputs,
            "dims": dims,
        },
        inputs=final.graph.files(),
        outputs=model.calibrated("batches", "ranges"),
        sources=data_files(data.values()),
        after=(final.graph.target,),
        tools=(
            "onnx",
            "onnxruntime",
            "numpy",
            *image_tools(data.values()),
            *(("python",) if runs_python else ()),
        ),
        environment=("onnxruntime",),
    )


def calibration_data(model: ModelPlan) -> dict[str, Any]:
    """Choose the source of each input, its own by default."""
    own, inputs = model.spec["calibration"]["data"], model.spec["inputs"]
    return {
        tensor: own[tensor] if tensor in own else inputs.get(tensor, {}).get("data")
        for tensor in model.final.inputs
    }
