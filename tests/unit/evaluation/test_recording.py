"""Records of a model on all samples."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from buildsys.errors import StageError
from buildsys.evaluation import recording
from buildsys.evaluation.metrics import load_metric
from buildsys.evaluation.recording import Recorded, record
from buildsys.onnx_graphs.tensors import Tensor

COUNT = 50
INPUTS = {"x": {"shape": ["batch", 3], "dtype": "float32"}}
OPTIONS: dict[str, Any] = {
    "data": {"npz": "data.npz", "labels": "labels"},
    "metric": "top1", "output": None, "postprocess": None, "batch_size": 8, "samples": None,
    "dims": {"batch": {"min": 4, "opt": 8, "max": 16, "multiple_of": 4}},
    "preprocess": {}, "classes": [],
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((COUNT, 3)).astype("float32")
    np.savez(tmp_path / "data.npz", x=x, labels=rng.integers(0, 3, COUNT))
    return tmp_path


class Model:
    """Returns its input, and fails after some calls."""

    def __init__(self, calls: int = COUNT) -> None:
        self.sizes: list[int] = []
        self._calls = calls

    def __call__(self, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        if len(self.sizes) == self._calls:
            raise KeyboardInterrupt
        self.sizes.append(inputs["x"].shape[0])
        return {"y": inputs["x"]}


def recorded(project: Path, model: Model, parts: Path | None = None, **fields: Any) -> Recorded:
    options = {**OPTIONS, **fields}
    metric = load_metric(options["metric"], options, project)
    return record(options, INPUTS, project, metric, model, lambda *_: None, parts)


def test_batches_have_sizes_that_the_model_takes(project: Path) -> None:
    model = Model()
    whole = recorded(project, model)
    assert model.sizes == [8] * 6 + [4]
    assert len(whole.names) == len(whole.records["label"]) == COUNT
    first = recorded(project, Model(), samples=10)
    assert (first.names, first.digests) == (whole.names[:10], whole.digests[:10])
    assert recorded(project, Model(), batch_size=16).digests == whole.digests


def test_halves_have_no_input_in_common_and_are_those_of_the_whole(project: Path) -> None:
    with np.load(project / "data.npz") as stored:
        x, labels = (np.concatenate([stored[name]] * 2) for name in ("x", "labels"))
    np.savez(project / "data.npz", x=x, labels=labels)  # every sample twice
    whole, names = recorded(project, Model()), list[str]()
    inputs = []
    for half in ("search", "rest"):
        part = recorded(project, Model(), half=half)
        assert part.digests == whole.half(half).digests
        np.testing.assert_array_equal(part.records["label"], whole.half(half).records["label"])
        names += part.names
        inputs.append({x[int(name)].tobytes() for name in part.names})
    assert sorted(names) == sorted(whole.names)
    assert not inputs[0] & inputs[1]
    assert min(map(len, inputs)) > COUNT / 4


def test_a_half_without_samples_is_a_sentence(project: Path) -> None:
    np.savez(project / "data.npz", x=np.ones((9, 3), np.float32), labels=[1] * 9)
    whole, problems = recorded(project, Model()), []
    for half in ("search", "rest"):
        try:
            whole.half(half)
        except StageError as error:
            problems.append(error.problem)
    assert problems == ["a half of the samples, chosen by their content, is empty"]


@pytest.mark.parametrize("half", [{}, {"half": "rest"}])
def test_a_stopped_run_goes_on(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: dict[str, str]
) -> None:
    monkeypatch.setattr(recording, "_SAVE_INTERVAL_S", 0.0)
    parts = tmp_path / "parts"
    with pytest.raises(KeyboardInterrupt):
        recorded(project, Model(calls=3), parts, **half)
    model, rest = Model(), Model()
    whole, again = recorded(project, model, **half), recorded(project, rest, parts, **half)
    assert len(rest.sizes) == len(model.sizes) - 3
    assert (again.names, again.digests) == (whole.names, whole.digests)
    for name, array in whole.records.items():
        np.testing.assert_array_equal(again.records[name], array)


def test_predictions_of_all_samples_are_limited(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(array.nbytes for array in recorded(project, Model()).records.values())
    monkeypatch.setattr(recording, "_LIMIT", size)
    recorded(project, Model())
    monkeypatch.setattr(recording, "_LIMIT", size - 1)
    with pytest.raises(StageError, match="top-1 needs more than 1 GiB of predictions"):
        recorded(project, Model())
