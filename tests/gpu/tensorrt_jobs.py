"""Small networks, built and run by a real TensorRT."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_jobs import DIMS, resolved
from onnx import TensorProto, helper
from small_graphs import make_model, weights, write
from toolchain import Refused, Toolchain

from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.onnx_graphs.tensors import Tensor, load_tensors, save_tensors, tensor_of
from buildsys.plan.action import Action
from buildsys.project.plan import plan_model

SOURCES = ("edge_mask_convolutions", "jit_convolutions")  # cuBLAS and cuDNN need not be there
IMAGE = {"x": {"shape": ["batch", 16, 16, 16], "dtype": "float32"}}


def convolutions(seed: int = 0) -> Any:
    """Five convolutions of 16 channels: enough for tensor cores, and quick to build."""
    nodes = []
    stored = {}
    for index in range(5):
        before, after = f"t{index}" if index else "x", f"t{index + 1}"
        stored[f"w{index}"] = weights(16, 16, 3, 3, seed=seed + index) * np.float32(0.1)
        nodes.append(
            helper.make_node(
                "Conv", [before, f"w{index}"], [f"c{index}"], name=f"/conv{index}", pads=[1] * 4
            )
        )
        nodes.append(
            helper.make_node(
                "Relu", [f"c{index}"], [after if index < 4 else "y"], name=f"/relu{index}"
            )
        )
    shape = (TensorProto.FLOAT, ["batch", 16, 16, 16])
    return make_model(nodes, {"x": shape}, {"y": shape}, stored)


def options(toolchain: Toolchain, **fields: Any) -> dict[str, Any]:
    sources = {"tactic_sources": list(SOURCES)} if toolchain.version.startswith("8.") else {}
    spec = resolved({"backend": "tensorrt", **sources, **fields})
    actions = plan_model(spec, lambda _: toolchain.version)
    return dict(next(action for action in actions if action.stage == "engine").options["engine"])


def request(
    model: Path, options: Mapping[str, Any], inputs: Mapping[str, Any] = IMAGE, **more: Any
) -> dict[str, Any]:
    base = {
        "model": "m",
        "onnx": model,
        "engine": model.with_suffix(".engine"),
        "options": options,
        "inputs": inputs,
    }
    return {**base, "dims": DIMS, **more}


def build(toolchain: Toolchain, folder: Path, model: Any = None, **fields: Any) -> dict[str, Any]:
    file = write(folder, model or convolutions())
    given = {
        name: fields.pop(name)
        for name in ("inputs", "timing_cache", "calibration", "project", "earlier")
        if name in fields
    }
    answer = toolchain.ask("build", request=request(file, options(toolchain, **fields), **given))
    return dict(answer)


def run(
    toolchain: Toolchain, folder: Path, inputs: Mapping[str, Tensor], profile: int | None = None
) -> tuple[dict[str, Tensor], Any]:
    save_tensors(folder / "in.npz", inputs)
    files = {
        "engine": folder / "model.engine",
        "inputs": folder / "in.npz",
        "outputs": folder / "out.npz",
    }
    profiles = toolchain.ask("run", **files, options=options(toolchain), profile=profile)
    return dict(load_tensors(folder / "out.npz")), profiles


def image(batch: int, seed: int = 0) -> dict[str, Tensor]:
    return {
        "x": tensor_of(
            np.random.default_rng(seed).standard_normal((batch, 16, 16, 16)).astype(np.float32)
        )
    }


def error_of(
    toolchain: Toolchain, folder: Path, inputs: Mapping[str, Tensor], profile: int | None = None
) -> float:
    """Return the largest difference from ONNX Runtime over the largest value."""
    expected = OrtGraph(folder / "model.onnx").run(inputs)["y"].values()
    found = run(toolchain, folder, inputs, profile)[0]["y"].values()
    return float(np.abs(found.astype(np.float64) - expected).max() / np.abs(expected).max())


def job_of(action: Action, build: Path, **inputs: Path) -> dict[str, Any]:
    """Return the executor's fields of a job; ``inputs`` replace planned files."""
    files = {role: build / ref.path for role, ref in action.inputs.items()} | inputs
    outputs = {role: build / ref.path for role, ref in action.outputs.items()}
    for path in outputs.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    return {
        "target": action.target, "stage": action.stage, "model": "m", "variant": action.variant,
        "options": action.options,
        "inputs": {role: path for role, path in files.items() if path.is_file()},
        "outputs": outputs,
    }  # fmt: skip


def refusal(toolchain: Toolchain, folder: Path, **fields: Any) -> str:
    with pytest.raises(Refused) as caught:
        build(toolchain, folder, **fields)
    assert "\n" not in str(caught.value)
    return str(caught.value)
