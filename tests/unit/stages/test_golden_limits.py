"""Golden outputs are compared within the limits of the network's own float type."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Case, Tensor, load_case, save_case, tensor_of
from buildsys.stages.common.golden_check import (
    OutputRules,
    compare_case,
    failures_of,
    golden_limits,
    judge_agreement,
    output_rules,
)
from buildsys.stages.common.graph_runs import run_case
from buildsys.workers.job import Job

UNSET = {"rtol": None, "cosine": None, "atol": None, "top1": None}
Y = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


class RefusingGraph:
    """A graph that refuses every size."""

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        raise StageError("ONNX Runtime cannot run the graph: Reshape failed")


def golden(float_type: str) -> dict[str, Case]:
    return {"opt": Case({"x": tensor_of(Y)}, {"y": tensor_of(Y)}, float_type)}


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
    cases = golden(float_type)
    actual = {"y": tensor_of(Y + np.float32(2**-9))}  # off by two eps of float16
    allowed = golden_limits(stage, cases)
    checked = compare_case(cases["opt"], actual, allowed, OutputRules())
    assert checked.compared["y"].passed is passed
    if limits["rtol"] is not None:
        assert allowed["rtol"] == limits["rtol"]


NAN = np.where(Y > 0.5, np.nan, Y).astype(np.float32)
WRONG = {
    "other values": (Y[::-1].copy(), True),
    "NaN": (NAN, False),
    "another shape": (Y[:2], False),
    "another type": (Y.astype(np.float64), False),
}


@pytest.mark.parametrize("fault", WRONG)
def test_where_the_metric_decides_only_errors_of_values_pass(tmp_path: Path, fault: str) -> None:
    stage, cases = job(tmp_path, precision="int8", limit="metric"), golden("float32")
    values, passes = WRONG[fault]
    checked = compare_case(
        cases["opt"], {"y": tensor_of(values)}, golden_limits(stage, cases), output_rules(stage)
    ).compared["y"]
    assert checked.passed is passes
    assert checked.note.endswith("; the metric decides") is passes
    if passes:
        assert checked.note.startswith("relative error 1.45, allowed 0.3")
        assert checked.relative > 1
    assert not compare_case(cases["opt"], {}, {}, output_rules(stage)).compared["y"].passed


def test_where_the_metric_decides_agreement_and_classes_are_measured_only(tmp_path: Path) -> None:
    stage = job(tmp_path, precision="int8", limit="metric")
    rng, checks = np.random.default_rng(0), {}
    for number in range(40):
        x, scores, other = rng.standard_normal((3, 1, 10)).astype(np.float32)
        outputs = [{"y": v, "class": v.argmax(axis=1)} for v in (scores[None], other[None])]
        ours, theirs = ({n: tensor_of(a) for n, a in out.items()} for out in outputs)
        case = Case({"x": tensor_of(x[None])}, theirs)
        limits = golden_limits(stage, {"": case})
        checks[f"{number}"] = compare_case(case, ours, limits, output_rules(stage))
    judged, agreements = judge_agreement(checks, limits)
    assert agreements["y"].correlation < 0.5
    assert failures_of("int8", judged) == []


def test_an_engine_precision_has_the_wider_limit(tmp_path: Path) -> None:
    cases = golden("float16")
    assert golden_limits(job(tmp_path, precision="fp16"), cases)["rtol"] == 2e-2
    assert golden_limits(job(tmp_path, precision="bf16"), cases)["rtol"] == 1.5e-1


def test_a_golden_file_keeps_the_type_and_is_unchanged_for_float32(tmp_path: Path) -> None:
    tensors = {"y": tensor_of(Y)}
    for float_type in ("float32", "float16", "bfloat16"):
        save_case(tmp_path / f"{float_type}.npz", tensors, tensors, float_type)
        assert load_case(tmp_path / f"{float_type}.npz").float_type == float_type
    save_case(tmp_path / "plain.npz", tensors, tensors)
    plain = (tmp_path / "plain.npz").read_bytes()
    assert (tmp_path / "float32.npz").read_bytes() == plain


def test_a_case_that_cannot_run_names_remedies_for_fixed_sizes() -> None:
    with pytest.raises(StageError, match="Reshape failed; case min fails") as error:
        run_case(RefusingGraph(), "min", {"x": tensor_of(Y)})  # type: ignore[arg-type]
    assert "compute the size in forward from x.shape" in error.value.hint
