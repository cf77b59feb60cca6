"""Check that an engine is not evaluated on what it was calibrated on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from blake3 import blake3

from buildsys.backends.interface import read_batches
from buildsys.errors import StageError
from buildsys.evaluation.batch import INPUT_DIGITS, Batch, input_digests
from buildsys.evaluation.recording import Recorded
from buildsys.models.images import find_images
from buildsys.onnx_graphs.tensors import Tensor
from buildsys.workers.job import Job

_IMAGES = ("images", "folder")


def check_calibration(job: Job, original: Recorded) -> None:
    """Require samples that a calibrated engine has not seen, by content.

    Raises: StageError: the first one is named.
    """
    if "batches" not in job.inputs:
        return
    seen = _calibration_samples(job.inputs["batches"], job.options["inputs"])
    places = {digest: place for place, digest in reversed(seen)}  # the first of equal samples
    shared = {
        name: places[digest[:INPUT_DIGITS]]
        for name, digest in zip(original.names, original.digests, strict=True)
        if digest[:INPUT_DIGITS] in places
    }
    if any(kind in job.options["evaluate"]["data"] for kind in _IMAGES):
        images = job.options["calibration_images"].items()
        files = [
            f for name, data in images for f in find_images(data, name, len(seen), job.project)
        ]
        shared = {**dict(_shared_files(original.names, files, job.project)), **shared}
    if shared:
        name = next(name for name in original.names if name in shared)
        count = f" and {len(shared) - 1} more are" if shared.keys() - {name} else " is"
        problem = f"the sample {name}{count} in the calibration data: {shared[name]}"
        hint = "correct calibration.data or evaluate.data: they may have no sample in common"
        raise StageError(problem, hint)


def _calibration_samples(
    batches: Path, inputs: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, str]]:
    """List the place and the digest of all samples of the calibration."""
    dtypes = {name: port["dtype"] for name, port in inputs.items()}
    samples = []
    for number, arrays in enumerate(read_batches(batches, dtypes)):
        values = {name: Tensor(array, dtypes[name]).values() for name, array in arrays.items()}
        digests = enumerate(input_digests(Batch([], values, [])))
        samples += [(f"batch {number}, row {row}", digest) for row, digest in digests]
    return samples


def _shared_files(
    names: Sequence[str], files: Sequence[Path], project: Path
) -> Iterator[tuple[str, str]]:
    """Find samples with the bytes of a calibration file, which is prepared in another way."""
    sizes = {file.stat().st_size for file in files}
    contents = {_content(file): file for file in reversed(files)}
    for name in names:
        path = project / name
        if path.stat().st_size in sizes and (equal := contents.get(_content(path))):
            yield name, str(equal.relative_to(project))


def _content(file: Path) -> bytes:
    return blake3(file.read_bytes()).digest()
