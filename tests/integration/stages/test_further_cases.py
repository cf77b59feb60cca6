"""Wrong graphs that the four shape cases and one set of values do not show."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from export_jobs import NETWORKS
from stage_jobs import manifest, stage_job

from buildsys.errors import StageError
from buildsys.plan.graph_points import graph_points, size_ranges
from buildsys.project.plan import plan_model
from buildsys.stages.export import stage as export
from buildsys.stages.reference import stage as reference
from buildsys.stages.surgery import stage as surgery
from buildsys.stages.validate import stage as validate
from buildsys.stages.validate import stress
from buildsys.workers.job import Job

VALUE_NETWORKS = "tests/integration/sample_value_networks.py"
LENGTH = {"x": {"shape": ["batch", "length"]}}
LONG = {"batch": {"min": 1, "opt": 2, "max": 4}, "length": {"min": 2, "opt": 8, "max": 64}}


def validate_job(folder: Path, name: str, **sections: Any) -> Job:
    """Return the job of validate after the stages before it; the graph is not simplified."""
    network = name if ":" in name else f"{NETWORKS}:{name}"
    source = {"python": network, "kwargs": sections.pop("kwargs", {})}
    resolved = manifest(**{"source": source, "inputs": LENGTH, "dims": LONG, **sections})
    simplified = "/surgery/after_export/" if "surgery" in sections else "/export/"

    def job_of(stage: str) -> Job:
        action = next(action for action in plan_model(resolved) if action.stage == stage)
        paths = {
            role: folder / ref.path.replace("/simplify/", simplified)
            for role, ref in action.inputs.items()
        }
        job = stage_job(stage, resolved, folder)
        return replace(job, inputs={role: path for role, path in paths.items() if path.exists()})

    for stage in (export, reference, *((surgery,) if "surgery" in sections else ())):
        assert stage.run(job_of(stage.__name__.split(".")[-2])).status == "passed"
    return job_of("validate")


def test_a_branch_on_a_size_between_the_cases_fails(tmp_path: Path) -> None:
    result = validate.run(validate_job(tmp_path, "Branches", kwargs={"special": 57}))
    assert result.status == "failed"
    assert "output0 differs in case size-" in result.reason
    assert "length 57" in result.reason
    assert "narrow dims and inputs.NAME.data" in result.hint
    assert {failure["dims"]["length"] for failure in result.figures["failures"]} >= {57}


@pytest.mark.parametrize("name", ["Branches", "IndirectBranch", "Looked", "SquareBranch"])
def test_all_sizes_of_a_small_input_show_any_branch(tmp_path: Path, name: str) -> None:
    kwargs = {"period": 23} if name == "Branches" else {}
    result = validate.run(validate_job(tmp_path, name, kwargs=kwargs))
    assert result.status == "failed"
    assert "narrow dims" in result.hint
    failures = result.figures["failures"]
    assert {failure["case"] for failure in failures} <= {*result.figures["dims"]}
    assert len(result.figures["dims"]) < 30  # only sizes that differ


def test_sizes_with_and_without_ties_are_compared(tmp_path: Path) -> None:
    result = validate.run(validate_job(tmp_path, f"{VALUE_NETWORKS}:Mirrored"))
    assert {failure["dims"]["length"] for failure in result.figures["failures"]} == {57}


def test_one_drawn_size_is_higher_than_wide(tmp_path: Path) -> None:
    inputs = {"x": {"shape": [1, 3, "height", "width"]}}
    span = {"min": 40, "opt": 80, "max": 160}  # large inputs have few drawn sizes
    dims = {"height": span, "width": span}
    result = validate.run(validate_job(tmp_path, "Portrait", inputs=inputs, dims=dims))
    assert result.status == "failed"
    failed = [failure["dims"] for failure in result.figures["failures"]]
    assert failed
    assert all(sizes["height"] > sizes["width"] for sizes in failed)


@pytest.mark.parametrize(
    ("name", "case"), [("Cleaned", "inf"), ("ZeroBranch", "zeros"), ("Faint", "small")]
)
def test_special_values_show_another_formula(tmp_path: Path, name: str, case: str) -> None:
    result = validate.run(validate_job(tmp_path, f"{VALUE_NETWORKS}:{name}"))
    assert result.status == "failed"
    assert {failure["case"] for failure in result.figures["failures"]} == {case}


@pytest.mark.parametrize(
    ("name", "dtype", "case"),
    [
        ("Unmasked", "bool", "zero-integers"),
        ("LastRow", "int64", "last-rows"),
        ("NegativeCells", "int32", "negative-integers"),
        ("HashedIds", "int64", "wide-integers"),
    ],
)
def test_special_integers_show_another_formula(
    tmp_path: Path, name: str, dtype: str, case: str
) -> None:
    inputs = {"x": {"shape": ["batch", "length"], "dtype": dtype}}
    result = validate.run(validate_job(tmp_path, f"{VALUE_NETWORKS}:{name}", inputs=inputs))
    assert result.status == "failed"
    assert {failure["case"] for failure in result.figures["failures"]} == {case}


@pytest.mark.parametrize("name", ["Styled", "Ranked", "Waves"])
def test_rounding_at_special_values_is_no_difference(tmp_path: Path, name: str) -> None:
    inputs = {"x": {"shape": ["batch", 3, "length", 8]}} if name == "Styled" else LENGTH
    result = validate.run(validate_job(tmp_path, f"{VALUE_NETWORKS}:{name}", inputs=inputs))
    assert result.status == "passed", result.reason


def test_a_graph_that_cannot_run_at_a_drawn_size_fails_with_the_size(tmp_path: Path) -> None:
    dims = {**LONG, "length": {"min": 4, "opt": 8, "max": 64, "odd": 16}}
    with pytest.raises(StageError) as error:
        validate.run(validate_job(tmp_path, "Folded", dims=dims))
    assert re.search(r"case drawn-\d \(batch \d, length \d+\) fails$", error.value.problem)
    assert "Reshape" in error.value.problem
    assert "narrow dims to sizes at which it is right" in error.value.hint


@pytest.mark.parametrize(
    ("name", "data", "case", "length"),
    [
        ("Saturated", {"random": "uniform", "low": -1, "high": 1}, "drawn-1", 5001),
        ("Large", {"random": "normal", "std": 0.9}, "extremes-1", 5000),
    ],
)
def test_one_size_of_a_large_input_shows_wrong_sizes_and_values(
    tmp_path: Path, name: str, data: dict[str, Any], case: str, length: int
) -> None:
    dims = {**LONG, "length": {"min": 5000, "opt": 5008, "max": 5064, "odd": 5003}}
    inputs = {"x": {"shape": ["batch", "length"], "data": data}}
    result = validate.run(validate_job(tmp_path, name, dims=dims, inputs=inputs))
    assert result.status == "failed"
    assert f"in case {case} of" in result.reason
    assert f"{case} has batch 1, length {length}" in result.reason
    assert "narrow dims and inputs.NAME.data" in result.hint
    assert "forward may decide by sizes or values" in result.hint


def test_a_right_graph_passes_in_all_cases_with_their_sizes(tmp_path: Path) -> None:
    result = validate.run(validate_job(tmp_path, "Branches"))
    assert result.status == "passed", result.reason
    compared = result.figures["graphs"]["simplified"]
    assert set(result.figures["graphs"]["exported"]) == {"min", "opt", "max", "odd"}
    assert result.figures["warnings"] == []
    assert set(compared) == set(result.figures["dims"])
    assert {"drawn-1", "drawn-2", "drawn-3", "seed-1", "extremes-2"} <= set(compared)
    assert set(result.figures["dims"]["drawn-1"]) == {"batch", "length"}


@pytest.mark.parametrize(
    ("step", "graph"),
    [
        ({"rename": {"x": "image", "output0": "y"}}, "simplified"),
        (
            {
                "function": f"{NETWORKS}:unchanged",
                "changes": "numbers",
                "reference": {"python": f"{NETWORKS}:previous_outputs"},
            },
            "unmodified",
        ),
    ],
)
def test_surgery_keeps_the_further_cases(tmp_path: Path, step: dict[str, Any], graph: str) -> None:
    result = validate.run(validate_job(tmp_path, "Large", surgery=[step]))
    assert result.status == "failed"
    assert f"case extremes-1 of the {graph} graph" in result.reason
    assert "extremes-1 has batch 4, length 64" in result.reason
    warnings = result.figures["warnings"]
    if graph == "simplified":
        assert warnings == []
    else:
        (warning,) = warnings
        assert warning.startswith("golden outputs after surgery are unknown for drawn-1, drawn-2")
        assert warning.endswith(": compared in the unmodified graph only")


def test_stress_lists_differences_with_sizes_and_seed(tmp_path: Path) -> None:
    kwargs = {"special": 57}
    job = validate_job(tmp_path, "Branches", kwargs=kwargs)
    source = {"python": f"{NETWORKS}:Branches", "kwargs": kwargs}
    resolved = manifest(source=source, inputs=LENGTH, dims=LONG)
    action = next(action for action in plan_model(resolved) if action.stage == "reference")
    spans = size_ranges(graph_points(resolved).exported)
    options = {**job.options, **action.options, "count": 12, "seed": 5, "spans": spans}
    figures = stress.run(replace(job, options=options)).figures
    assert figures["count"] == figures["compared"] == 12
    assert {failure["dims"]["length"] for failure in figures["failures"]} == {57}
    first = figures["failures"][0]
    assert first["seed"] == 5 + first["run"] - 1
    assert {failure["graph"] for failure in figures["failures"]} == {"exported", "simplified"}


# --- differences by rounding ---
