"""The example of docs/accuracy.md: trained, built and evaluated, with good and bad calibration."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from project_folder import REPOSITORY, TIMEOUT_S, ProjectFolder
from ready_project import TorchProject

EXAMPLE = REPOSITORY / "docs/examples/accuracy"
WIDE_LIMITS = (
    "verify: {int8: {rtol: 100, cosine: -1, class_agreement: 0, correlation: -1, "
    "spread_error: 100, slope: 100, channel_error: 100}}\n"
)
DARK = '''

def dark(shape, dtype, which, seed):
    """Draw images with values up to 0.02."""
    return examples(shape, dtype, which, seed) / 50
'''


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained weights."""
    copy = tmp_path_factory.mktemp("example") / "accuracy"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("*.pt", "build", ".buildsys"))
    subprocess.run([sys.executable, "train.py"], cwd=copy, check=True, timeout=TIMEOUT_S)
    return copy / "weights"


@pytest.fixture
def example(empty_place: TorchProject) -> TorchProject:
    """The project as committed, without weights."""
    ignored = shutil.ignore_patterns("*.pt", "build", ".buildsys")
    shutil.copytree(EXAMPLE, empty_place.root, dirs_exist_ok=True, ignore=ignored)
    return empty_place


def result(project: ProjectFolder, model: str, engine: str) -> dict[str, Any]:
    path = project.root / f"build/{model}/evaluate/{engine}.json"
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_good_engines_pass_and_missing_weights_say_how_to_make_them(
    example: TorchProject, weights: Path
) -> None:
    assert sum(file.stat().st_size for file in weights.glob("*.pt")) <= 1_000_000
    for name in ("digits", "requests"):
        shutil.copy(weights / f"{name}.pt", example.root / "weights")
    done = example.buildsys("build", "evaluate:digits", "evaluate:requests:ort-int8")
    assert done.code == 0, done.out + done.err
    evaluated = [("digits", "ort-int8"), ("requests", "ort-int8")]
    if find_spec("openvino") and find_spec("nncf"):
        evaluated.append(("digits", "ov-int8"))
    for model, engine in evaluated:
        content = result(example, model, engine)
        assert content["verdict"] == "passed"
        assert content["original"] > 0.85
    assert result(example, "digits", "rtx-int8")["status"] in ("passed", "unavailable")
    refused = example.buildsys("build", "export:shapes")
    assert refused.code != 0
    assert "weights/shapes.pt is not made yet: run `python train.py`" in refused.out


def test_boxes_are_evaluated_after_a_hook(example: TorchProject, weights: Path) -> None:
    shutil.copy(weights / "shapes.pt", example.root / "weights")
    done = example.buildsys("build", "evaluate:shapes:ort-int8")
    assert done.code == 0, done.out + done.err
    content = result(example, "shapes", "ort-int8")
    assert content["title"] == "mAP 50-95"
    assert content["original"] > 0.7
    assert content["high"] <= content["drop"]


def test_bad_calibration_fails_by_the_metric_alone(example: TorchProject, weights: Path) -> None:
    shutil.copy(weights / "digits.pt", example.root / "weights")
    with (example.root / "networks/digits.py").open("a") as file:
        file.write(DARK)
    data = "{data: {image: {python: networks/digits.py:dark}}, batches: 4}\n" + WIDE_LIMITS
    example.edit("configs/models/digits.yaml", "{batches: 4}\n", data)
    done = example.buildsys("build", "evaluate:digits:ort-int8")
    assert done.code == 1
    assert "verify:digits:ort-int8" in done.passed
    assert "the engine ort-int8 of digits: top-1 loses" in done.out
    assert "1.0 % is allowed; calibrate on data like these" in done.out
    content = result(example, "digits", "ort-int8")
    assert content["verdict"] == "failed"
    assert content["low"] > 0.5


def test_too_few_samples_are_undecided(example: TorchProject, weights: Path) -> None:
    shutil.copy(weights / "digits.pt", example.root / "weights")
    example.edit("configs/models/digits.yaml", "drop: 1%", "drop: 1%, samples: 50")
    done = example.buildsys("build", "evaluate:digits:ort-cpu")
    assert done.code == 1
    content = result(example, "digits", "ort-cpu")
    assert content["samples"] == 50 < content["needed"]
    assert f"evaluate about {content['needed']} samples" in done.out
