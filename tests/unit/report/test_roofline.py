"""Rooflines in reports: the work of engines and layers against the measured machine."""

from pathlib import Path
from typing import Any

import onnx
import pytest
from html_page import Page, page_of
from test_report_stage import job_for
from tiny_results import Results, contender

from buildsys.report.formatting import TIMES
from buildsys.report.html.pages import render_model
from buildsys.report.report_types import Report
from buildsys.report.result_files import adapter
from buildsys.stages.report.stage import run

# 8 x 1000 x 1000: 8 million MACs, 4 MB of weights and 2 x 32 kB of inputs and outputs
GRAPH = """
<ir_version: 8, opset_import: ["" : 17{domain}]>
g (float[batch, 1000] x) => (float[batch, 1000] y)
{{ p = MatMul (x, w) {last} }}
"""
MACS, BYTES = 8_000_000, 4_064_000
SLOW = {"macs_per_s": 16e9, "macs_type": "float32", "bytes_per_s": 4.064e9, "cache_bytes": 0}


def reported(
    results: Results,
    folder: Path,
    machine: dict[str, Any],
    *,
    timed: dict[str, Any] | None = None,
    domain: str = "",
    last: str = "y = Relu (p)",
) -> Report:
    """Report an engine that takes 2 ms, and its layer ``p``."""
    model = onnx.parser.parse_model(GRAPH.format(domain=domain, last=last))
    weights = bytes(4_000_000)
    model.graph.initializer.add(name="w", data_type=1, dims=[1000, 1000], raw_data=weights)
    folder.mkdir()
    onnx.save(model, folder / "m.onnx")
    results.inputs["graph:simplify:tiny"] = folder / "m.onnx"
    case = {"dims": {"batch": 8}, "contenders": {"engine": timed or contender(2.0)}}
    layer = {"name": "p", "kind": "MatMul", "precision": "float32", "time_ms": 1.0, "share": 0.5}
    figures = {"cases": {"opt": case}, "slowest_layers": [layer], "machine": machine}
    results.passed("bench:tiny:ort-cpu", **figures)
    results.passed("engine:tiny:ort-cpu", source_nodes={})
    job = job_for(results, folder)
    job.options["sources"] = {"ort-cpu": "simplify:tiny"}
    report: Report = adapter(Report).validate_python({"model": "tiny", **run(job).figures})
    return report


def test_an_engine_and_its_layers_are_compared_with_the_measured_machine(
    results: Results, tmp_path: Path
) -> None:
    report = reported(results, tmp_path / "r", SLOW)
    line = next(line for line in report.bench if line.engine == "ort-cpu")
    assert (line.macs, line.bytes, line.of_peak, line.of_bandwidth) == (MACS, BYTES, 0.25, 0.5)
    assert line.bound == "memory"
    layer = next(layer for layer in report.layers if layer.engine == "ort-cpu")
    assert (layer.macs, layer.bound) == (MACS, "memory")
    assert layer.of_bound == pytest.approx(1.0)
    row = ("ort-cpu", "opt", "2.00", "8.00 M", "25 % of 16.0 G/s float32", "4.06 MB",
           "50 % of 4.06 GB/s", "memory")  # fmt: skip
    (table,) = (table for table in report.tables if table.title == "Roofline")
    assert table.rows == (row,)
    assert "## Roofline" in (tmp_path / "r/report.md").read_text()
    page = Page(render_model(page_of(report)))
    assert [*row] in page.rows
    assert "100 % memory" in page.text


@pytest.mark.parametrize(
    ("machine", "bound"),
    [
        ({**SLOW, "macs_per_s": 4e9}, "compute"),
        ({**SLOW, "macs_per_s": 4e9, "macs_type": "float16"}, "unknown"),
        ({**SLOW, "macs_type": "float16"}, "unknown"),
        ({**SLOW, "macs_type": "tf32"}, "memory"),
        ({**SLOW, "cache_bytes": BYTES}, "unknown"),
        ({"bytes_per_s": 4e9, "missing": ["peak: no PyTorch"]}, "unknown"),
        ({"missing": ["no device"]}, "unknown"),
    ],
)
def test_a_bound_needs_both_figures_and_the_type_of_the_engine(
    results: Results, tmp_path: Path, machine: dict[str, Any], bound: str
) -> None:
    report = reported(results, tmp_path / "r", machine)
    assert next(line.bound for line in report.bench if line.engine == "ort-cpu") == bound
    notes = next(table.notes for table in report.tables if table.title == "Roofline")
    assert [r for r in machine.get("missing", []) if f"ort-cpu: {r}." not in notes] == []


def test_operators_without_a_count_are_named_and_shares_are_lower_bounds(
    results: Results, tmp_path: Path
) -> None:
    own = {"domain": ', "acme" : 1', "last": "y = acme.Swish (p)"}
    report = reported(results, tmp_path / "r", SLOW, **own)
    table = next(table for table in report.tables if table.title == "Roofline")
    assert table.rows[0][3:5] == ("≥ 8.00 M", "≥ 25 % of 16.0 G/s float32")
    assert table.rows[0][-1] == "unknown"
    assert f"ort-cpu: without acme::Swish {TIMES}1, which cannot be counted." in table.notes


def test_a_noisy_engine_has_no_shares(results: Results, tmp_path: Path) -> None:
    noisy = {**contender(2.0), "noisy": "the median is only known within ±9.9 %"}
    report = reported(results, tmp_path / "r", SLOW, timed=noisy)
    table = next(table for table in report.tables if table.title == "Roofline")
    assert table.rows[0][2:] == ("—", "8.00 M", "—", "4.06 MB", "—", "unknown")
    assert "ort-cpu: the benchmark is noisy." in table.notes


def test_engines_of_older_benchmarks_and_without_graphs_have_no_roofline(
    results: Results, tmp_path: Path
) -> None:
    tables = run(job_for(results, tmp_path / "r")).figures["tables"]
    assert "Roofline" not in [table["title"] for table in tables]
