"""Engines of small graphs: complete options as the schema resolves them, jobs and golden cases."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from small_graphs import data_role

from buildsys.backends.interface import (
    BuildRequest,
    Calibration,
    GraphRefusedError,
    UnsupportedNode,
)
from buildsys.onnx_graphs.tensors import Tensor, save_case, tensor_of
from buildsys.project.model import model_fields
from buildsys.project.plan import plan_model
from buildsys.system.backend_registry import describe_backend
from buildsys.workers.job import Job

BATCHES = {"min": 1, "opt": 2, "max": 8}
DIMS = {"batch": BATCHES}
INPUTS: dict[str, dict[str, Any]] = {"x": {"shape": ["batch", 3, 8, 8], "dtype": "float32"}}


def resolved(engine: Mapping[str, Any], **sections: Any) -> dict[str, Any]:
    """Return the resolved manifest of a model m with one engine e and the input x of ``INPUTS``."""
    spec = {
        "model": "m",
        "source": {"onnx": "m.onnx"},
        "inputs": {name: {"shape": list(tensor["shape"])} for name, tensor in INPUTS.items()},
        "dims": DIMS,
        "engines": [{"name": "e", **engine}],
        **sections,
    }
    return model_fields(spec)


def engine_options(backend: str, **fields: Any) -> dict[str, Any]:
    return dict(_action(resolved({"backend": backend, **fields}), "engine").options["engine"])


def request(
    model: Path,
    folder: Path,
    options: Mapping[str, Any],
    inputs: Mapping[str, Any] = INPUTS,
    **more: Any,
) -> BuildRequest:
    folder.mkdir(parents=True, exist_ok=True)
    name = describe_backend(options["backend"]).engine_file
    return BuildRequest("m", model, folder / name, options, inputs, more.pop("dims", DIMS), **more)


def stage_job(spec: Mapping[str, Any], stage: str, build: Path, model: Path | None = None) -> Job:
    """Return the executor's job, without missing optional inputs."""
    action = _action(spec, stage)
    inputs = {role: build / ref.path for role, ref in action.inputs.items()}
    if model is not None:
        inputs |= {"model": model, **data_role(model)}
    outputs = {role: build / ref.path for role, ref in action.outputs.items()}
    for path in outputs.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    return Job(
        target=action.target,
        stage=stage,
        model="m",
        variant=action.variant,
        options=action.options,
        inputs={role: path for role, path in inputs.items() if path.is_file()},
        outputs=outputs,
        project=build,
    )


def random_x(batch: int, dtype: str = "float32", seed: int = 0) -> dict[str, Tensor]:
    shape = (batch, *INPUTS["x"]["shape"][1:])
    return {
        "x": tensor_of(np.random.default_rng(seed).standard_normal(shape).astype(np.float32), dtype)
    }


def calibration(folder: Path) -> Calibration:
    """Write two batches of calibration data for ``INPUTS``."""
    folder.mkdir(exist_ok=True)
    batches = {f"{n}/x": random_x(4, seed=n)["x"].array for n in range(2)}
    np.savez(folder / "batches.npz", **batches)
    return Calibration(folder / "batches.npz", "", folder / "unused")


def captured_program(
    folder: Path, backend: str, network: str, inputs: Any = INPUTS, dims: Any = DIMS, **source: Any
) -> Path:
    """Capture one of the sample networks as the stage ``program`` does."""
    from buildsys.stages.program import stage as program  # slow

    code = f"tests/integration/sample_networks.py:{network}"
    resolved_manifest = model_fields({
        "model": "m",
        "source": {"python": code, **source},
        "inputs": {name: {"shape": list(tensor["shape"])} for name, tensor in inputs.items()},
        "dims": dims,
        "engines": [{"backend": backend, "name": "e"}],
    })  # fmt: skip
    job = stage_job(resolved_manifest, "program", folder)
    program.run(replace(job, project=Path(__file__).parents[2]))
    return folder / "m/program/program.pt2"


def write_golden(
    build: Path, outputs: Mapping[str, Mapping[str, Tensor]], inputs: Mapping[str, Any]
) -> None:
    """Write golden cases from {case: outputs} and {case: inputs}."""
    (build / "m" / "reference").mkdir(parents=True, exist_ok=True)
    for case, expected in outputs.items():
        save_case(build / "m" / "reference" / f"{case}.npz", inputs[case], expected)


def save_at(path: Path, model: onnx.ModelProto) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def _action(spec: Mapping[str, Any], stage: str) -> Any:
    return next(action for action in plan_model(spec) if action.stage == stage)


def refused_nodes(backend: Any, asked: BuildRequest) -> list[UnsupportedNode]:
    """Return the nodes that a build refuses."""
    try:
        backend.build(asked)
    except GraphRefusedError as error:
        return list(error.nodes)
    return []
