"""Records of a model on all samples, batch by batch."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from io import BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from buildsys.errors import StageError
from buildsys.evaluation.batch import MIB, Batch, Inputs, digests, rows_of_half
from buildsys.evaluation.metric import Metric, Records, join_records
from buildsys.evaluation.samples import open_samples
from buildsys.models.images import decode_image
from buildsys.models.user_code import load_callable, reraise_as_stage_error
from buildsys.onnx_graphs.tensors import Array, Tensor, load_arrays, tensor_of
from buildsys.system.files import replace_file

Predict = Callable[[dict[str, Tensor]], Mapping[str, Tensor]]
_NAMES, _DIGESTS = " names", " digests"  # not names of outputs
_LIMIT = 1024 * MIB
_SAVE_INTERVAL_S = 10.0


class Recorded(NamedTuple):
    """The records of all samples, with their names and digests."""

    records: Records
    names: list[str]
    digests: list[str]

    def half(self, half: str) -> "Recorded":
        """Select one half of the samples. Raises: StageError: there are none."""
        rows = rows_of_half(self.digests, half)
        if not rows:
            problem = "a half of the samples, chosen by their content, is empty"
            raise StageError(problem, "evaluate more samples that differ")
        records = {name: array[rows] for name, array in self.records.items()}
        return Recorded(records, *([of[row] for row in rows] for of in (self.names, self.digests)))

    def save(self, path: Path) -> None:
        """Write an .npz file."""
        texts = {_NAMES: np.array(self.names), _DIGESTS: np.array(self.digests)}
        content = BytesIO()
        np.savez(content, **self.records, **texts)  # type: ignore[arg-type]
        replace_file(path, content.getvalue())


def load_recorded(path: Path) -> Recorded:
    """Read the file of ``Recorded.save``."""
    arrays = load_arrays(path)
    names, digests = arrays.pop(_NAMES).tolist(), arrays.pop(_DIGESTS).tolist()
    return Recorded(arrays, names, digests)


def record(
    options: Mapping[str, Any],
    inputs: Inputs,
    project: Path,
    metric: Metric,
    predict: Predict,
    count: Callable[[int, int, str], None],
    parts: Path | None = None,
    images: Collection[str] = (),
) -> Recorded:
    """Run a model on all samples, in batches of sizes that it takes; fill the last one.

    ``count`` gets what is done, of how much (0: unknown), and the unit. A stopped run goes on with
    what it saved in the folder ``parts``, in files named by the number of samples read. ``images``
    are the inputs that take decoded images instead of their preprocessed values.
    Raises: StageError: samples or outputs do not fit.
    """
    steps, hook = options["preprocess"], options["postprocess"]
    postprocess = load_callable(hook, project) if hook else None
    declared = {name: {**port, "preprocess": steps.get(name)} for name, port in inputs.items()}
    colors = {name: steps[name]["color"] for name in images if name in steps}
    data = {**options["data"], "classes": options["classes"]}
    samples = open_samples(data, declared, project)
    usual, least, step = _batch_sizes(inputs, options["dims"], options["batch_size"])
    most = options["samples"] or samples.count or 0
    half, files = options.get("half"), sorted(parts.glob("*.npz")) if parts else []
    saved, waiting = [load_recorded(path) for path in files], list[Recorded]()
    in_memory = 0
    done, saved_at = int(files[-1].stem) if files else 0, time.monotonic()
    for whole in samples.batches(usual, done):
        batch = whole[: most - done] if options["samples"] else whole
        if not len(batch):
            break
        done += len(batch)
        marks = digests(batch)
        if half:
            rows = rows_of_half(marks, half)
            batch, marks = batch.take(rows), [marks[row] for row in rows]
        if len(batch):
            outputs = _outputs(batch, inputs, (least, step), predict, colors)
            if postprocess:
                outputs = _postprocess(postprocess, hook, outputs, project)
            records = metric.records(outputs, batch)
            in_memory += sum(array.nbytes for array in records.values())
            if in_memory > _LIMIT:
                problem = f"{metric.title} needs more than 1 GiB of predictions"
                raise StageError(problem, "set evaluate.samples, or evaluate a number per sample")
            waiting.append(Recorded(records, batch.names, marks))
        count(done, max(most, done) if most else 0, "samples")
        if parts and waiting and time.monotonic() - saved_at >= _SAVE_INTERVAL_S:
            parts.mkdir(parents=True, exist_ok=True)
            saved.append(_joined(waiting))
            saved[-1].save(parts / f"{done:012}.npz")
            waiting, saved_at = [], time.monotonic()
    return _joined([*saved, *waiting])


def require_same_samples(original: Recorded, other: Recorded) -> None:
    """Require the samples of the original model. Raises: StageError: the first other is named."""
    names = max(original.names, other.names, key=len)
    for name, expected, digest in zip_longest(names, original.digests, other.digests):
        if digest != expected:
            problem = f"the data changed: sample {name} differs from what the original model got"
            hint = "let the source yield the same samples in each run; build again"
            raise StageError(problem, hint)


def _joined(parts: Sequence[Recorded]) -> Recorded:
    return Recorded(
        join_records([part.records for part in parts]),
        [name for part in parts for name in part.names],
        [digest for part in parts for digest in part.digests],
    )


def _batch_sizes(
    inputs: Inputs, dims: Mapping[str, Any], wanted: int | None
) -> tuple[int, int, int]:
    """Find the usual and the smallest size of a batch, and the step between sizes."""
    first = next(iter(inputs.values()))["shape"][0]
    if not isinstance(first, str):
        return int(first), int(first), int(first)
    span = dims[first]
    least, step = int(span["min"] or 1), int(span["multiple_of"] or 1)
    usual = min(max(wanted or int(span["opt"]), least), int(span["max"]))
    return usual // step * step, least, step


def _outputs(
    batch: Batch,
    inputs: Inputs,
    sizes: tuple[int, int],
    predict: Predict,
    colors: Mapping[str, str],
) -> dict[str, Array]:
    """Run a batch, whose last sample is repeated up to the next of ``sizes``: least, step."""
    arrays = {name: (array, inputs[name]["dtype"]) for name, array in batch.inputs.items()}
    for name, color in colors.items():
        if not batch.images:
            problem = f"sample {batch.names[0]} is no image, and the engine preprocesses {name}"
            raise StageError(problem, "evaluate images, or remove inside from its preprocess")
        pixels = [decode_image(image, color) for image in batch.images]
        if len({image.shape for image in pixels}) > 1:  # they make no batch
            singles = (batch[row : row + 1] for row in range(len(batch)))
            parts = [_outputs(single, inputs, sizes, predict, colors) for single in singles]
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        arrays[name] = np.stack(pixels), "uint8"
    least, step = sizes
    size = max(least, -(-len(batch) // step) * step)
    rows = slice(None) if size == len(batch) else np.minimum(np.arange(size), len(batch) - 1)
    tensors = {name: tensor_of(array[rows], dtype) for name, (array, dtype) in arrays.items()}
    outputs = {name: tensor.values() for name, tensor in predict(tensors).items()}
    for name, array in outputs.items():
        if not array.ndim or len(array) != size:
            problem = f"the output {name} has the shape {list(array.shape)} for {size} samples"
            raise StageError(problem, "evaluate outputs with a row per sample")
    return {name: array[: len(batch)] for name, array in outputs.items()}


def _postprocess(
    function: Callable[..., Any], name: str, outputs: dict[str, Array], project: Path
) -> dict[str, Array]:
    with reraise_as_stage_error(f"{name} failed", project):
        result = function(outputs)
    if not isinstance(result, Mapping):
        problem = f"{name} returned {type(result).__name__}"
        raise StageError(problem, "return a dict of arrays by name")
    return {name: np.asarray(value) for name, value in result.items()}
