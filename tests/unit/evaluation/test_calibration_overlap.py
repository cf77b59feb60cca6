"""Engines are not evaluated on what they were calibrated on."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from evaluation_sources import IMAGES, make_image, names, read

from buildsys.errors import StageError
from buildsys.evaluation.batch import Batch, digests
from buildsys.evaluation.recording import Recorded
from buildsys.onnx_graphs.tensors import Array, tensor_of, write_array
from buildsys.stages.evaluate.calibration import check_calibration
from buildsys.workers.job import Job


def make_job(
    folder: Path,
    batches: list[Array],
    dtype: str = "float32",
    images: dict[str, Any] | None = None,
) -> Job:
    file = folder / "batches.npz"
    with zipfile.ZipFile(file, "w") as archive:
        for number, array in enumerate(batches):
            write_array(archive, f"{number}/x", array)
    options = {
        "inputs": {"x": {"shape": ["batch", 3], "dtype": dtype}},
        "calibration_images": images or {},
    }
    inputs = {"batches": file}
    return Job("evaluate:m:e", "evaluate", "m", "e", options, inputs, {}, folder)


def recorded(array: Array) -> Recorded:
    batch = Batch([str(row) for row in range(len(array))], {"x": array}, [0] * len(array))
    return Recorded({}, batch.names, digests(batch))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64"])
def test_a_sample_of_the_calibration_is_found_by_content(tmp_path: Path, dtype: str) -> None:
    values = np.arange(24).reshape(8, 3).astype("float32")
    tensor = tensor_of(values, dtype)
    job = make_job(tmp_path, [tensor.array[:3], tensor.array[3:6]], dtype)
    check_calibration(job, recorded(tensor.values()[6:]))
    with pytest.raises(StageError) as caught:
        check_calibration(job, recorded(tensor.values()[[7, 4, 6, 0]]))
    assert caught.value.problem == (
        "the sample 1 and 1 more are in the calibration data: batch 1, row 1"
    )


@pytest.mark.parametrize("kind", ["images", "parquet"])
def test_an_image_that_is_prepared_otherwise_is_found_by_its_bytes(
    tmp_path: Path, kind: str
) -> None:
    files = [tmp_path / f"val/{number}.png" for number in range(4)]
    for number, file in enumerate(files):
        make_image(tmp_path / f"calibration/{number}.png", 10 + number)
        make_image(file, 13 + number)
    (tmp_path / "val.csv").write_text("".join(f"{file.name},0\n" for file in files))

    def evaluated() -> Recorded:
        data = {"images": "val", "labels": "val.csv"}
        if kind == "parquet":
            images = [{"bytes": file.read_bytes()} for file in files]
            pq.write_table(pa.table({"image": images, "label": [0] * 4}), tmp_path / "val.parquet")
            data = {"parquet": "val.parquet"}
        batches = read(tmp_path, data, IMAGES, size=3)
        return Recorded({}, names(batches), [d for batch in batches for d in digests(batch)])

    batches = [np.full((2, 3), number, "float32") for number in range(2)]
    images = {"x": {"images": "calibration"}}
    job = make_job(tmp_path, batches, images=images)
    with pytest.raises(StageError, match=r"the sample (val/)?0.* is in .*: calibration/3\.png"):
        check_calibration(job, evaluated())
    three = make_job(tmp_path, [batches[0], batches[1][:1]], images=images)
    check_calibration(three, evaluated())  # the calibration took three of four images
    Path(tmp_path / "calibration/1.png").write_bytes(files[2].read_bytes())
    with pytest.raises(StageError, match=r"the sample (val/)?2.* is in .*: calibration/1\.png"):
        check_calibration(three, evaluated())


def test_an_engine_without_calibration_may_use_all_data(tmp_path: Path) -> None:
    array = np.zeros((2, 3), "float32")
    job = make_job(tmp_path, [array])
    check_calibration(Job(**{**vars(job), "inputs": {}}), recorded(array))
