"""``buildsys best`` on a report, without builds."""

import dataclasses
import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest
from cli_doubles import run_in

from buildsys.cli.commands import best
from buildsys.errors import UsageError
from buildsys.report.assemble import assemble_after_failure
from buildsys.report.report_types import Accuracy, BuildVerdict, EngineLine, Report, TimingLine

MANIFEST = """\
model: m
source: {python: "net.py:make"}
inputs: {x: {shape: [1, 4]}}
engines: [{name: fast, backend: onnxruntime}, {name: slow, backend: onnxruntime}]
"""


def engine(name: str, **fields: Any) -> EngineLine:
    values = {
        "name": name, "backend": "onnxruntime", "precision": "fp32", "built": "passed",
        "verified": "passed", "timed": "passed", "size_bytes": 1000, "build_seconds": 1.0,
        "layers": 1, "device": "", "sha256": "", "messages": (), **fields,
    }  # fmt: skip
    return EngineLine(**values)


def timing(name: str, p50: float) -> TimingLine:
    figures = {field.name: p50 for field in dataclasses.fields(TimingLine) if "_ms" in field.name}
    figures["p50_interval_ms"] = (p50 * 0.9, p50 * 1.1)
    return TimingLine(name, "engine", "opt", "fixed", 1, 9, throughput_per_s=1000 / p50, **figures)


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    (tmp_path / "configs/models").mkdir(parents=True)
    (tmp_path / "configs/models/m.yaml").write_text(MANIFEST)
    (tmp_path / "net.py").write_text("def make(): ...\n")
    found = dataclasses.replace(
        assemble_after_failure("m", {}, {}, {}, ""),
        verdict=BuildVerdict("passed", "PASSED"),
        engines=(engine("slow"), engine("fast"), engine("off", verified="unavailable")),
        bench=(timing("slow", 4.0), timing("fast", 1.0)),
    )
    monkeypatch.setattr(best, "current_report", lambda *_: (found, True))
    return found


def run(root: Path, **options: str | bool) -> int:
    return run_in(root, "best", "m", **options)


def test_the_answer_is_the_engine_to_ship_and_a_table(
    report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["Ship fast", "It is the first of 2 ranked engines by latency (case opt)."]
    assert lines[3] == "Ranked by latency, case opt (fixed):"
    assert [line.split()[:2] for line in lines[5:7]] == [["1", "fast"], ["2", "slow"]]
    assert lines[-1].split(maxsplit=2) == ["off", "unavailable", "its verify target is unavailable"]


def test_json_has_the_same_answer(
    report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, json=True, by="size") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["headline"]) == ("buildsys/best/1", "Ship fast")
    assert [one["rank"] for one in found["ranking"]["ranked"]] == [1, 1]
    assert found["ranking"]["unranked"][0]["engine"] == "off"


def test_the_exit_code_is_1_without_an_engine_to_ship(
    report: Report,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(tmp_path, within=1e-9) == 1
    assert capsys.readouterr().out.startswith("No engine to ship\n")
    failed = dataclasses.replace(report, verdict=BuildVerdict("failed", "FAILED: verify:m:off"))
    monkeypatch.setattr(best, "current_report", lambda *_: (failed, True))
    assert run(tmp_path) == 1
    assert capsys.readouterr().out.startswith("Do not ship yet: FAILED: verify:m:off\nOf what has")


def test_doubts_follow_the_engine_to_ship(
    report: Report,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    doubts = "1 branch fixed at net.py:12"
    verdict = BuildVerdict("passed", f"PASSED, {doubts}: all 5 targets passed", doubts)
    doubted = dataclasses.replace(report, verdict=verdict)
    monkeypatch.setattr(best, "current_report", lambda *_: (doubted, True))
    assert run(tmp_path) == 0
    assert capsys.readouterr().out.startswith("Ship fast: 1 branch fixed at net.py:12\n")


def test_a_case_without_a_benchmark_is_refused(report: Report, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="m has no timed case 'max'; cases with a benchmark: opt"):
        run(tmp_path, case="max")


@pytest.mark.parametrize("limit", ["97%", "0.97"])
def test_engines_with_a_worse_metric_on_data_are_left_out(
    report: Report,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    limit: str,
) -> None:
    def accuracy(value: float) -> Accuracy:
        return Accuracy("top-1", value, 0.98, 0.98 - value, 0.0, 0.02, is_share=True)

    engines = engine("slow", accuracy=accuracy(0.975)), engine("fast", accuracy=accuracy(0.96))
    evaluated = dataclasses.replace(report, engines=engines)
    monkeypatch.setattr(best, "current_report", lambda *_: (evaluated, True))
    parser = ArgumentParser()
    best.add_arguments(parser)
    value = parser.parse_args(["m", "--min-accuracy", limit]).min_accuracy
    assert run(tmp_path, min_accuracy=value) == 0
    text = capsys.readouterr().out
    assert text.startswith(
        "Ship slow\n"
        "It is the only ranked engine with a metric on data of 0.97 or better (case opt)."
    )
    assert "its top-1 is 96.0 %, the limit 97.0 %" in text
    assert "97.5 %  0.5 % (0.0 % to 2.0 %)" in text


@pytest.mark.parametrize("limit", ["", "%", "nan", "97 %%", "high"])
def test_a_limit_that_is_no_number_is_refused(
    limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = ArgumentParser()
    best.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["m", "--min-accuracy", limit])
    assert "expects a metric such as 97% or 0.2" in capsys.readouterr().err
