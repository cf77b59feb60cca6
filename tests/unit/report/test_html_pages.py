import base64
import dataclasses
import hashlib
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
from html_page import Page, page_of
from tiny_results import Results, bench

from buildsys.report.assemble import TargetProblem, assemble, assemble_after_failure
from buildsys.report.html.figures import EngineHistory, PastBuild, changes
from buildsys.report.html.pages import (
    IndexRow,
    ModelPage,
    Picture,
    index_row,
    page_name,
    render_index,
    render_model,
)
from buildsys.report.markdown import render
from buildsys.report.report_types import as_json, read_report

GENERATED = "2026-11-22T13:30:00Z"


def page(results: Results, **more: Any) -> ModelPage:
    report = assemble("tiny", results.manifest, results.inputs, {})
    return dataclasses.replace(page_of(report), **more)


def shown(one: ModelPage) -> Page:
    return Page(render_model(one))


def builds(*latencies: float, **newest: Any) -> EngineHistory:
    """Return the history of benchmarks, newest first."""
    timed = [
        PastBuild(
            f"2026-11-{22 - n:02d}T01:00:00Z",
            "passed",
            {"latency_p50_ms": value, "latency_interval_ms": [value * 0.99, value * 1.01]},
            commit=f"abc{n:04d}",
        )
        for n, value in enumerate(latencies)
    ]
    timed[0] = dataclasses.replace(timed[0], **newest)
    return EngineHistory("ort-cpu", timed=tuple(timed))


def test_the_first_screen_has_verdict_engine_latency_and_error(results: Results) -> None:
    results.without_gpu()
    text = shown(page(results)).text.partition("Pipeline")[0]
    assert "PARTIAL: 10 of 12 targets passed; 2 unavailable" in text
    assert "Ship ort-cpu It is the only ranked engine (case opt)." in text
    assert "2.10 ms" in text
    assert "3.0e-06 of 0.0001" in text
    assert "There is no earlier build to compare with." in text


def test_every_contender_is_listed_and_the_fastest_marked(results: Results) -> None:
    results.passed("bench:tiny:ort-cpu", **bench(2.0, torch=4.2, engine=2.1, torch_compile=1))
    del results.inputs["bench:tiny:rtx-fp16"]
    rows = {row[0].strip(): row for row in shown(page(results)).rows if len(row) == 9}
    assert rows.keys() >= {"ort-cpu", "torch", "torch.compile fastest"}
    assert (rows["torch"][-1], rows["ort-cpu"][-1]) == ("2.00\N{MULTIPLICATION SIGN}", "")


NO_FIGURES = {"latency_p50_ms": math.nan, "latency_interval_ms": ["x", None]}
NOISY = {"latency_p50_ms": 2.0, "latency_interval_ms": [2.0, 2.0], "noisy": ["other load"]}
WIDE = {"latency_p50_ms": 2.0, "latency_interval_ms": [1.5, 2.0]}


@pytest.mark.parametrize(
    ("history", "texts"),
    [
        (builds(2.2, 2.0), ["+10.0 %: 2.00 → 2.20 ms"]),
        (builds(2.0, 2.01), ["no significant change: 2.01 → 2.00 ms"]),
        (builds(1.0, 2.0), ["-50.0 %: 2.00 → 1.00 ms"]),
        (builds(1.0, 2.0, why="opset", mark="onnx 1 → 2"),
         ["-50.0 %: 2.00 → 1.00 ms", "opset", "onnx 1 → 2"]),
        (builds(9.0, 2.0, status="failed"), []),
        (builds(9.0, 2.0, figures=NOISY), []),
        (builds(9.0, 2.0, figures=WIDE), []),
        (builds(9.0, 2.0, figures=NO_FIGURES), []),
        (builds(9.0), []),
    ],
)  # fmt: skip
def test_changes_since_the_last_build(history: EngineHistory, texts: list[str]) -> None:
    assert [change.text for change in changes(history, {"bench"})] == texts
    assert list(changes(history, ())) == []


