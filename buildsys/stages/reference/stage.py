"""The reference stage: golden inputs and outputs of every shape case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from buildsys.errors import StageError
from buildsys.manifest.shape_cases import concrete_shape
from buildsys.models.golden_inputs import golden_input
from buildsys.onnx_graphs.tensors import Tensor, save_case
from buildsys.report.results.reference import GoldenCase, GoldenOutput
from buildsys.stages.operators.implementation import implementation_of
from buildsys.workers.job import Job, StageResult

Tensors = Mapping[str, Tensor]
Model = Callable[[Tensors, Mapping[str, int]], Tensors]  # golden inputs, dimensions -> outputs


def run(job: Job) -> StageResult:
    """Write one file ``case.NAME`` per shape case.

    Raises: StageError: the model cannot be built or called, or its outputs are not as declared or
    not finite.
    """
    load = _onnx_model if "onnx" in job.options["source"] else _torch_model
    model, weights, float_type = load(job)
    cases: dict[str, GoldenCase] = {}
    for case, dims in job.options["cases"].items():
        job.progress(f"case {case}")
        inputs = {
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
        outputs = model(inputs, dims)
        for name, tensor in outputs.items():
            if count := tensor.non_finite():
                raise StageError(
                    f"output {name} has {count} of {tensor.array.size} values NaN or infinite"
                    f" in case {case}",
                    "no engine can be checked against them: change the input data or the weights",
                )
        if not float_type:  # no weights
            floats = (tensor.dtype for tensor in inputs.values() if "float" in tensor.dtype)
            float_type = next(floats, "float32")
        save_case(job.outputs[f"case.{case}"], inputs, outputs, float_type)
        cases[case] = {
            "dims": dict(dims),
            "inputs": {
                name: {"dtype": tensor.dtype, "shape": list(tensor.shape)}
                for name, tensor in inputs.items()
            },
            "outputs": {name: _output_figures(tensor) for name, tensor in outputs.items()},
        }
    return StageResult(figures={"cases": cases, "weights": weights})


def _torch_model(job: Job) -> tuple[Model, str, str]:
    """Return the PyTorch model, the origin of its weights, and its main float type."""
    import torch  # not needed for an ONNX source

    from buildsys.models.torch_model import (
        check_outputs,
        from_torch,
        main_float_type,
        make_network,
        to_torch,
    )

    if job.threads:
        torch.set_num_threads(job.threads)
    job.progress("building the network")
    network = make_network(job.options, job.project)
    declared = job.options["outputs"]

    def call(inputs: Tensors, dims: Mapping[str, int]) -> Tensors:
        arguments = {name: to_torch(tensor) for name, tensor in inputs.items()}
        with torch.inference_mode():
            outputs = network(arguments)
        check_outputs(outputs, declared, dims, arguments)
        return {name: from_torch(tensor) for name, tensor in outputs.items()}

    return call, network.weights, main_float_type(network.module)


def _onnx_model(job: Job) -> tuple[Model, str, str]:
    """Return the ONNX source in a session, its weights' origin, and its main float type."""
    from buildsys.backends.onnxruntime.file_versions import (
        fit_versions,
        newest_ir_version,
        newest_opset,
    )
    from buildsys.backends.onnxruntime.session import OrtGraph
    from buildsys.onnx_graphs.emulation import emulate
    from buildsys.onnx_graphs.onnx_file import load_model, save_model
    from buildsys.onnx_graphs.tensor_types import float_types, main_float_type
    from buildsys.stages.operators.function_placement import add_functions

    name = job.options["source"]["onnx"]
    if not (job.project / name).is_file():
        raise StageError(f"{name} does not exist in the project")
    with TemporaryDirectory(dir=job.outputs["result"].parent) as folder:
        implementation, file = implementation_of(job), job.project / name
        header = load_model(file, external_data=False)
        is_new = header.ir_version > newest_ir_version() or any(
            entry.version > newest_opset() for entry in header.opset_import if not entry.domain
        )
        if is_new or "operators" in job.options or "graph_functions" in job.inputs:
            model, _ = fit_versions(load_model(file), name)
            if "graph_functions" in job.inputs:
                add_functions(model, load_model(job.inputs["graph_functions"]))
            implementation.apply(model)
            file = Path(folder) / "model.onnx"
            save_model(model, file)
        if "bfloat16" in float_types(header):  # ONNX Runtime has few kernels for it
            emulated = Path(folder) / "emulated.onnx"
            save_model(emulate(load_model(file), "bf16"), emulated)
            file = emulated
        graph = OrtGraph(file, libraries=implementation.libraries, shown=name)
    return lambda inputs, _dims: graph.run(inputs), f"from {name}", main_float_type(header)


def _output_figures(tensor: Tensor) -> GoldenOutput:
    """Return type, shape and magnitude of an output."""
    values = tensor.values()
    largest = mean = None
    if values.dtype.kind in "fciub" and values.size:
        sizes = np.abs(values.astype(np.complex128 if values.dtype.kind == "c" else np.float64))
        largest, mean = float(sizes.max()), float(sizes.mean())
    shape = list(tensor.shape)
    return {"dtype": tensor.dtype, "shape": shape, "max_abs": largest, "mean_abs": mean}
