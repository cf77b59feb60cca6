"""Check that an engine is not evaluated on what it was calibrated on."""

from buildsys.backends.interface import read_batches
from buildsys.errors import StageError
from buildsys.evaluation.batch import CONTENT_DIGITS, Batch, content_digest, input_digests
from buildsys.evaluation.recording import Recorded
from buildsys.models.images import find_images
from buildsys.onnx_graphs.tensors import Tensor
from buildsys.workers.job import Job


def check_calibration(job: Job, original: Recorded) -> None:
    """Require that calibration has seen none of the samples, by content.

    Raises: StageError: the first one is named.
    """
    if "batches" not in job.inputs:
        return
    dtypes = {name: port["dtype"] for name, port in job.options["inputs"].items()}
    places: dict[str, str] = {}  # the first of equal samples
    count = 0
    for number, arrays in enumerate(read_batches(job.inputs["batches"], dtypes)):
        values = {name: Tensor(array, dtypes[name]).values() for name, array in arrays.items()}
        digests = input_digests(Batch([], values, []))
        count += len(digests)
        for row, digest in enumerate(digests):
            places.setdefault(digest, f"batch {number}, row {row}")
    for name, data in job.options["calibration_images"].items():  # may be prepared in another way
        for file in find_images(data, name, count, job.project):
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
        others = f" and {len(shared) - 1} more are" if len(shared) > 1 else " is"
        problem = f"the sample {name}{others} in the calibration data: {shared[name]}"
        hint = "correct calibration.data or evaluate.data: they may have no sample in common"
        raise StageError(problem, hint)
