"""The report on engines timed on a GPU (an H200)."""

from dataclasses import replace
from typing import Any

import pytest
from html_page import Page

from buildsys.report.assemble import assemble
from buildsys.report.engines import bench_notes, timings
from buildsys.report.html.pages import ModelPage, render_model
from buildsys.report.result_files import Result, parse
from buildsys.stages.bench.report import history_figures, table
from buildsys.stages.bench.result import BenchResult


def contender(wall: float, gpu: float, **more: Any) -> dict[str, Any]:
    own = {"p50_ms": gpu, "p99_ms": gpu * 1.01, "throughput_per_s": 8000 / gpu}
    times = {"p50_ms": wall, "p99_ms": wall * 1.1, "throughput_per_s": 8000 / wall}
    return {**times, "count": 500, "gpu": own, **more}


@pytest.fixture
def result() -> Result[BenchResult]:
    memory = {"device_memory_bytes": 64_273_920, "memory_taken_bytes": 159_383_552}
    gpu = {
        "readings": 37,
        "sm_clock_mhz": {"min": 1905, "median": 1980.0, "max": 1980},
        "memory_clock_mhz": {"min": 3201, "median": 3201, "max": 3201},
        "power_w": {"min": 163.5, "median": 323.9, "max": 346.4},
        "throttle": {"power cap": 0.25},
    }
    contenders = {
        "torch": contender(2.754, 2.750),
        "engine_cuda_graph": contender(0.509, 0.502),
        "engine": contender(0.672, 0.575, **memory),
        "torch_cuda_graph": contender(1.056, 1.047),
    }
    case = {"dims": {"batch": 8}, "batch": 8, "contenders": contenders, "speedup": 4.1, "gpu": gpu}
    content = {"cases": {"opt": case}, "left_out": {"torch_compile": "there is no compiler"}}
    return Result("bench:m:trt", "passed", parse(content, BenchResult))


def page_of(result: Result[BenchResult]) -> Page:
    report = replace(
        assemble("m", {}, {}, {}), bench=timings([result]), bench_notes=bench_notes([result])
    )
    return Page(render_model(ModelPage(report, "2026-11-22T13:30:00Z")))


def test_the_engine_is_first_with_both_clocks_and_its_memory(result: Result[BenchResult]) -> None:
    lines = timings([result])
    order = ["engine", "engine_cuda_graph", "torch", "torch_cuda_graph"]
    assert [line.contender for line in lines] == order
    page = page_of(result)
    assert ["trt", "opt", "engine", "0.575", "0.581", "0.672", "0.739"] in [
        row[:7] for row in page.rows
    ]
    row = next(row for row in page.rows if row[2:3] == ["engine, CUDA graph"])
    assert (row[3], row[5]) == ("0.502", "0.509")
    states = "1905 / 1980 / 1980 MHz", "164 / 324 / 346 W", "power cap 25 %"
    assert [text for text in ("64.3 MB", "159 MB", *states) if text not in page.text] == []


def test_an_unreadable_gpu_has_a_reason(result: Result[BenchResult]) -> None:
    result.content["cases"]["opt"]["gpu"] = {"missing": "NVML answers with error 3"}
    note = "bench:m:trt, case opt: throttled: not known: NVML answers with error 3"
    assert note in bench_notes([result])


def test_engines_on_a_cpu_have_no_gpu_table() -> None:
    cases: BenchResult = {"cases": {"opt": {"contenders": {"engine": {"p50_ms": 1.0}}}}}
    result = Result("bench:m:ort", "passed", cases)
    assert "on the GPU" not in page_of(result).text


def test_missing_baselines_have_a_reason(result: Result[BenchResult]) -> None:
    assert "torch.compile was not timed: there is no compiler" in bench_notes([result])


def test_cold_starts_are_medians_with_ranges_and_what_each_step_adds() -> None:
    cold: dict[str, Any] = {
        "imports_ms": [300.0, 310.0, 500.0], "load_ms": [20.0], "first_call_ms": [3.0],
        "warmup_calls": [1, 2, 1], "warmup_ms": [3.0], "imports_bytes": [50_000_000],
        "loaded_bytes": [60_000_000], "called_bytes": [60_500_000], "peak_bytes": [90_000_000],
    }  # fmt: skip
    started = Result("bench:m:ort", "passed", parse({"cold_start": cold}, BenchResult))
    refused = Result("bench:m:trt", "passed", parse({"cold_start": {"problem": "no"}}, BenchResult))
    listed = table([started, refused, Result("bench:m:ov", "passed", {})])
    assert listed.rows == (
        ("ort", "310 (300 to 500)", "20", "3", "1 (3 ms)", "50.0 MB", "+10.0 MB", "+500 kB",
         "90.0 MB"),
        ("trt", *["—"] * 8),
    )  # fmt: skip
    assert listed.notes[-1] == "trt was not started: no"
    figures = history_figures(started.content)
    assert (figures["imports_ms"], figures["peak_bytes"]) == (310.0, 90_000_000)
    assert figures["noisy_starts"] is None


def test_noisy_cold_starts_are_marked_and_gpu_memory_is_added() -> None:
    cold = {
        "load_ms": [23.4, 23.8, 50.0], "noisy": {"load_ms": "unsteady"},
        "loaded_bytes": [60_000_000], "called_bytes": [61_000_000],
        "gpu_imports_bytes": [10_000_000],
        "gpu_loaded_bytes": [410_000_000], "gpu_called_bytes": [460_000_000],
    }  # fmt: skip
    started = Result("bench:m:trt", "passed", parse({"cold_start": cold}, BenchResult))
    listed = table([started])
    assert listed.rows[0][2] == "24 (23.4 to 50), noisy"
    assert listed.rows[0][6:8] == ("GPU +400 MB", "+1.00 MB, GPU +50.0 MB")
    figures = history_figures(started.content)
    assert (figures["noisy_starts"], figures["gpu_called_bytes"]) == (["load_ms"], 460_000_000)
