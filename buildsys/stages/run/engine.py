"""One call of a built engine, in the interpreter of its toolchain."""

import time
import zipfile
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from buildsys.deploy.engine import load_engine
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array, Tensor, load_tensors, tensor_of, write_array
from buildsys.workers.job import Job, StageResult

_MAX_ROWS = 64  # rows of a labelled output in the result


def run(job: Job) -> StageResult:
    """Call the engine once; write its outputs and describe them.

    Raises: StageError: the engine cannot be loaded, does not run, or has other classes.
    """
    inputs = {name: tensor.typed() for name, tensor in load_tensors(job.inputs["inputs"]).items()}
    # its digest has been checked with its freshness
    with load_engine(job.inputs["engine"], digest=False, project=job.project) as engine:
        job.progress("running the engine")
        started = time.perf_counter_ns()
        arrays = engine.run(inputs)
        latency_ms = (time.perf_counter_ns() - started) / 1e6
    outputs = {name: tensor_of(array) for name, array in arrays.items()}
    with zipfile.ZipFile(job.outputs["outputs"], "w") as archive:
        for name, tensor in outputs.items():
            write_array(archive, name, tensor.values())
    figures = {name: _describe(tensor) for name, tensor in outputs.items()}
    for name, labels in job.options["labels"].items():
        figures[name]["top"] = best_classes(name, outputs[name], **labels, top=job.options["top"])
        figures[name]["rows"] = prod(outputs[name].shape[:-1])
    return StageResult(figures={"latency_ms": latency_ms, "outputs": figures})


def best_classes(
    name: str, output: Tensor, *, activation: str, count: int, top: int
) -> list[dict[str, Any]]:
    """Find index and score of the best classes of each row.

    Raises: StageError: the output does not have ``count`` classes.
    """
    values = np.atleast_1d(np.asarray(output.values(), np.float64))
    if values.shape[-1] != count:
        shape = list(output.shape)
        problem = f"outputs.{name}.labels has {count} names, the output has the shape {shape}"
        raise StageError(problem, "name each class of its last axis once")
    rows = _probabilities(values.reshape(-1, count)[:_MAX_ROWS], activation)
    # stable: the first of equal classes comes first; NaN comes last
    order = np.argsort(np.where(np.isnan(rows), np.inf, -rows), axis=1, kind="stable")[:, :top]
    return [
        {"index": best.tolist(), "score": row[best].tolist()}
        for row, best in zip(rows, order, strict=True)
    ]


def _probabilities(rows: Array, activation: str) -> Array:
    with np.errstate(all="ignore"):  # infinite and NaN values are shown as they are
        if activation == "softmax":
            powers = np.exp(rows - rows.max(axis=1, keepdims=True))
            return np.asarray(powers / powers.sum(axis=1, keepdims=True))
        return np.asarray(1 / (1 + np.exp(-rows)) if activation == "sigmoid" else rows)


def _describe(tensor: Tensor) -> dict[str, Any]:
    """Describe dtype, shape and range of an output."""
    figures: dict[str, Any] = {"dtype": tensor.dtype, "shape": list(tensor.shape)}
    values = tensor.values()
    if values.dtype.kind not in "biuf":  # complex numbers and strings have no range
        return figures
    finite = values[np.isfinite(values)]
    if finite.size:
        ends: Mapping[str, Any] = {"min": finite.min().item(), "max": finite.max().item()}
        figures |= {**ends, "mean": float(finite.mean(dtype=np.float64))}
    return {**figures, "non_finite": int(values.size - finite.size)}
