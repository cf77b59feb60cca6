"""Stage reference: golden inputs of every shape case and what the network gives for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from buildsys.errors import StageError
from buildsys.manifest.shape_cases import concrete_shape
from buildsys.models.golden_inputs import golden_input
from buildsys.onnx_graphs.tensors import Tensor, save_case
from buildsys.stages.operators.implementation import implementation_of
from buildsys.workers.job import Job, StageResult

Tensors = Mapping[str, Tensor]
Oracle = Callable[[Tensors, Mapping[str, int]], Tensors]  # golden inputs, dimensions -> outputs


def run(job: Job) -> StageResult:
    """Write one file ``case.NAME`` per shape case.

    Raises: StageError: the network cannot be built or called, its outputs are not as declared or not finite.
    """
    answer, weights = _oracle(job)
    cases: dict[str, Any] = {}
    for case, dims in job.options["cases"].items():
        job.progress(f"case {case}")
        inputs = _golden_inputs(job, case, dims)
        outputs = answer(inputs, dims)
        _require_finite(outputs, case)
        save_case(job.outputs[f"case.{case}"], inputs, outputs)
        cases[case] = {
            "dims": dict(dims),
            "inputs": {name: _shape_figures(tensor) for name, tensor in inputs.items()},
            "outputs": {
                name: {**_shape_figures(t), **_magnitude(t)} for name, t in outputs.items()
            },
        }
    return StageResult(figures={"cases": cases, "weights": weights})


def _golden_inputs(job: Job, case: str, dims: Mapping[str, int]) -> dict[str, Tensor]:
    return {
        name: golden_input(
            name,
            concrete_shape(signature["shape"], dims),
            signature["dtype"],
            job.options["data"][name],
            case=case,
            seed=job.options["source"]["seed"],
            project=job.project,
        )
        for name, signature in job.options["inputs"].items()
    }


def _oracle(job: Job) -> tuple[Oracle, str]:
    """Return what answers for the golden inputs, and how its weights were made."""
    return _onnx_oracle(job) if "onnx" in job.options["source"] else _torch_oracle(job)


def _torch_oracle(job: Job) -> tuple[Oracle, str]:
    # torch is not needed for a ready ONNX file
    import torch

    from buildsys.models.torch_dtypes import from_torch, to_torch
    from buildsys.models.torch_model import check_outputs, make_network

    if job.threads:
        torch.set_num_threads(job.threads)
    job.progress("building the network")
    network = make_network(job.options, job.project)
    declared = job.options["outputs"]

    def answer(inputs: Tensors, dims: Mapping[str, int]) -> Tensors:
        arguments = {name: to_torch(tensor) for name, tensor in inputs.items()}
        with torch.inference_mode():
            outputs = network(arguments)
        check_outputs(outputs, declared, dims, arguments)
        return {name: from_torch(tensor) for name, tensor in outputs.items()}

    return answer, network.weights


def _onnx_oracle(job: Job) -> tuple[Oracle, str]:
    from buildsys.models.onnx_reference import OnnxReference

    shown = job.options["source"]["onnx"]
    if not (job.project / shown).is_file():
        raise StageError(f"{shown} does not exist in the project")
    with TemporaryDirectory(dir=job.outputs["result"].parent) as folder:
        reference = OnnxReference(
            _implemented_file(job, Path(folder)), shown, implementation_of(job).libraries
        )
    return lambda inputs, _dims: reference(inputs), f"from {shown}"


def _implemented_file(job: Job, folder: Path) -> Path:
    """Return the ready file, or a copy whose custom operators are as the manifest says."""
    source: Path = job.project / job.options["source"]["onnx"]
    if "operators" not in job.options and "graph_functions" not in job.inputs:
        return source
    from buildsys.onnx_graphs.onnx_file import load_model, save_model
    from buildsys.stages.operators.function_placement import add_functions

    model = load_model(source)
    implementation = implementation_of(job)
    implementation.require(model)
    if "graph_functions" in job.inputs:
        add_functions(model, load_model(job.inputs["graph_functions"]))
    implementation.apply(model)
    save_model(model, folder / "model.onnx")
    return folder / "model.onnx"


def _require_finite(outputs: Tensors, case: str) -> None:
    for name, tensor in outputs.items():
        values = tensor.values()
        if values.dtype.kind in "fc" and not np.isfinite(values).all():
            count = int(values.size - np.isfinite(values).sum())
            raise StageError(
                f"output {name} has {count} of {values.size} values that are NaN or infinite in the case {case}",
                "no engine can be checked against them: give the inputs other data, or the network other weights",
            )


def _shape_figures(tensor: Tensor) -> dict[str, Any]:
    return {"dtype": tensor.dtype, "shape": list(tensor.shape)}


def _magnitude(tensor: Tensor) -> dict[str, float | None]:
    values = tensor.values()
    if values.dtype.kind not in "fciub" or not values.size:
        return {"max_abs": None, "mean_abs": None}
    sizes = np.abs(values.astype(np.complex128 if values.dtype.kind == "c" else np.float64))
    return {"max_abs": float(sizes.max()), "mean_abs": float(sizes.mean())}
