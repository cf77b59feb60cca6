"""Plan of the calibrate stage: ranges of tensors for int8 and fp8."""

from __future__ import annotations

from collections.abc import Iterator

from buildsys.plan.action import Action
from buildsys.plan.model_plan import ModelPlan
from buildsys.plan.network import data_files, image_tools


def plan_calibrate(model: ModelPlan) -> Iterator[Action]:
    """Plan the calibration, if an engine needs it."""
    if not model.needs_calibration:
        return
    spec, final, section = model.spec, model.final, model.spec["calibration"]
    fields = ["algorithm", "batches", "seed"]
    fields += ["percentile"] if section["algorithm"] == "percentile" else []
    data = {
        tensor: section["data"][tensor]
        if tensor in section["data"]
        else spec["inputs"].get(tensor, {}).get("data")
        for tensor in final.inputs
    }
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
