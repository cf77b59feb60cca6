"""Records of a model on all samples."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from buildsys.errors import StageError
from buildsys.evaluation import recording
from buildsys.evaluation.metrics import load_metric
from buildsys.evaluation.recording import Recorded, record
from buildsys.onnx_graphs.tensors import Tensor, tensor_of

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


def test_an_engine_that_preprocesses_gets_images_of_each_size(tmp_path: Path) -> None:
    sizes = [(8, 8), (8, 8), (6, 9), (8, 8), (5, 5)]
    (tmp_path / "images").mkdir()
    for number, size in enumerate(sizes):
        Image.new("RGB", size, (40 * number, 0, 0)).save(tmp_path / f"images/{number}.png")
    rows = [f"{number}.png,{number % 3}" for number in range(len(sizes))]
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    steps = {
        "resize": None, "pad": None, "interpolation": "bilinear", "color": "rgb",
        "layout": "nchw", "divide": 1.0, "mean": [0.0], "std": [1.0],
    }  # fmt: skip
    inputs = {"x": {"shape": ["batch", 3, 4, 4], "dtype": "float32"}}
    options = {
        **OPTIONS, "preprocess": {"x": steps}, "batch_size": 4,
        "data": {"images": "images", "labels": "labels.csv"},
        "dims": {"batch": {"min": 1, "opt": 4, "max": 4, "multiple_of": 1}},
    }  # fmt: skip
    shapes: list[tuple[int, ...]] = []

    def predict(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        array = tensors["x"].array
        shapes.append(array.shape)
        red = array[:, 0, 0, 0]
        return {"y": tensor_of(np.stack([red, -1.0 * red, red * 0], axis=1))}

    def run(data: Any = options, images: tuple[str, ...] = ("x",)) -> Recorded:
        metric = load_metric("top1", data, tmp_path)
        return record(data, inputs, tmp_path, metric, predict, lambda *_: None, None, images)

    raw = run()
    # one batch of one size is whole
    assert shapes == [(1, 8, 8, 3), (1, 8, 8, 3), (1, 9, 6, 3), (1, 8, 8, 3), (1, 5, 5, 3)]
    prepared = run(images=())
    assert (raw.names, raw.digests) == (prepared.names, prepared.digests)
    shapes.clear()
    run({**options, "batch_size": 2})
    assert shapes[0] == (2, 8, 8, 3)

    np.savez(tmp_path / "data.npz", x=np.zeros((2, 3, 4, 4), np.float32), labels=[0, 1])
    with pytest.raises(StageError, match=r"sample 0 is no image, and the engine preprocesses x"):
        run({**options, "data": {"npz": "data.npz", "labels": "labels"}})
