import math
from typing import Any

import pytest

from buildsys.report.engines import refit_origin
from buildsys.report.formatting import TIMES
from buildsys.report.key_figures import key_figure
from buildsys.report.result_files import Result, parse
from buildsys.stages.engine.result import EngineResult
from buildsys.stages.search.report import table as search_table


def outputs(**relative: float) -> dict[str, Any]:
    return {
        name: {"max_abs": 1.0, "relative": value, "cosine": 1.0, "passed": True}
        for name, value in relative.items()
    }


GOLDEN = {"dims": {}, "inputs": {}, "outputs": {}}
RESULTS: dict[str, tuple[dict[str, Any], str]] = {
    "export": ({"opset": 17, "nodes": 122, "bytes": 102_000_000}, "opset 17, 122 nodes, 102 MB"),
    "reference": ({"cases": {"min": GOLDEN, "odd": GOLDEN}}, "cases min, odd"),
    "simplify": ({"before": {"nodes": 1500}, "after": {"nodes": 122}}, "1,500 → 122 nodes"),
    "calibrate": (
        {"tensors": 50, "batches": 8, "algorithm": "entropy"},
        "50 ranges, 8 batches, entropy",
    ),
    "convert": ({"bytes_before": 102_000_000, "bytes_after": 51_000_000}, "102 MB → 51.0 MB"),
    "validate": (
        {
            "graphs": {
                "exported": {"opt": outputs(y=6e-7)},
                "simplified": {"odd": outputs(y=2e-6, z=1e-9)},
            }
        },
        "worst relative error 2.0e-06 (simplified odd y)",
    ),
    "engine": ({"engine_bytes": 97_800_000}, "97.8 MB"),
    "gate": (
        {
            "checks": [
                {"metric": "latency", "status": "passed", "change": 0.012},
                {"metric": "p99", "status": "failed", "change": 0.2},
                {"metric": "size", "status": "failed"},
                {"metric": "build_time", "status": "passed", "limit": 60.0},
                {"metric": "error", "status": "not comparable"},
            ]
        },
        "latency +1.2 %, p99 +20.0 % (FAILED), size failed, build time passed,"
        " error not comparable",
    ),
    "verify": (
        {"cases": {"min": outputs(y=0.0), "opt": outputs(y=0.5)}},
        "worst relative error 5.0e-01 (opt y)",
    ),
    "bench": (
        {
            "cases": {
                "min": {"contenders": {"engine": {"p50_ms": 1.0, "throughput_per_s": 1.0}}},
                "opt": {
                    "contenders": {
                        "engine": {"p50_ms": 19.84, "throughput_per_s": 50.5},
                        "onnxruntime": {"p50_ms": 19.8},
                        "torch_compile": {"p50_ms": 15.0},
                    },
                    "speedup": 1.3,
                },
            }
        },
        f"opt: p50 19.8 ms, 1.30{TIMES} torch; torch.compile is faster: p50 15.0 ms",
    ),
    "report": ({"verdict": {}}, ""),
}


@pytest.mark.parametrize("stage", RESULTS)
def test_each_stage_has_a_key_figure(stage: str) -> None:
    result, expected = RESULTS[stage]
    assert key_figure(stage, result) == expected


@pytest.mark.parametrize("stage", RESULTS)
def test_a_result_with_missing_fields_has_no_key_figure(stage: str) -> None:
    assert key_figure(stage, {}) == ""
    assert key_figure(stage, {"cases": None, "graphs": [], "before": 3, "opset": 17}) == ""


def test_without_a_baseline_there_is_no_speedup() -> None:
    cases = {"min": {"contenders": {"engine": {"p50_ms": 2.0}}, "speedup": None}}
    assert key_figure("bench", {"cases": cases}) == "min: p50 2.00 ms"


