"""The calibrate stage: the value range of every tensor on calibration batches."""

import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from buildsys.backends.interface import read_batches
from buildsys.errors import StageError
from buildsys.manifest.shape_cases import concrete_shape
from buildsys.models.golden_inputs import (
    golden_input,
    read_array,
    require_dtype,
    values_from_callable,
)
from buildsys.models.images import find_images, read_images
from buildsys.onnx_graphs.onnx_file import load_model
from buildsys.onnx_graphs.quantizers import refuse_quantized
from buildsys.onnx_graphs.tensors import Array, Tensor, tensor_of, write_array
from buildsys.stages.calibrate.ranges import measure
from buildsys.stages.common.intermediate_tensors import IntermediateTensors
from buildsys.stages.common.node_patterns import load_named_model
from buildsys.stages.convert.quantizers import HEAVY
from buildsys.workers.job import Job, StageResult

Batch = dict[str, Tensor]
_Draw = Callable[[int], Tensor]  # the values of one input in a batch


def run(job: Job) -> StageResult:
    """Write ``batches`` (arrays ``INDEX/INPUT``) and ``ranges`` (largest, limit).

    Equal data gives equal bytes.
    Raises: StageError: the data does not match the inputs or is not finite, or a tensor is NaN.
    """
    options, file = job.options["calibration"], job.outputs["batches"]
    refuse_quantized(load_model(job.inputs["model"], external_data=False), "int8")
    dtypes = {name: port["dtype"] for name, port in job.options["inputs"].items()}
    job.progress(f"drawing {options['batches']} calibration batches")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for index, batch in enumerate(_draw_batches(job)):
            for name, tensor in batch.items():
                write_array(archive, f"{index}/{name}", tensor.array)
    tensors = IntermediateTensors(job, load_named_model(job.inputs["model"]))
    job.progress(f"measuring {len(tensors.names)} tensors on {options['batches']} batches")

    def batches() -> Iterator[Batch]:
        for number, batch in enumerate(load_batches(file, dtypes), start=1):
            yield batch
            job.count(number, options["batches"], "batches")

    needed = {name for node in tensors.nodes if node.op_type in HEAVY for name in node.input}
    about = {field: options[field] for field in ("algorithm", "percentile") if field in options}
    ranges = {
        name: magnitudes.range(**about)._asdict()
        for name, magnitudes in measure(tensors, batches, needed).items()
    }
    content = json.dumps({**about, "tensors": ranges}, indent=1)
    job.outputs["ranges"].write_text(content + "\n", encoding="utf-8")
    warnings = [
        f"the ranges come from random values of the input {name}: calibrate on real data"
        for name, data in options["data"].items()
        if not data or "random" in data
    ]
    figures = {"batches": options["batches"], "tensors": len(ranges), "warnings": warnings}
    return StageResult(figures={**about, **figures})


def load_batches(path: Path, dtypes: Mapping[str, str]) -> Iterator[Batch]:
    """Read the batches of a calibration; ``dtypes`` are the inputs'."""
    for batch in read_batches(path, dtypes):
        yield {name: Tensor(array, dtypes[name]) for name, array in batch.items()}


def _draw_batches(job: Job) -> Iterator[Batch]:
    """Yield the batches one by one. Raises: StageError: the data does not fit."""
    draws = {name: _source(job, name) for name in job.options["inputs"]}
    for index in range(job.options["calibration"]["batches"]):
        batch = {name: draw(index) for name, draw in draws.items()}
        for name, tensor in batch.items():
            if count := tensor.non_finite():
                raise StageError(
                    f"the calibration data of the input {name}, batch {index}, has {count} of"
                    f" {tensor.array.size} values NaN or infinite",
                    "remove such values from the calibration data",
                )
        yield batch


def _source(job: Job, name: str) -> _Draw:
    """Open the data of one input."""
    section, port, project = job.options["calibration"], job.options["inputs"][name], job.project
    data, dtype, seed = section["data"][name] or {}, port["dtype"], section["seed"]
    shape = concrete_shape(port["shape"], job.options["dims"])
    size = shape[0] if shape else 1
    samples = section["batches"] * size
    if "images" in data:
        files = find_images(data, name, samples, project)
        return lambda i: read_images(files[i * size : (i + 1) * size], data, name, shape, dtype)
    if "npz" in data:
        array = _read_samples(project, name, data, shape, dtype, samples)
        return lambda i: tensor_of(array[i * size : (i + 1) * size] if shape else array[i], dtype)
    if "python" in data:
        where = f"input {name}, calibration batch"
        call = data["python"]
        return lambda i: values_from_callable(call, shape, dtype, i, seed, project, f"{where} {i}")
    return lambda i: golden_input(
        name, shape, dtype, data, case=f"calibration/{i}", seed=seed, project=project
    )


def _read_samples(
    project: Path,
    name: str,
    data: Mapping[str, Any],
    shape: tuple[int, ...],
    dtype: str,
    samples: int,
) -> Array:
    """Read one array with all batches along its first dimension."""
    array, what = read_array(project / data["npz"], data["npz"], data["key"] or name)
    require_dtype(array, dtype, what, f"input {name}")
    if array.ndim != max(1, len(shape)) or array.shape[1:] != shape[1:] or len(array) < samples:
        raise StageError(
            f"{what} has the shape {array.shape}; batches of the input {name} have {shape} and"
            f" need {samples} samples",
            "all dimensions but the first must match; add samples, or reduce batches or batch_size",
        )
    return array
