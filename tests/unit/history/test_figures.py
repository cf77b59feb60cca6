import json
from pathlib import Path
from typing import Any

import pytest

from buildsys.history.builds import Measurement, build_figures, read_measurements


def contender(p50_ms: float, **more: Any) -> dict[str, Any]:
    return {"p50_ms": p50_ms, "count": 2, "samples_ms": [p50_ms, p50_ms], **more}


BENCH = {
    "cases": {
        "min": {"contenders": {"engine": contender(0.5)}},
        "opt": {
            "dims": {"batch": 4},
            "batch": 4,
            "speedup": 2.0,
            "contenders": {
                "engine": contender(
                    2.0,
                    throughput_per_s=500.0,
                    p50_interval_ms=[1.75, 2.25],
                    gpu=contender(1.5, p50_interval_ms=[1.25, 1.75]),
                    device_memory_bytes=7,
                    noisy="the GPU was throttled",
                ),
                "torch_compile": contender(1.0),
            },
        },
    },
    "noisy": ["the GPU was throttled"],
}


def test_a_benchmark_is_summed_up_by_its_main_case() -> None:
    assert build_figures("bench", BENCH) == {
        "case": "opt",
        "contender": "engine",
        "latency_p50_ms": 2.0,
        "latency_interval_ms": [1.75, 2.25],
        "gpu_p50_ms": 1.5,
        "gpu_interval_ms": [1.25, 1.75],
        "throughput_per_s": 500.0,
        "speedup": 2.0,
        "fastest": "torch_compile",
        "device_memory_bytes": 7,
        "noisy": ["the GPU was throttled"],
    }


def read(folder: Path, result: object) -> list[Measurement]:
    file = folder / "result.json"
    file.write_text(json.dumps(result))
    return read_measurements(file)


def test_every_contender_and_clock_is_a_measurement(tmp_path: Path) -> None:
    found = read(tmp_path, BENCH)
    assert [(one.case, one.contender, one.clock, one.p50_ms) for one in found] == [
        ("min", "engine", "host", 0.5),
        ("opt", "engine", "host", 2.0),
        ("opt", "engine", "gpu", 1.5),
        ("opt", "torch_compile", "host", 1.0),
    ]
    assert found[1].interval_ms == (1.75, 2.25)
    assert found[1].figures == {"throughput_per_s": 500.0}


@pytest.mark.parametrize(
    ("stage", "result", "figures"),
    [
        ("engine", {"engine_bytes": 10, "build_seconds": 2.5, "engine_sha256": "ab"},
         {"bytes": 10, "build_seconds": 2.5, "engine_sha256": "ab"}),
        ("export", {"bytes": 10, "nodes": 3}, {"bytes": 10, "nodes": 3}),
        ("simplify", {"after": {"bytes": 9, "nodes": 2}}, {"bytes": 9, "nodes": 2}),
        ("convert", {"bytes_after": 5, "bytes_before": 10}, {"bytes": 5}),
        ("verify", {"cases": {"opt": {"a": {"relative": 1e-6}, "b": {"relative": 2e-6}}}},
         {"relative": 2e-6, "relative_at": "opt b"}),
        ("verify", {"cases": {"opt": {"a": {"relative": None, "passed": False}}}},
         {"relative": None, "relative_at": "opt a"}),
        ("validate", {"graphs": {"simplified": {"opt": {"a": {"relative": 1e-6}}}}},
         {"relative": 1e-6, "relative_at": "simplified opt a"}),
        ("reference", {"peak_rss_mib": 3.0}, {"peak_rss_mib": 3.0}),
    ],
)  # fmt: skip
def test_figures_of_a_stage(stage: str, result: dict[str, Any], figures: dict[str, Any]) -> None:
    assert build_figures(stage, result) == figures


@pytest.mark.parametrize("stage", ["bench", "engine", "verify", "simplify", "report"])
def test_an_incomplete_result_has_few_figures(stage: str) -> None:
    damaged = {"cases": {"opt": 3}, "engine_bytes": [], "after": None}
    assert set(build_figures(stage, damaged)) <= {"case", "contender"}