def test_earlier_builds_of_a_stale_target_are_not_compared(results: Results) -> None:
    problems = {"bench:tiny:ort-cpu": TargetProblem("not run: the run ended early")}
    report = assemble_after_failure("tiny", results.manifest, results.inputs, problems, "")
    made = dataclasses.replace(page_of(report), history=(builds(2.2, 2.0),))
    text = shown(made).text
    assert "p50 of ort-cpu" not in text
    assert "Targets that are not up to date are not compared." in text
    assert "There is no earlier build" not in text


def test_commands_in_reasons_and_hints_are_code(results: Results) -> None:
    reason = "`buildsys build export:tiny` <b> differs"
    results.failed("validate:tiny", reason, hint="see `buildsys explain <x>`")
    one = page(results)
    text = render_model(one)
    reason = "<code>buildsys build export:tiny</code> &lt;b&gt; differs"
    assert text.count(reason) == 1
    assert "What to do: see <code>buildsys explain &lt;x&gt;</code>." in text
    hint = "run one of\n`buildsys build a`"
    results.failed("validate:tiny", "an odd ` stays", hint=hint)
    text = render_model(page(results))
    assert "<pre>run one of\n<code>buildsys build a</code></pre>" in text
    assert "an odd ` stays." in text
    assert "validate:tiny: <code>buildsys build export" in render_index([index_row(one)], GENERATED)


def test_a_long_reason_is_folded_once_and_a_shared_remedy_said_once(results: Results) -> None:
    reason = "output scores differs in case max: " + "at [0, 1] 1.5 instead of 2.5, " * 9 + "END"
    for target in ("verify:tiny:ort-cpu", "verify:tiny:rtx-fp16"):
        results.failed(target, f"{target} {reason}", hint="try fp32, " * 20)
    made = page(results)
    text = shown(made).text
    assert (text.count("END."), text.count("What to do:")) == (2, 1)
    row = index_row(made)
    assert row.text.startswith("verify:tiny:ort-cpu: verify:tiny:ort-cpu output scores differs")
    assert row.text.endswith("…")
    assert len(row.text) <= 120
    lines = render(made.report).splitlines()
    assert [line[:2] for line in lines if line.endswith("END.")] == ["  ", "  "]
    assert sum("What to do: " in line for line in lines) == 1


def test_a_failure_is_on_top_with_remedy_and_command(results: Results) -> None:
    results.failed("validate:tiny", "scores differ", hint="compare the graphs")
    one = page(results)
    rows = tuple(
        dataclasses.replace(row, log="../tiny/validate/result.log") for row in one.pipeline
    )
    found = shown(dataclasses.replace(one, pipeline=rows))
    first = found.text.partition("Pipeline")[0]
    remedies = "What to do: compare the graphs.", "buildsys build validate:tiny"
    for text in (
        "FAILED: 1 of 12 targets failed: validate",
        "scores differ",
        *remedies,
        "Do not ship yet",
    ):
        assert text in first
    assert "../tiny/validate/result.log" in found.links


def test_a_page_after_a_failed_run_explains_itself(results: Results) -> None:
    problems = {"export:tiny": TargetProblem("no such file", failed=True)}
    report = assemble_after_failure("tiny", results.manifest, results.inputs, problems, "Old page")
    assert "Old page." in shown(page_of(report)).text


def test_models_without_results_or_engines_have_a_page(results: Results) -> None:
    empty = assemble("m", {}, {}, {})
    found = shown(ModelPage(empty, GENERATED))
    assert "PARTIAL: there are no results to report" in found.text
    for target in results.inputs:
        results.write(target, {"status": "passed"})  # without any number
    made = shown(page(results, history=(builds(2.0, 2.1),)))
    assert all(len(set(widths)) == 1 for widths in made.row_widths)
    for path in results.inputs.values():
        path.unlink()
    shown(page(results))


def test_a_page_has_no_external_resource(results: Results) -> None:
    one = page(results, history=(builds(2.0, 2.1, 2.2),))
    for source in (render_model(one), render_index([index_row(one)], GENERATED)):
        found = Page(source)
        assert {tag for tag, _ in found.elements} & {"img", "iframe", "object", "embed"} == set()
        for _, attributes in found.elements:
            assert "src" not in attributes
            assert not [name for name in attributes if name.startswith("on")]
            assert ":" not in (attributes.get("href") or "").removeprefix("data:,")
        style = re.findall(r"<style>(.*?)</style>", source, re.S)[0]
        assert "url(" not in style
        assert "@import" not in style


