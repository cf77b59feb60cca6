"""Searches of mixed precision in the report."""

from __future__ import annotations

from typing import Any

import pytest

from buildsys.report.key_figures import key_figure
from buildsys.report.report_types import TimingLine
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


def timing(engine: str, p50_ms: float, case: str = "opt") -> TimingLine:
    unknown = dict.fromkeys(
        ("samples", "p90_ms", "p95_ms", "p99_ms", "mean_ms", "min_ms", "max_ms", "batch")
    )
    return TimingLine(
        engine=engine, contender="engine", case=case, dims="", p50_ms=p50_ms, noisy=False,
        throughput_per_s=None, speedup=None, **unknown,
    )  # fmt: skip


def test_engines_of_a_search_stand_next_to_their_rivals() -> None:
    engines = [
        {"name": "auto", "backend": "onnxruntime", "precision": "auto"},
        {"name": "own", "backend": "onnxruntime", "precision": "auto-int8"},
        {"name": "plain", "backend": "onnxruntime", "precision": "int8"},
        {"name": "full", "backend": "onnxruntime", "precision": "fp32"},
        {"name": "half", "backend": "onnxruntime", "precision": "fp16"},
        {"name": "other", "backend": "openvino", "precision": "fp32"},
    ]
    results = [
        Result(f"search:m:{variant}", "passed", FOUND)  # type: ignore[arg-type]
        for variant in ("auto-int8", "auto-int8-own")
    ]
    bench = [timing("auto", 3.0), timing("auto", 1.0, "min"), timing("full", 5.0)]
    shared, own = search_lines(results, {"engines": engines}, bench)
    assert shared.engines == ("auto (auto-int8) 3.00 ms", "full (fp32) 5.00 ms")
    assert own.engines == ("full (fp32) 5.00 ms",)
    assert (shared.kept[0], shared.error_without, shared.rtol) == (("/a", "Conv"), 0.31, 0.16)
