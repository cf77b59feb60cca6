"""Check that an engine is not evaluated on what it was calibrated on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from buildsys.backends.interface import read_batches
from buildsys.errors import StageError
from buildsys.evaluation.batch import CONTENT_DIGITS, Batch, content_digest, input_digests
from buildsys.evaluation.recording import Recorded
from buildsys.models.images import find_images
from buildsys.onnx_graphs.tensors import Tensor
from buildsys.workers.job import Job


def check_calibration(job: Job, original: Recorded) -> None:
    """Require samples that a calibrated engine has not seen, by content.

    Raises: StageError: the first one is named.
    """
    if "batches" not in job.inputs:
        return
    samples = _calibration_samples(job.inputs["batches"], job.options["inputs"])
    places = {digest: place for place, digest in reversed(samples)}  # the first of equal samples
    for name, data in job.options["calibration_images"].items():  # may be prepared in another way
        for file in find_images(data, name, len(samples), job.project):
            place = str(file.relative_to(job.project))
            places.setdefault(content_digest(file.read_bytes()), place)
    shared = {
        name: places[part]
        for name, digest in zip(original.names, original.digests, strict=True)
        for part in (digest[CONTENT_DIGITS:][:CONTENT_DIGITS], digest[:CONTENT_DIGITS])
        if part in places
    }
    if shared:
        name = next(iter(shared))
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
