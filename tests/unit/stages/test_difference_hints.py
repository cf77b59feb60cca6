"""The hint for each kind of difference."""

import json
from pathlib import Path

import numpy as np
import pytest

from buildsys.onnx_graphs.agreement import ComparedCase
from buildsys.onnx_graphs.tensor_comparison import compare
from buildsys.onnx_graphs.tensors import Array, tensor_of
from buildsys.stages.common.difference_hints import difference_hint, read_branches

Y = np.arange(1.0, 5.0, dtype=np.float32)
NAN = np.array([1, 2, np.nan, 4], np.float32)


def hint(actual: Array, branches: list[str], expected: Array = Y) -> str:
    ours, theirs = {"y": tensor_of(actual)}, {"y": tensor_of(expected)}
    compared = {"y": compare(actual, expected, {"rtol": 1e-4})}
    return difference_hint(ComparedCase({}, theirs, ours, compared), "y", branches)


@pytest.mark.parametrize(
    ("actual", "branches", "start"),
    [
        (Y.astype(np.int32), ["net.py:8"], "convert the operands in forward before"),
        (Y + 1, ["net.py:8", "net.py:9"], "the export has fixed what forward decides at net.py:8,"),
        (Y[:3], ["net.py:8"], "the export has fixed what forward decides at net.py:8:"),
        (Y[:3], [], "compute the size in forward from x.shape"),
        (NAN, [], "write forward so that it stays finite"),
        (Y * 1.001, [], "if this is rounding, raise validate.rtol above 1.0e-03"),
        (Y + 1, [], "forward may decide by sizes or values in Python"),
    ],
)
def test_each_kind_of_difference_has_its_hint(
    actual: Array, branches: list[str], start: str
) -> None:
    assert hint(actual, branches).startswith(start)


def test_other_integers_lead_to_the_policies() -> None:
    labels = np.arange(100)
    share = "if nearly equal scores decide it, allow a share of other values: "
    policy = '{"policy": "tokens", "agreement": 0.99}'
    yaml = f'outputs: {{"y": {{"compare": {policy}}}}} (not tried)'
    assert hint(np.where(labels == 3, 9, labels), [], labels) == share + yaml
    assert "allow steps of 1: outputs: {" in hint(labels + (labels == 3), [], labels)
    assert hint(labels > 2, [], labels > 1) == share + yaml
    assert hint(labels + 1, [], labels).startswith("forward may decide by sizes or values")


@pytest.mark.parametrize(
    ("content", "places"),
    [
        ({"doubts": [{"kind": "branch", "place": "a"}, {"kind": "state", "place": "b"}]}, ["a"]),
        ({"doubts": [1]}, []),
        ([], []),
    ],
)
def test_an_unusable_result_names_no_branch(
    tmp_path: Path, content: object, places: list[str]
) -> None:
    file = tmp_path / "export.json"
    file.write_text(json.dumps(content))
    assert read_branches(file) == places
    assert read_branches(None) == read_branches(tmp_path / "missing") == []
