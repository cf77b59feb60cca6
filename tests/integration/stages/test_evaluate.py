"""The stages predict and evaluate: verdicts, batches, hooks, other interpreters, mistakes."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluated_digits import TRAINED, Digits, digits, predicted
from PIL import Image

from buildsys.errors import StageError
from buildsys.system.toolchains import Toolchain

COUNT = len(digits()[1]) - TRAINED
INT8 = {
    "engines": [{"backend": "onnxruntime", "name": "e", "precision": "int8"}],
    "verify": {"int8": {"rtol": 10.0, "atol": 10.0}},
}


def calibrated(file: str) -> dict[str, Any]:
    calibration = {"data": {"x": {"npz": file}}, "batches": 2, "algorithm": "minmax"}
    return {**INT8, "calibration": calibration}


def test_an_engine_of_the_same_numbers_passes(tmp_path: Path) -> None:
    project = Digits(tmp_path, {"drop": "1%"})
    project.run("engine:m:e")
    original = project.run("predict:m").figures
    assert original["samples"] == COUNT
    assert original["value"] > 0.9
    result = project.run("evaluate:m:e")
    assert (result.status, result.figures["verdict"]) == ("passed", "passed")
    assert result.figures["value"] == result.figures["original"] == original["value"]
    assert result.figures["loss"] == 0.0 < result.figures["high"] < 0.01
    assert result.figures["flips"] == []
    classes = result.figures["classes"]
    assert sum(figure["samples"] for figure in classes) == COUNT
    assert all(figure["original"] == figure["engine"] for figure in classes)


def test_a_well_calibrated_engine_passes(tmp_path: Path) -> None:
    project = Digits(tmp_path, {"drop": "2%"}, **calibrated("calibration.npz"))
    project.quantize()
    result = project.evaluated()
    assert (result.status, result.reason) == ("passed", "")


def test_an_engine_of_bad_calibration_fails_and_its_flips_are_named(tmp_path: Path) -> None:
    project = Digits(tmp_path, {"drop": "1%"}, **calibrated("dark.npz"))
    project.quantize()
    result = project.evaluated()
    assert (result.status, result.figures["verdict"]) == ("failed", "failed")
    assert "the engine e of m: top-1 loses" in result.reason
    assert result.reason.endswith("1.0 % is allowed")
    assert "calibrate on data like these" in result.hint
    assert result.figures["low"] > 0.01
    flips = result.figures["flips"]
    assert len(flips) == 24
    with np.load(tmp_path / "val.npz") as stored:
        labels = [f"class {stored['labels'][int(flip['sample'])]}" for flip in flips]
    assert [flip["label"] for flip in flips] == labels
    assert all(flip["original"].startswith(f"{flip['label']} ") for flip in flips)
    assert not any(flip["engine"].startswith(f"{flip['label']} ") for flip in flips)


def test_few_samples_are_undecided_until_there_are_enough(tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    project = Digits(tmp_path / "few", {"drop": "1%", "samples": 40})
    result = project.evaluated()
    assert result.status == "failed"
    assert result.figures["samples"] == 40
    assert result.reason.startswith("undecided: top-1 loses 0")
    needed = result.figures["needed"]
    assert f"evaluate about {needed:,} samples, or raise evaluate.drop" in result.hint
    assert 40 < needed < COUNT
    (tmp_path / "enough").mkdir()
    enough = Digits(tmp_path / "enough", {"drop": "1%", "samples": needed})
    assert enough.evaluated().status == "passed"


@pytest.mark.parametrize("dims", [{"opt": 7, "multiple_of": 7, "min": 7, "max": 28}, None])
def test_the_last_batch_is_filled(tmp_path: Path, dims: dict[str, int] | None) -> None:
    """Sizes that a network takes are not those of the data."""
    sections: dict[str, Any] = {"dims": {"batch": dims}}
    if dims is None:  # a fixed batch
        sections = {"inputs": {"x": {"shape": [16, 1, 8, 8]}}, "dims": {}}
        sections["outputs"] = {"y": {"shape": [16, 10]}}
    result = Digits(tmp_path, {"drop": "1%"}, **sections).evaluated()
    assert result.status == "passed"
    assert result.figures["samples"] == COUNT
    assert COUNT % 16
    assert COUNT % 7


def test_hook_and_metric_of_the_project_are_used(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import numpy\n"
        "def chosen(outputs):\n"
        "    return {'digit': outputs['y'].argmax(1)}\n"
        "def distance(outputs, labels):\n"
        "    return numpy.abs(numpy.array(outputs) - labels)\n"
        "distance.per_sample = True\n"
        "distance.higher_is_better = False\n"
    )
    own = {"metric": {"python": "own.py:distance"}, "postprocess": "own.py:chosen"}
    result = Digits(tmp_path, {**own, "drop": "40%"}).evaluated()
    images, labels = (array[TRAINED:] for array in digits())
    assert result.figures["original"] == pytest.approx(abs(predicted(images) - labels).mean())
    assert result.figures["title"] == "own.py:distance"
    assert result.status == "passed"


def test_an_engine_of_another_interpreter_is_evaluated_there(tmp_path: Path) -> None:
    project = Digits(tmp_path, {"drop": "1%", "batch_size": 64})
    here = project.evaluated().figures
    there = project.run("evaluate:m:e", Toolchain("here", Path(sys.executable), {})).figures
    assert there == here


def test_a_missing_engine_is_unavailable(tmp_path: Path) -> None:
    project = Digits(tmp_path, {})
    project.run("predict:m")
    result = project.run("evaluate:m:e")
    assert result.status == "unavailable"
    assert "there is no engine" in result.reason


def test_images_are_preprocessed_as_the_manifest_says(tmp_path: Path) -> None:
    images, labels = (array[-60:] for array in digits())
    (tmp_path / "val").mkdir()
    for number, image in enumerate(images):
        file = tmp_path / f"val/{number:02}.png"
        Image.fromarray(np.round(image[0] * 16).astype(np.uint8)).save(file)
    lines = [f"{number:02}.png,{label}\n" for number, label in enumerate(labels)]
    (tmp_path / "val.csv").write_text("".join(lines))
    steps = {"color": "gray", "divide": 16}
    project = Digits(
        tmp_path,
        {"data": {"images": "val", "labels": "val.csv"}, "drop": "10%"},
        inputs={"x": {"shape": ["batch", 1, 8, 8], "preprocess": steps}},
    )
    result = project.evaluated()
    assert result.status == "passed"
    assert result.figures["original"] == pytest.approx((predicted(images) == labels).mean())


EMPTY = np.zeros((9, 1, 8, 8), np.float32)
OWN = {"data": {"python": "own.py:rows"}}
FAULTS: dict[str, tuple[Any, dict[str, Any], str]] = {  # samples or code, `evaluate`, sentence
    "labels of another number": ((EMPTY, [1] * 8), {}, "val.npz: x has 9 rows, labels has 8"),
    "a label outside": (
        (EMPTY, [1, 10, *[0] * 7]), {}, "the label 10 of sample 1 is not one of 10 classes",
    ),
    "no samples": ((EMPTY[:0], []), {}, "the data has no samples"),
    "an empty folder": (
        "", {"data": {"images": "empty", "labels": "own.py"}}, "there are no images in empty",
    ),
    "a metric of NaN": (
        "def nan(outputs, labels):\n    return float('nan')",
        {"metric": {"python": "own.py:nan"}},
        "own.py:nan of these samples is nan",
    ),
    "another value": (
        "def rows():\n    yield [1.0] * 64",
        OWN,
        "own.py:rows yields as sample 0 a value of type list",
    ),
    "another shape": (
        "import numpy\ndef rows():\n    yield {'x': numpy.zeros((1, 8, 7), 'f')}, 1",
        OWN,
        "sample 0 has the shape [1, 8, 7] for the input x, which needs [1, 8, 8]",
    ),
    "a generator that fails": (
        "def rows():\n    yield from open('none.txt')",
        OWN,
        "own.py:rows failed at sample 0: FileNotFoundError",
    ),
    "a hook of another value": (
        "def hook(outputs):\n    return 3",
        {"postprocess": "own.py:hook"},
        "own.py:hook returned int",
    ),
    "no such output": ("", {"output": "z"}, "the model has no output z"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_mistakes_are_a_sentence(tmp_path: Path, fault: str) -> None:
    written, evaluation, problem = FAULTS[fault]
    project = Digits(tmp_path, evaluation)
    (tmp_path / "empty").mkdir()
    (tmp_path / "own.py").write_text(written if isinstance(written, str) else "")
    if isinstance(written, tuple):
        np.savez(tmp_path / "val.npz", x=written[0], labels=written[1])
    with pytest.raises(StageError) as raised:
        project.run("predict:m")
    assert problem in raised.value.problem
    assert "\n" not in f"{raised.value}"


@pytest.mark.parametrize("change", ["a label", "an input", "another order", "one more", "one less"])
def test_data_that_changes_after_predict_are_refused(tmp_path: Path, change: str) -> None:
    project = Digits(tmp_path, {})
    project.run("engine:m:e")
    project.run("predict:m")
    with np.load(tmp_path / "val.npz") as stored:
        images, labels = stored["x"], stored["labels"]
    if change == "a label":
        labels[7] = (labels[7] + 1) % 10
    elif change == "an input":
        images[7, 0, 3, 3] += 0.5
    else:
        order = {"one more": [*range(COUNT), 0], "one less": [*range(COUNT - 1)]}
        rows = order.get(change, [*range(7), *range(8, COUNT), 7])
        images, labels = images[rows], labels[rows]
    np.savez(tmp_path / "val.npz", x=images, labels=labels)
    place = {"one more": COUNT, "one less": COUNT - 1}.get(change, 7)
    with pytest.raises(StageError, match=f"the data changed: sample {place} differs from what"):
        project.run("evaluate:m:e")
