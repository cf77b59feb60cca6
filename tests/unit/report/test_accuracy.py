"""What a report shows of the accuracy of engines on data."""

import re
from typing import Any

import pytest
from html_page import Page, page_of
from tiny_results import Results

from buildsys.report.assemble import assemble
from buildsys.report.html.figures import accuracies
from buildsys.report.html.pages import render_model
from buildsys.report.markdown import render
from buildsys.report.ranking import rank_engines, ranking_table
from buildsys.report.report_types import Accuracy, Report, as_json

FLIP = {"sample": "val/7.png", "label": "cat", "original": "cat 0.9", "engine": "dog 0.6"}
CLASSES = [
    {"name": "cat", "samples": 400, "original": 0.96, "engine": 0.95},
    {"name": "dog", "samples": 600, "original": 0.98, "engine": 0.9},
]


def evaluated(loss: float = 0.0, **more: Any) -> dict[str, Any]:
    return {
        "status": "passed", "title": "top-1", "is_share": True, "higher_is_better": True,
        "value": 0.97 - loss, "original": 0.97, "loss": loss, "low": loss - 0.01,
        "high": loss + 0.01, "drop": 0.02, "samples": 1000, **more,
    }  # fmt: skip


@pytest.fixture
def results(results: Results) -> Results:
    for engine, content in (
        ("ort-cpu", evaluated()),
        ("rtx-fp16", evaluated(0.005, flips=[FLIP], classes=CLASSES)),
    ):
        target = f"evaluate:tiny:{engine}"
        results.inputs[target] = results.build / f"tiny/evaluate/{engine}.json"
        results.write(target, content)
    return results


def report_of(results: Results) -> Report:
    return assemble("tiny", results.manifest, results.inputs, {})


def fail_fp16(results: Results) -> None:
    reason = "top-1 loses 9.0 % (95 % interval 8.0 % to 10.0 %), 2.0 % is allowed"
    results.write("evaluate:tiny:rtx-fp16", evaluated(0.09, status="failed", reason=reason))


def test_the_ranking_has_the_metric_and_its_loss_next_to_latency(results: Results) -> None:
    report = report_of(results)
    assert report.ranking is not None
    table = ranking_table(report.ranking)
    assert table.columns[-2:] == ("top-1>", "loss (95 % interval)>")
    assert [(row[1], *row[-2:]) for row in table.rows] == [
        ("rtx-fp16", "96.5 %", "0.5 % (-0.5 % to 1.5 %)"),
        ("ort-cpu", "97.0 %", "0.0 % (-1.0 % to 1.0 %)"),
    ]
    assert "top-1 of the original model: 97.0 %." in table.notes
    assert "96.5 %: 0.5 % (-0.5 % to 1.5 %)" in render(report)
    (first, _) = as_json(report)["ranking"]["ranked"]
    assert first["accuracy"]["loss"] == 0.005


@pytest.mark.parametrize("status", ["failed", "unavailable"])
def test_an_engine_without_a_passed_evaluation_is_not_recommended(
    results: Results, status: str
) -> None:
    results.write("evaluate:tiny:rtx-fp16", {"status": status, "reason": "it loses too much"})
    report = report_of(results)
    assert report.recommendation is not None and report.ranking is not None
    assert report.recommendation.engine == "ort-cpu"
    (left_out,) = report.ranking.unranked
    assert (left_out.engine, left_out.status) == ("rtx-fp16", status)
    assert left_out.reason == "it loses too much"


def test_a_report_without_evaluations_has_the_same_ranking_as_before(results: Results) -> None:
    for engine in ("ort-cpu", "rtx-fp16"):
        del results.inputs[f"evaluate:tiny:{engine}"]
    report = report_of(results)
    assert report.ranking is not None
    assert "loss (95 % interval)>" not in ranking_table(report.ranking).columns
    assert accuracies(report) is None


def test_engines_below_the_limit_are_left_out(results: Results) -> None:
    report = report_of(results)
    ranking = rank_engines(report, min_accuracy=0.968)
    assert [line.engine for line in ranking.ranked] == ["ort-cpu"]
    assert ranking.unranked[0].reason == "its top-1 is 96.5 %, the limit 96.8 %"
    results.write("evaluate:tiny:ort-cpu", {"status": "passed"})
    ranking = rank_engines(report_of(results), min_accuracy=0.9)
    assert ranking.unranked[0].reason == "it is not evaluated on data"


