"""Golden cases and the optimization profiles they fit."""

from __future__ import annotations

from buildsys.stages.verify.stage import CaseRun, format_ranges, plan_runs

SMALL = {"x": {"min": (1, 3), "opt": (2, 3), "max": (4, 3)}}
LARGE = {"x": {"min": (4, 3), "opt": (8, 3), "max": (16, 3)}}
SHAPES = {str(batch): {"x": (batch, 3), "k": (7,)} for batch in (1, 4, 16)}


def test_without_profiles_every_case_runs_once() -> None:
    assert plan_runs([], SHAPES) == [CaseRun("1", None), CaseRun("4", None), CaseRun("16", None)]


def test_a_case_runs_in_every_profile_it_fits() -> None:
    runs = plan_runs([SMALL, LARGE], SHAPES)
    assert runs == [CaseRun("1", 0), CaseRun("4", 0), CaseRun("4", 1), CaseRun("16", 1)]


def test_a_profile_is_formatted_with_its_ranges() -> None:
    assert format_ranges(LARGE) == "x [4, 3] to [16, 3]"


def test_another_rank_does_not_fit() -> None:
    assert plan_runs([SMALL], {"a": {"x": (1, 3, 1)}}) == []
