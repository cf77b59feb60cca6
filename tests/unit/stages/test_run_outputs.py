"""One call of a real engine: classes, ranges and the file of all outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import save_tensors, tensor_of
from buildsys.stages.run import engine as engine_stage
from buildsys.stages.run.engine import best_classes
from buildsys.workers.job import Job


def best(values: Any, activation: str = "softmax", top: int = 2) -> list[dict[str, Any]]:
    array = np.asarray(values, np.float32)
    count = array.shape[-1]
    return best_classes("y", tensor_of(array), activation=activation, count=count, top=top)


def test_classes_are_sorted_by_probability() -> None:
    (row,) = best([[0.0, np.log(3), -np.inf]], top=5)
    assert row["index"] == [1, 0, 2]
    assert row["score"] == pytest.approx([0.75, 0.25, 0])
    (row,) = best([0.0, 100.0], "sigmoid")
    assert row == {"index": [1, 0], "score": pytest.approx([1, 0.5])}
    (row,) = best([[0.2, 0.7, 0.1]], "none", top=1)
    assert row == {"index": [1], "score": pytest.approx([0.7])}


def test_large_values_equal_classes_and_nan_are_no_problem() -> None:
    (row,) = best([[1e6, 1e6, -1e6]])
    assert row == {"index": [0, 1], "score": [0.5, 0.5]}
    (row,) = best([[np.nan, 1.0]], "none")
    assert row["index"] == [1, 0]
    assert len(best(np.zeros((2, 3, 4)))) == 6  # a row per item
    assert [one["index"] for one in best(np.zeros((0, 4)))] == []


def test_another_number_of_classes_is_refused() -> None:
    with pytest.raises(StageError) as error:
        best_classes("y", tensor_of(np.zeros((1, 10))), activation="none", count=9, top=5)
    assert str(error.value) == (
        "outputs.y.labels has 9 names, the output has the shape [1, 10]; "
        "name each class of its last axis once"
    )


class Engine:
    """A loaded engine with fixed outputs."""

    def __init__(self, outputs: dict[str, Any]) -> None:
        self._outputs = outputs

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        assert inputs["x"].tolist() == [1, 2]
        return self._outputs

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None: ...


def test_all_outputs_are_described_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ml_dtypes

    outputs = {
        "file": np.array([[1.0, np.nan, -2.5]], np.float32),  # a parameter of numpy.savez
        "half": np.array([1.5], ml_dtypes.bfloat16),
        "flags": np.array([True, False]),
        "none": np.zeros((0, 4), np.float32),
        "words": np.array(["a", "b"]),
        "a/b": np.array(7, np.int64),
    }
    monkeypatch.setattr(engine_stage, "load_engine", lambda *_, **__: Engine(outputs))
    save_tensors(tmp_path / "in.npz", {"x": tensor_of(np.array([1, 2]))})
    job = Job(
        target="run:net:ort", stage="", model="net", variant="ort", project=tmp_path,
        options={"labels": {}, "top": 5},
        inputs={"engine": tmp_path / "engine.onnx", "inputs": tmp_path / "in.npz"},
        outputs={"outputs": tmp_path / "out.npz"},
    )  # fmt: skip
    figures = engine_stage.run(job).figures
    assert figures["latency_ms"] > 0
    assert json.loads(json.dumps(figures["outputs"])) == {
        "file": {"dtype": "float32", "shape": [1, 3], "min": -2.5, "max": 1.0, "mean": -0.75,
                 "non_finite": 1},
        "half": {"dtype": "bfloat16", "shape": [1], "min": 1.5, "max": 1.5, "mean": 1.5,
                 "non_finite": 0},
        "flags": {"dtype": "bool", "shape": [2], "min": False, "max": True, "mean": 0.5,
                  "non_finite": 0},
        "none": {"dtype": "float32", "shape": [0, 4], "non_finite": 0},
        "words": {"dtype": "string", "shape": [2]},
        "a/b": {"dtype": "int64", "shape": [], "min": 7, "max": 7, "mean": 7.0, "non_finite": 0},
    }  # fmt: skip
    with np.load(tmp_path / "out.npz") as written:  # without pickled objects
        assert {name: str(written[name].dtype) for name in written.files} == {
            "file": "float32", "half": "float32", "flags": "bool", "none": "float32",
            "words": "<U1", "a/b": "int64",
        }  # fmt: skip