def test_a_noisy_contender_is_compared_with_nothing() -> None:
    own = {"p50_ms": 2.123, "throughput_per_s": 500.0}
    torch = {"p50_ms": 1.0, "noisy": "the median is only known within ±30 %"}
    cases = {"opt": {"contenders": {"engine": own, "torch": torch}, "speedup": None}}
    assert key_figure("bench", {"cases": cases}) == "opt: p50 2.12 ms"
    cases = {"opt": {"contenders": {"engine": {**own, "noisy": "…"}, "torch": torch}}}
    assert key_figure("bench", {"cases": cases}) == "noisy, no headline (opt: p50 2.1 ms)"


def test_a_median_is_shown_with_half_its_interval() -> None:
    own = {"p50_ms": 2.0, "p50_interval_ms": [1.97, 2.05], "throughput_per_s": 500.0}
    cases = {"opt": {"contenders": {"engine": own}, "speedup": None}}
    assert key_figure("bench", {"cases": cases}) == "opt: p50 2.00 ±0.05 ms"


def test_a_cuda_graph_is_the_engine_if_there_is_no_other() -> None:
    graph = {"p50_ms": 0.24, "throughput_per_s": 33_000.0, "gpu": {"p50_ms": 0.233}}
    alone = {"opt": {"contenders": {"engine_cuda_graph": graph}, "speedup": None}}
    assert key_figure("bench", {"cases": alone}) == "opt: p50 0.240 ms"


@pytest.mark.parametrize("nan", [math.nan, None])
def test_nan_is_worse_than_any_number(nan: float | None) -> None:
    cases = {"opt": {**outputs(a=1e9, c=math.inf), "b": {"relative": nan, "passed": False}}}
    assert key_figure("verify", {"cases": cases}) == "worst relative error not finite (opt b)"


def test_a_refitted_engine_says_so() -> None:
    origin = {"engine_sha256": "ab" * 32, "started": "2026-11-03T10:00:00Z", "build_seconds": 35.5}
    result = {"engine_bytes": 1000, "refitted_from": origin}
    assert key_figure("engine", result) == "1.00 kB, refitted"
    engine = parse(result, EngineResult)
    text = "the engine abababababababab…, built 2026-11-03T10:00:00Z in 35.5 s"
    assert refit_origin(engine) == text
    assert refit_origin(parse({"refitted_from": {"started": "?"}}, EngineResult)) == ""


def test_an_engine_with_a_delegate_has_its_share() -> None:
    engine = {"engine_bytes": 2048, "delegated": {"share": 0.8333, "portable": {"mean": 1}}}
    assert key_figure("engine", engine) == "2.05 kB, 83 % of the operators delegated"


SEARCHED: dict[str, Any] = {
    "precision": "int8", "nodes": [["/a", "Conv"], ["/b", "Conv"]], "candidates": 9,
    "is_fp32": False, "macs_low": 0.875, "limits": {"rtol": 0.16},
    "without": {"passed": False, "relative": 0.31}, "with": {"passed": True, "relative": 0.12},
}  # fmt: skip
IN_FP32 = {
    "2 of 9 nodes in fp32: relative error 3.1e-01 → 1.2e-01, 87.5 % of the MACs in int8": {},
    "2 of 9 nodes in fp32: relative error not finite → 1.2e-01": {
        "without": {"passed": False, "relative": None}, "macs_low": None,
    },
    "all nodes in int8: relative error 1.0e-02, 87.5 % of the MACs in int8": {
        "nodes": [], "without": {"passed": True, "relative": 0.01},
    },
    "all nodes stay in fp32: no choice of nodes in int8 is within the limits": {"is_fp32": True},
}  # fmt: skip


@pytest.mark.parametrize("text", IN_FP32)
def test_a_search_says_what_stays_in_fp32_and_what_that_changes(text: str) -> None:
    assert key_figure("search", {**SEARCHED, **IN_FP32[text]}) == text


def test_a_search_is_a_row_with_its_nodes_below() -> None:
    result: Any = Result("search:m:auto-int8", "passed", SEARCHED)
    table = search_table([result])
    assert table.rows == (("auto-int8", "2 of 9", "3.1e-01 → 1.2e-01", "0.16", "87.5 %"),)
    assert table.notes == ("In fp32 for auto-int8: /a, /b.",)
