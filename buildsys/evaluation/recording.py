"""Records of a model on all samples, batch by batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from buildsys.errors import StageError
from buildsys.evaluation.batch import Batch, Inputs, digests
from buildsys.evaluation.metric import Metric, Records, join_records
from buildsys.evaluation.metrics import load_metric
from buildsys.evaluation.samples import open_samples
from buildsys.models.user_code import load_callable, reraise_as_stage_error
from buildsys.onnx_graphs.tensors import Array, Tensor, load_arrays, tensor_of
from buildsys.system.files import replace_file

Predict = Callable[[dict[str, Tensor]], Mapping[str, Tensor]]
_NAMES, _DIGESTS, _RECORD = "names", "digests", "record."
_SAVE_EACH_S = 10.0


class Recorded(NamedTuple):
    """The records of all samples, with their names and digests."""

    records: Records
    names: list[str]
    digests: list[str]

    def save(self, path: Path) -> None:
        """Write an .npz file."""
        records = {f"{_RECORD}{name}": array for name, array in self.records.items()}
        texts = {_NAMES: np.array(self.names), _DIGESTS: np.array(self.digests)}
        content = BytesIO()
        np.savez(content, **texts, **records)  # type: ignore[arg-type]
        replace_file(path, content.getvalue())


def load_recorded(path: Path) -> Recorded:
    """Read the file of ``Recorded.save``."""
    arrays = load_arrays(path)
    records = {
        name.removeprefix(_RECORD): array
        for name, array in arrays.items()
        if name.startswith(_RECORD)
    }
    return Recorded(records, arrays[_NAMES].tolist(), arrays[_DIGESTS].tolist())


def make_metric(options: Mapping[str, Any], project: Path) -> Metric:
    """Make the metric of the options of a stage. Raises: StageError."""
    fields = {"classes": options["classes"], "output": options["output"]}
    return load_metric(options["metric"], fields, project)


def record(
    options: Mapping[str, Any],
    inputs: Inputs,
    project: Path,
    metric: Metric,
    predict: Predict,
    count: Callable[[int, int, str], None],
    parts: Path | None = None,
) -> Recorded:
    """Run a model on all samples, in batches of sizes that it takes; fill the last one.

    ``count`` gets what is done, of how much (0: unknown), and the unit. A stopped run goes on with
    what it saved in the folder ``parts``.
    Raises: StageError: samples or outputs do not fit.
    """
    declared = {
        n: {**port, "preprocess": options["preprocess"].get(n)} for n, port in inputs.items()
    }
    samples = open_samples(options["data"], declared, project)
    batch_size = _batch_sizes(inputs, options["dims"], options["batch_size"])
    most = options["samples"] or samples.count or 0
    saved = [load_recorded(path) for path in sorted(parts.glob("*.npz"))] if parts else []
    done, waiting = sum(len(part.names) for part in saved), list[Recorded]()
    saved_at = time.monotonic()
    for whole in samples.batches(batch_size.usual, done):
        batch = whole[: most - done] if options["samples"] else whole
        if not len(batch):
            break
        outputs = _outputs(batch, inputs, batch_size.fit(len(batch)), predict)
        if options["postprocess"]:
            outputs = _postprocess(options["postprocess"], outputs, project)
        waiting.append(Recorded(metric.records(outputs, batch), batch.names, digests(batch)))
        done += len(batch)
        count(done, max(most, done) if most else 0, "samples")
        if parts and time.monotonic() - saved_at >= _SAVE_EACH_S:
            parts.mkdir(parents=True, exist_ok=True)
            saved.append(_joined(waiting))
            saved[-1].save(parts / f"{len(saved):06}.npz")
            waiting, saved_at = [], time.monotonic()
    return _joined([*saved, *waiting])


def _joined(parts: Sequence[Recorded]) -> Recorded:
    return Recorded(
        join_records([part.records for part in parts]),
        [name for part in parts for name in part.names],
        [digest for part in parts for digest in part.digests],
    )


class _BatchSizes(NamedTuple):
    """Sizes of batches that a model takes."""

    usual: int
    least: int
    step: int

    def fit(self, count: int) -> int:
        """Choose the size for ``count`` samples, the last of which are repeated."""
        return max(self.least, -(-count // self.step) * self.step)


def _batch_sizes(inputs: Inputs, dims: Mapping[str, Any], wanted: int | None) -> _BatchSizes:
    first = next(iter(inputs.values()))["shape"][0]
    if not isinstance(first, str):
        return _BatchSizes(int(first), int(first), int(first))
    span = dims[first]
    least, step = int(span["min"] or 1), int(span["multiple_of"] or 1)
    usual = min(max(wanted or int(span["opt"]), least), int(span["max"]))
    return _BatchSizes(usual // step * step, least, step)


def _outputs(batch: Batch, inputs: Inputs, size: int, predict: Predict) -> dict[str, Array]:
    rows = np.minimum(np.arange(size), len(batch) - 1)
    tensors = {
        name: tensor_of(array if size == len(batch) else array[rows], inputs[name]["dtype"])
        for name, array in batch.inputs.items()
    }
    outputs = {name: tensor.values() for name, tensor in predict(tensors).items()}
    for name, array in outputs.items():
        if not array.ndim or len(array) != size:
            problem = f"the output {name} has the shape {list(array.shape)} for {size} samples"
            raise StageError(problem, "evaluate outputs with a row per sample")
    return {name: array[: len(batch)] for name, array in outputs.items()}


def _postprocess(function: str, outputs: dict[str, Array], project: Path) -> dict[str, Array]:
    with reraise_as_stage_error(f"{function} failed", project):
        result = load_callable(function, project)(outputs)
    if not isinstance(result, Mapping):
        problem = f"{function} returned {type(result).__name__}"
        raise StageError(problem, "return a dict of arrays by name")
    return {name: np.asarray(value) for name, value in result.items()}
