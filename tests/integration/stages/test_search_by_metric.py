"""Searches whose limit is the metric of `evaluate`, up to the evaluation of their engines."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluated_digits import TRAINED, digits
from poisoned_digits import AUTO, PoisonedDigits, graph, trained

from buildsys.errors import StageError
from buildsys.report.key_figures import key_figure
from buildsys.report.result_files import Result
from buildsys.stages.search.report import details
from buildsys.workers.job import StageResult

SEARCH, COUNT = "search:m:auto-int8", len(digits()[1]) - TRAINED
THIRD_DIGIT = """\
import numpy


def third(outputs, labels):
    return numpy.array([scores.max() * 100 % 1 for scores in outputs])


third.per_sample = third.is_share = True
"""
STRICT = {"int8": {"rtol": 0.012}}  # of tensors


def searched(folder: Path, limit: str = "metric", **evaluation: Any) -> tuple[PoisonedDigits, Any]:
    """Search in a project of its own."""
    folder.mkdir(exist_ok=True)
    sections = {**AUTO, "search": {"limit": limit}, "verify": STRICT}
    evaluation = {"drop": "4%", **evaluation}
    project = PoisonedDigits(folder, evaluation, **sections)
    project.quantize("predict:m")
    return project, project.run(SEARCH).figures


def built(project: PoisonedDigits) -> StageResult:
    """Convert the graph with the nodes of the search, and build the engine."""
    assert project.run("convert:m:auto-int8").status == "passed"
    return project.run("engine:m:e")


def test_the_metric_keeps_the_poisoned_layer_and_errors_keep_more(tmp_path: Path) -> None:
    _, by_error = searched(tmp_path / "error", "error")
    project, by_metric = searched(tmp_path / "metric")
    assert by_metric["nodes"] == [["/poisoned", "Conv"]]
    assert len(by_error["nodes"]) > 1
    assert "graphs" not in by_error
    first, last = by_metric["graphs"][0], by_metric["with"]
    assert (first["in_fp32"], last["in_fp32"], last["verdict"]) == (0, 1, "passed")
    assert first["verdict"] in ("failed", "undecided")
    assert last["high"] <= by_metric["limits"]["drop"] < first["high"]
    assert by_metric["limits"] == {"drop": pytest.approx(0.8 * 0.04)}
    built(project)
    verified = project.run("verify:m:e")
    assert verified.status == "passed"
    case = verified.figures["cases"]["opt"]["y"]
    assert case["relative"] > 0.012
    assert case["note"].endswith("allowed 0.012; the metric decides")
    evaluated = project.run("evaluate:m:e")
    assert evaluated.status == "passed"
    with np.load(project.build / "m/evaluate/original.npz") as records:
        half = [digest for digest in records[" digests"] if int(digest[0], 16) % 2]
    assert evaluated.figures["samples"] == len(half) < COUNT


def test_the_report_names_the_limit_and_all_graphs(tmp_path: Path) -> None:
    _, figures = searched(tmp_path)
    result: Any = Result(SEARCH, "passed", figures)
    (table,) = details([result])
    assert table.title == "Graphs judged by the search auto-int8, loss of 3.2 % allowed"
    assert [row[0] for row in table.rows] == [str(g["in_fp32"]) for g in figures["graphs"]]
    assert [row[-1] for row in table.rows] == [g["verdict"] for g in figures["graphs"]]
    text = key_figure("search", figures)
    assert text.startswith("1 of 4 nodes in fp32: top-1 loses ")
    assert " (loss of 3.2 % allowed), " in text


def test_graphs_that_overflow_fail_and_the_search_goes_on(tmp_path: Path) -> None:
    class Overflowing(PoisonedDigits):
        trained = staticmethod(lambda: trained(1e7))
        graph = staticmethod(lambda: graph(1e7))

    engines = [{"backend": "onnxruntime", "name": "e", "precision": "auto-fp16"}]
    sections: dict[str, Any] = {"engines": engines, "search": {"limit": "metric"}}
    project = Overflowing(tmp_path, {"drop": "4%"}, **sections)
    project.save_golden()
    project.run("predict:m")
    figures = project.run("search:m:auto-fp16").figures
    assert figures["without"]["verdict"] == "failed"
    assert "the output y is NaN for sample" in figures["without"]["reason"]
    assert figures["with"]["verdict"] == "passed"
    assert 0 < len(figures["nodes"]) < figures["candidates"]
    json.dumps(figures, allow_nan=False)
    result: Any = Result("search:m:auto-fp16", "passed", figures)
    assert next(details([result])).rows[0][-1].startswith("failed: the output y is NaN")
    assert re.search(r": top-1 loses — → -?0\.\d % \(", key_figure("search", figures))


def test_undecided_graphs_never_hold_and_all_nodes_stay_in_fp32(tmp_path: Path) -> None:
    (tmp_path / "digit.py").write_text(THIRD_DIGIT)
    project, figures = searched(tmp_path, metric={"python": "digit.py:third"})
    verdicts = {(graph["verdict"], graph["in_fp32"] == 4) for graph in figures["graphs"]}
    assert verdicts == {("undecided", False), ("passed", True)}
    assert (figures["is_fp32"], figures["with"]["verdict"]) == (True, "passed")
    limit = "is within a loss of 3.2 % of digit.py:third"
    assert key_figure("search", figures).endswith(limit)
    built(project)
    assert project.run("evaluate:m:e").status == "passed"


def test_too_few_samples_for_any_graph_are_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StageError) as raised:
        searched(tmp_path, drop="1%", samples=500)
    assert "are too few for the search to show that a loss is at most 0.8 %" in str(raised.value)
    assert "evaluate about 2," in raised.value.hint


@pytest.mark.parametrize("half", [0, 1])
def test_neither_half_may_be_calibration_data(tmp_path: Path, half: int) -> None:
    project, _ = searched(tmp_path)
    with np.load(project.build / "m/evaluate/original.npz") as records:
        digests = records[" digests"]
    row = next(row for row, digest in enumerate(digests) if int(digest[0], 16) % 2 == half)
    seen = np.concatenate([digits()[0][:63], digits()[0][TRAINED + row, None]])
    np.savez(tmp_path / "calibration.npz", x=seen)
    project.run("calibrate:m")
    built(project)
    for target in (SEARCH, "evaluate:m:e"):
        with pytest.raises(StageError, match=f"the sample {row} is in the calibration data"):
            project.run(target)
