"""Which golden case runs in which optimization profile."""

from __future__ import annotations

from buildsys.stages.verify.profiles import (
    CaseRun,
    homeless,
    idle,
    runs_of,
    shown_case,
    shown_ranges,
)

SMALL = {"x": {"min": (1, 3), "opt": (2, 3), "max": (4, 3)}}
LARGE = {"x": {"min": (4, 3), "opt": (8, 3), "max": (16, 3)}}
SHAPES = {str(batch): {"x": (batch, 3), "k": (7,)} for batch in (1, 4, 16)}


def test_without_profiles_every_case_runs_once() -> None:
    assert runs_of([], SHAPES) == [CaseRun("1", None), CaseRun("4", None), CaseRun("16", None)]


def test_a_case_runs_in_every_profile_that_holds_it() -> None:
    runs = runs_of([SMALL, LARGE], SHAPES)
    assert runs == [CaseRun("1", 0), CaseRun("4", 0), CaseRun("4", 1), CaseRun("16", 1)]
    assert homeless(runs, list(SHAPES)) == []
    assert idle(runs, [SMALL, LARGE]) == []


def test_what_no_profile_holds_and_profiles_that_hold_nothing_are_told() -> None:
    far = {"x": {"min": (32, 3), "opt": (32, 3), "max": (64, 3)}}
    runs = runs_of([SMALL, far], SHAPES)
    assert homeless(runs, list(SHAPES)) == ["16"]
    assert idle(runs, [SMALL, far]) == [1]
    assert shown_ranges(far) == "x [32, 3] to [64, 3]"


def test_another_rank_does_not_fit() -> None:
    assert runs_of([SMALL], {"a": {"x": (1, 3, 1)}}) == []


def test_cases_are_shown_with_their_sizes_once() -> None:
    assert shown_case("odd", {"batch": 3, "width": 5}) == "odd (batch 3, width 5)"
    assert shown_case("batch=3", {"batch": 3}) == "batch=3"
    assert shown_case("opt", {}) == "opt"