def test_only_the_script_of_the_page_may_run(results: Results) -> None:
    source = render_model(page(results))
    (script,) = re.findall(r"<script>(.*?)</script>", source, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(
        found["content"] or ""
        for _, found in Page(source).elements
        if found.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}'" in policy


def test_pictures_are_inside_or_linked(results: Results) -> None:
    inside = Picture("exported", "data:image/svg+xml;base64,PHN2Zz4=")
    found = shown(page(results, pictures=(inside, Picture("simplified", "../a b.svg"))))
    assert ("img", {"src": inside.link, "alt": "exported"}) in found.elements
    assert "../a%20b.svg" in found.links
    assert "There is no picture" not in found.text
    assert "buildsys inspect tiny --serve shows any graph" in shown(page(results)).text


def test_the_report_reads_its_own_json(results: Results, tmp_path: Path) -> None:
    results.failed("validate:tiny", "off", graphs={"exported": {"opt": {"y": {"relative": 0.5}}}})
    report = assemble("tiny", results.manifest, results.inputs, {})
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"model": "tiny", **as_json(report)}))
    assert repr(read_report(path)) == repr(report)
    older = {"model": "tiny", **as_json(report)}
    del older["recommendation"], older["layers"]
    path.write_text(json.dumps(older))
    read = read_report(path)
    assert read is not None
    shown(page_of(read))
    for text in ("", "[]", "{}", '{"model": "tiny"}', "[" * 100_000):
        path.write_text(text)
        assert read_report(path) is None
    os.truncate(path, 1 << 40)
    assert read_report(path) is None
    assert read_report(tmp_path / "missing.json") is None


ROW = IndexRow(
    "resnet", "resnet.html", "passed", "PASSED: all", "2026-11-22T10:00:00Z", "ort-cpu", 2.1,
    "torch.compile", 45_000_000, (2.0, None, 2.1, 2.1), ("vision", "nightly"), "team",
)  # fmt: skip


def test_the_index_lists_failures_first_with_their_reason() -> None:
    bad = IndexRow("zoo", "zoo.html", "failed", "FAILED: export:zoo: <no> file", "")
    found = Page(render_index([ROW, bad], GENERATED))
    assert found.links == ["zoo.html", "resnet.html"]
    assert "FAILED: export:zoo: <no> file" in found.text
    assert "2.10 ms" in found.text
    assert "torch.compile is faster" in found.text
    tags = [f["value"] for _, f in found.elements if f.get("data-f") == "t"]
    assert tags == ["nightly", "vision"]


def test_no_model_replaces_the_index() -> None:
    names = {page_name(name) for name in ("index", "Index", "INDEX", "a")}
    assert len(names) == 4
    assert "index.html" not in {name.lower() for name in names}


def test_a_noisy_latency_is_in_no_sparkline(results: Results) -> None:
    history = builds(2.0, 2.1, 2.2, figures=NOISY)
    assert [one.trusted_latency for one in history.timed] == [None, 2.1, 2.2]
    results.without_gpu()
    made = page(results, history=(history,), tags=("a",), owner="me")
    row = index_row(made)
    assert (row.engine, row.p50_ms, row.size_bytes) == ("ort-cpu", 2.1, 118_000)
    assert (row.trend, row.tags, row.owner) == ((2.2, 2.1, None), ("a",), "me")
    assert row.built == "2026-11-22T01:00:00Z"
    assert shown(made).text.count(" noisy 2.0 ") == 1  # in the table of builds
    unsteady = builds(2.0, 2.1, figures=WIDE)
    assert [one.trusted_latency for one in unsteady.timed] == [None, 2.1]


def test_every_layer_of_an_engine_is_listed_with_its_nodes(results: Results) -> None:
    layers = [
        {"name": f"layer {n}", "kind": "conv", "precision": "float16", "time_ms": float(n),
         "share": 0.01, "nodes": [f"/node {n}"]}
        for n in range(30)
    ]  # fmt: skip
    results.passed("engine:tiny:rtx-fp16", layer_nodes=layers)
    found = [row[0] for row in shown(page(results)).rows if row[-1].startswith("/node")]
    assert found == [f"layer {n}" for n in reversed(range(30))]
    assert "10 more layers" in shown(page(results)).text