@pytest.mark.parametrize(
    ("better", "is_share", "ends"),
    [(True, True, (0.6, 0.4)), (False, True, (0.4, 0.6)), (False, False, (0.45, 0.55))],
)
def test_the_interval_of_a_value_follows_the_direction_of_its_metric(
    better: bool, is_share: bool, ends: tuple[float, float]
) -> None:
    accuracy = Accuracy("m", 0.5, 0.5, 0.0, -0.1, 0.1, is_share, better)
    assert accuracy.interval == pytest.approx(ends)
    assert accuracy.meets(0.4) is better
    assert accuracy.meets(0.6) is not better


def test_the_chart_links_the_pareto_front_and_marks_failures(results: Results) -> None:
    svg = str(accuracies(report_of(results)))
    assert svg.count('class="line k0"') == 1  # rtx-fp16 is faster, ort-cpu more accurate
    assert svg.count("<circle") == 3  # with torch
    assert "<title>rtx-fp16: 96.5 %, 0.200 ms</title>" in svg
    assert "<title>torch: 97.0 %, 4.20 ms</title>" in svg
    assert "over" not in re.findall(r'class="([^"]*)"', svg)
    fail_fp16(results)
    svg = str(accuracies(report_of(results)))
    assert svg.count('class="line k0"') == 0
    assert svg.count('class="dot k0 over"') == 1


def test_the_page_has_the_metric_of_the_recommended_engine(results: Results) -> None:
    text = Page(render_model(page_of(report_of(results)))).text
    assert "top-1 on data, 1,000 samples 96.5 % loss" in text
    assert "Accuracy on data and latency" in text
    fail_fp16(results)
    text = Page(render_model(page_of(report_of(results)))).text
    assert "top-1 on data, 1,000 samples 97.0 % loss" in text


def test_names_in_the_chart_are_escaped(results: Results) -> None:
    results.inputs = {
        target.replace("rtx-fp16", "<b>"): path for target, path in results.inputs.items()
    }
    for path in results.inputs.values():
        path.write_text(path.read_text().replace("rtx-fp16", "<b>"))
    svg = str(accuracies(report_of(results)))
    assert "&lt;b&gt;, 0.200 ms</text>" in svg
    assert "<b>" not in svg


def test_changed_predictions_and_classes_are_tables(results: Results) -> None:
    report = report_of(results)
    tables = {table.title: table for table in report.tables}
    changed = tables["Changed predictions"]
    assert changed.rows == (("rtx-fp16", "val/7.png", "cat", "cat 0.9", "dog 0.6"),)
    assert changed.images == ("val/7.png",)
    by_class = tables["Accuracy by class"]
    assert by_class.columns == ("class", "samples>", "original>", "rtx-fp16>")
    assert by_class.rows == (
        ("dog", "600", "98.0 %", "90.0 %"),  # loses most
        ("cat", "400", "96.0 %", "95.0 %"),
    )
    for text in (render(report), render_model(page_of(report))):
        assert "Changed predictions" in text
        assert "dog 0.6" in text


def test_an_engine_without_a_class_has_a_dash(results: Results) -> None:
    results.write("evaluate:tiny:ort-cpu", evaluated(classes=CLASSES[:1]))
    tables = {table.title: table for table in report_of(results).tables}
    assert [row[-2:] for row in tables["Accuracy by class"].rows] == [
        ("—", "90.0 %"),
        ("95.0 %", "95.0 %"),
    ]


def test_of_many_classes_the_worst_are_listed(results: Results) -> None:
    classes = [
        {"name": f"c{n}", "samples": 9, "original": 0.9, "engine": 0.9 - n / 1000}
        for n in range(100)
    ]
    results.write("evaluate:tiny:rtx-fp16", evaluated(classes=classes))
    tables = {table.title: table for table in report_of(results).tables}
    by_class = tables["Accuracy by class"]
    assert (by_class.rows[0][0], len(by_class.rows)) == ("c99", 40)
    assert by_class.notes == ("60 more classes, which lose less, are in the results.",)


@pytest.mark.parametrize("field", ["title", "is_share", "value", "low", "samples", "original"])
def test_an_incomplete_result_leaves_a_report(results: Results, field: str) -> None:
    content = evaluated()
    del content[field]
    results.write("evaluate:tiny:ort-cpu", content)
    report = report_of(results)
    tables = {table.title: table for table in report.tables}
    assert [row[0] for row in tables["Accuracy on data"].rows] == ["rtx-fp16"]
    assert "tiny" in render_model(page_of(report))


@pytest.mark.parametrize("text", ["NaN", "Infinity"])
def test_a_figure_that_is_not_finite_is_not_drawn(results: Results, text: str) -> None:
    path = results.inputs["evaluate:tiny:ort-cpu"]
    path.write_text(path.read_text().replace('"high": 0.01', f'"high": {text}'))
    assert text in path.read_text()
    svg = str(accuracies(report_of(results)))
    assert "ort-cpu" not in svg and "rtx-fp16" in svg
