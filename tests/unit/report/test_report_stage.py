import json
from contextlib import nullcontext as ok
from pathlib import Path

import onnx
import pytest
from html_page import Page, page_of
from markdown_it import MarkdownIt
from tiny_results import NO_GPU, Results

from buildsys.errors import WorkerDied
from buildsys.report.assemble import assemble
from buildsys.report.formatting import TIMES
from buildsys.report.html.pages import render_model
from buildsys.stages.report.stage import run
from buildsys.workers.job import Job

GRAPH = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x) => (float[2] y) { y = Relu(x) }
"""


def job_for(results: Results, folder: Path, *, markdown: bool = True) -> Job:
    folder.mkdir(exist_ok=True)
    outputs = {"result": folder / "report.json"}
    if markdown:
        outputs["markdown"] = folder / "report.md"
    options = {"manifest": results.manifest}
    return Job(
        "report:tiny", "report", "tiny", "", options, results.inputs, outputs, project=folder
    )


def markdown_of(results: Results, folder: Path) -> str:
    run(job_for(results, folder))
    return (folder / "report.md").read_text(encoding="utf-8")


def html_of(results: Results) -> Page:
    report = assemble("tiny", results.manifest, results.inputs, {})
    return Page(render_model(page_of(report)))


def spread(results: Results) -> None:
    """Make every kind of result occur: passed, unavailable, failed with NaN, missing."""
    results.without_gpu()
    nan = float("nan")
    failure = {"graph": "simplified", "case": "max", "output": "scores", "index": [3, 7]}
    failure |= {"actual": nan, "expected": 0.25, "problem": "not a number | here"}
    wrong = {**dict.fromkeys(("max_abs", "relative", "cosine"), nan), "top1": 0.9, "passed": False}
    results.failed(
        "validate:tiny",
        "output scores in case max is not a number",
        graphs={"simplified": {"max": {"scores": wrong}}},
        failures=[failure],
    )
    results.inputs["convert:tiny:fp16"].unlink()


def test_the_stage_passes_whenever_the_report_is_written(results: Results, tmp_path: Path) -> None:
    spread(results)
    result = run(job_for(results, tmp_path / "report"))
    assert (result.status, result.reason) == ("passed", "")
    assert result.figures["verdict"]["status"] == "failed"
    json.dumps(result.figures, allow_nan=False)
    names = "schema target stage model variant status reason hint started seconds toolchain"
    assert not set(names.split()) & result.figures.keys()
    run(job_for(results, tmp_path / "json", markdown=False))
    assert not (tmp_path / "json" / "report.md").exists()


def test_a_killed_graphviz_fails_the_stage_and_a_refused_graph_does_not(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(onnx.parser.parse_model(GRAPH), tmp_path / "m.onnx")
    results.inputs["graph:simplify:tiny"] = tmp_path / "m.onnx"
    job = job_for(results, tmp_path / "report")
    job.outputs["picture.simplified"] = tmp_path / "report/simplified.svg"
    job.options["pictures"] = {"simplified": "simplify:tiny"}
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for command in ("exit 1", "kill -9 $$"):
        dot = tmp_path / "dot"
        dot.write_text(f"#!/bin/sh\n{command}\n")
        dot.chmod(0o755)
        with pytest.raises(WorkerDied, match="killed by signal 9") if "9" in command else ok():
            run(job)
        assert not job.outputs["picture.simplified"].exists()


def test_the_same_results_give_the_same_bytes(results: Results, tmp_path: Path) -> None:
    elsewhere = Results(tmp_path / "another" / "place")
    assert markdown_of(results, tmp_path / "one") == markdown_of(elsewhere, tmp_path / "two")
    one, two = run(job_for(results, tmp_path / "one")), run(job_for(elsewhere, tmp_path / "two"))
    assert json.dumps(one.figures) == json.dumps(two.figures)


def test_a_failure_names_output_case_index_and_both_values(results: Results) -> None:
    spread(results)
    row = next(row for row in html_of(results).rows if "not a number | here" in row)
    assert row[:-1] == ["simplified", "max", "scores", "[3, 7]", "nan", "0.25"]


def test_missing_targets_have_reason_and_remedy(results: Results, tmp_path: Path) -> None:
    results.without_gpu()
    text = markdown_of(results, tmp_path / "report")
    both = "`verify:tiny:rtx-fp16`, `bench:tiny:rtx-fp16` — unavailable: "
    assert f"- {both}{NO_GPU[0]}.\n  What to do: {NO_GPU[1]}." in text
    engine = next(line for line in text.splitlines() if line.startswith("| `rtx-fp16`"))
    cells = [cell.strip() for cell in engine.split("|")]
    assert (cells[5], cells[7]) == ("unavailable", "unavailable")
    assert "passed" not in engine


def test_targets_of_an_unavailable_engine_have_its_reason(results: Results, tmp_path: Path) -> None:
    results.unavailable("engine:tiny:rtx-fp16")
    for stage in ("verify", "bench"):
        reason = {"status": "unavailable", "reason": "there is no engine", "hint": ""}
        results.write(f"{stage}:tiny:rtx-fp16", reason)
    text = markdown_of(results, tmp_path / "report")
    names = ", ".join(f"`{stage}:tiny:rtx-fp16`" for stage in ("engine", "verify", "bench"))
    assert f"- {names} — unavailable: {NO_GPU[0]}.\n  What to do: {NO_GPU[1]}." in text
    assert "there is no engine" not in text + html_of(results).text


@pytest.mark.parametrize("change", ["nothing", "no gpu", "everything"])
def test_every_row_has_all_columns(results: Results, tmp_path: Path, change: str) -> None:
    if change != "nothing":
        results.without_gpu() if change == "no gpu" else spread(results)
    text = markdown_of(results, tmp_path / "report")
    html = MarkdownIt("commonmark").enable("table").render(text)
    tables = [chunk.partition("</table>")[0] for chunk in html.split("<table>")[1:]]
    assert len(tables) == sum(line.startswith("| -") for line in text.splitlines())
    for table in tables:
        columns = table.partition("</thead>")[0].count("<th") - 1  # one is <thead>
        assert all(
            row.count("<td") == columns for row in table.partition("<tbody>")[2].split("</tr>")[:-1]
        )
    assert "&amp;lt;" not in html
    page = html_of(results)
    assert all(len(set(widths)) == 1 for widths in page.row_widths)


def test_only_the_worst_of_many_comparisons_are_shown(results: Results, tmp_path: Path) -> None:
    outputs = {
        f"out{n}": {"max_abs": 1.0, "relative": n * 1e-9, "cosine": 1.0, "passed": True}
        for n in range(200)
    }
    results.passed("verify:tiny:ort-cpu", cases={"min": outputs})
    page = html_of(results)
    assert "The 64 worst of 200 comparisons" in page.text
    shown = {row[2] for row in page.rows if len(row) == 8}
    assert "out199" in shown
    assert "out0" not in shown
    report = run(job_for(results, tmp_path / "report")).figures
    check = next(check for check in report["checks"] if check["target"] == "verify:tiny:ort-cpu")
    assert len(check["comparisons"]) == 200


def test_markdown_is_one_screen(results: Results, tmp_path: Path) -> None:
    spread(results)
    lines = markdown_of(results, tmp_path / "report").splitlines()
    assert sum(line.startswith("## ") for line in lines) == 3
    assert len(lines) <= 50


def test_each_graph_of_the_chain_has_a_line(results: Results) -> None:
    total = 8 * 4_089_184_256
    macs = {"total": total, "operators": {"Conv": total}, "not_counted": {}}
    figures = {"opsets": {"ai.onnx": 17, "my.domain": 1}, "weights": 27_690}
    figures["initializers"] = {"count": 9, "bytes": 110_760}
    unknown = {"total": None, "operators": {}, "not_counted": {"MatMul": 71}}
    graphs = {
        "export:tiny": {**figures, "macs": macs},
        "simplify:tiny": {**figures, "macs": unknown},
    }
    report = assemble("tiny", results.manifest, results.inputs, graphs)
    page = Page(render_model(page_of(report)))
    text, lines = page.text, page.rows
    own = ["ai.onnx 17, my.domain 1", "27,690", "9", "111 kB"]
    assert ["export", *own, "32.7 G"] in lines
    assert ["simplify", *own, "—"] in lines
    assert "MACs at batch = 8: " in text
    assert f"The MACs of simplify are unknown, because MatMul {TIMES}71 cannot be counted." in text


def test_the_error_of_an_uninformative_comparison_is_not_shown(results: Results) -> None:
    zero = {"max_abs": 0.0, "relative": 0.0, "cosine": 1.0, "passed": None}
    cases = {
        "min": {"scores": {**zero, "uninformative": "it is empty"}},
        "opt": {"scores": {"max_abs": 0.5, "relative": 3e-5, "cosine": 1.0, "passed": True}},
    }
    results.passed("verify:tiny:ort-cpu", cases=cases, dims={}, tolerance={"rtol": 1e-3})
    page = html_of(results)
    row = next(row for row in page.rows if "not informative" in row)
    assert row[3:7] == ["—"] * 4
    assert "scores: it is empty, so equality proves nothing (case min)" in page.text
    assert (
        "Closest to a limit: relative error 3.0e-05 of 0.001 (case opt, output scores)" in page.text
    )
