"""Golden outputs are compared within the limits of the network's own float type."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Case, Tensor, load_case, save_case, tensor_of
from buildsys.stages.common.golden_check import check_outputs, golden_limits
from buildsys.workers.job import Job

UNSET = {"rtol": None, "cosine": None, "atol": None, "top1": None}
Y = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


class Graph:
    """A graph with an error of two eps of float16; it refuses the sizes ``refused``."""

    def __init__(self, *refused: int) -> None:
        self.refused = refused

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        size = inputs["x"].shape[0]
        if size in self.refused:
            raise StageError("ONNX Runtime cannot run the graph: Reshape failed")
        return {"y": tensor_of(Y[:size] + np.float32(2**-9))}


def golden(float_type: str, sizes: Mapping[str, int]) -> dict[str, Case]:
    return {
        case: Case({"x": tensor_of(Y[:size])}, {"y": tensor_of(Y[:size])}, float_type)
        for case, size in sizes.items()
    }


def job(folder: Path, **options: Any) -> Job:
    return Job("validate:m", "validate", "m", "", {"tolerance": UNSET, **options}, {}, {}, folder)


@pytest.mark.parametrize(
    ("float_type", "limits", "passed"),
    [
        ("float32", UNSET, False),
        ("float16", UNSET, True),
        ("bfloat16", UNSET, True),
        ("float16", {**UNSET, "rtol": 1e-4}, False),
    ],
)
def test_the_type_of_the_network_decides_unless_the_manifest_does(
    tmp_path: Path, float_type: str, limits: Any, passed: bool
) -> None:
    stage = job(tmp_path, tolerance=limits)
    cases = golden(float_type, {"opt": 3})
    (check,) = check_outputs(stage, "exported", Graph(), cases)  # type: ignore[arg-type]
    assert check.comparison.passed is passed
    if limits["rtol"] is not None:
        assert golden_limits(stage, cases)["rtol"] == limits["rtol"]


def test_an_engine_precision_has_the_wider_limit(tmp_path: Path) -> None:
    cases = golden("float16", {"opt": 3})
    assert golden_limits(job(tmp_path, precision="fp16"), cases)["rtol"] == 2e-2
    assert golden_limits(job(tmp_path, precision="bf16"), cases)["rtol"] == 1e-1


def test_a_golden_file_keeps_the_type_and_is_unchanged_for_float32(tmp_path: Path) -> None:
    tensors = {"y": tensor_of(Y)}
    for float_type in ("float32", "float16", "bfloat16"):
        save_case(tmp_path / f"{float_type}.npz", tensors, tensors, float_type)
        assert load_case(tmp_path / f"{float_type}.npz").float_type == float_type
    save_case(tmp_path / "plain.npz", tensors, tensors)
    plain = (tmp_path / "plain.npz").read_bytes()
    assert (tmp_path / "float32.npz").read_bytes() == plain


def test_a_case_that_cannot_run_names_remedies_for_fixed_sizes(tmp_path: Path) -> None:
    cases = golden("float32", {"min": 1, "opt": 2, "max": 3})
    with pytest.raises(StageError, match="Reshape failed; case min fails") as error:
        check_outputs(job(tmp_path), "exported", Graph(1, 3), cases)  # type: ignore[arg-type]
    assert "make the sizes numbers in inputs" in error.value.hint
    assert "export: {exporter: dynamo, opset: 18}" in error.value.hint
