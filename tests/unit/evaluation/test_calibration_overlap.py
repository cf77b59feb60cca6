"""Engines are not evaluated on what they were calibrated on."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluation_sources import make_image

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
    evaluated: dict[str, Any] | None = None,
    images: dict[str, Any] | None = None,
) -> Job:
    file = folder / "batches.npz"
    with zipfile.ZipFile(file, "w") as archive:
        for number, array in enumerate(batches):
            write_array(archive, f"{number}/x", array)
    options = {
        "inputs": {"x": {"shape": ["batch", 3], "dtype": dtype}},
        "evaluate": {"data": evaluated or {"npz": "val.npz"}},
        "calibration_images": images or {},
    }
    inputs = {"batches": file}
    return Job("evaluate:m:e", "evaluate", "m", "e", options, inputs, {}, folder)


def recorded(array: Array, names: list[str] | None = None) -> Recorded:
    count = len(array)
    batch = Batch(names or [str(i) for i in range(count)], {"x": array}, [0] * count)
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


def test_an_image_that_is_prepared_otherwise_is_found_by_its_bytes(tmp_path: Path) -> None:
    for number in range(4):
        make_image(tmp_path / f"calibration/{number}.png", 10 + number)
        make_image(tmp_path / f"val/{number}.png", 13 + number)
    names = [f"val/{number}.png" for number in range(4)]
    batches = [np.full((2, 3), number, "float32") for number in range(2)]
    samples, images = (
        recorded(np.full((4, 3), 9, "float32"), names),
        {"x": {"images": "calibration"}},
    )
    job = make_job(tmp_path, batches, evaluated={"images": "val"}, images=images)
    with pytest.raises(StageError, match=r"the sample val/0\.png is in .*: calibration/3\.png"):
        check_calibration(job, samples)
    three = make_job(
        tmp_path, [batches[0], batches[1][:1]], evaluated={"images": "val"}, images=images
    )
    check_calibration(three, samples)  # the calibration took three of four images
    Path(tmp_path / "calibration/1.png").write_bytes((tmp_path / "val/2.png").read_bytes())
    with pytest.raises(StageError, match=r"the sample val/2\.png is in .*: calibration/1\.png"):
        check_calibration(three, samples)


def test_an_engine_without_calibration_may_use_all_data(tmp_path: Path) -> None:
    array = np.zeros((2, 3), "float32")
    job = make_job(tmp_path, [array])
    check_calibration(Job(**{**vars(job), "inputs": {}}), recorded(array))
