"""Searches of mixed precision in the report."""

from __future__ import annotations

from typing import Any

import pytest

from buildsys.report.key_figures import key_figure
from buildsys.report.result_files import Result
from buildsys.report.stage_lines import search_lines

FOUND: dict[str, Any] = {
    "precision": "int8", "nodes": [["/a", "Conv"], ["/b", "Conv"]], "candidates": 9,
    "is_smallest": True, "is_fp32": False, "trials": 12, "macs_low": 0.875,
    "without": {"passed": False, "relative": 0.31}, "with": {"passed": True, "relative": 0.12},
    "limits": {"rtol": 0.16},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "2 of 9 nodes in fp32: relative error 3.1e-01 → 1.2e-01, 87.5 % of the MACs in int8"),
        (
            {"without": {"passed": False, "relative": None}, "macs_low": None},
            "2 of 9 nodes in fp32: relative error not finite → 1.2e-01",
        ),
        (
            {"nodes": [], "without": {"passed": True, "relative": 0.01}},
            "all nodes in int8: relative error 1.0e-02, 87.5 % of the MACs in int8",
        ),
        (
            {"is_fp32": True, "macs_low": 0.0},
            "all nodes stay in fp32: no choice of nodes in int8 is within the limits",
        ),
    ],
)
def test_the_key_figure_says_what_was_kept_and_what_it_changed(
    changes: dict[str, Any], text: str
) -> None:
    assert key_figure("search", {**FOUND, **changes}) == text


def test_an_older_result_without_figures_has_none() -> None:
    assert key_figure("search", {"precision": "int8"}) == ""


def test_a_line_has_the_nodes_in_fp32_and_the_errors() -> None:
    result: Any = Result("search:m:auto-int8", "passed", FOUND)
    (line,) = search_lines([result])
    assert (line.variant, line.kept[0], line.error_without) == ("auto-int8", ("/a", "Conv"), 0.31)
    assert (line.error_with, line.rtol) == (0.12, 0.16)
