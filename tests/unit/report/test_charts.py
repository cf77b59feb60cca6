from __future__ import annotations

import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hostile_text import HOSTILE
from markupsafe import Markup

from buildsys.report.html import figures
from buildsys.report.html.charts import Axis, ChartMark, Series, bar, draw, sparkline, tick_text
from buildsys.report.html.figures import PastBuild
from buildsys.report.report_types import RankedEngine, Ranking

NAN, INF = math.nan, math.inf


def parsed(svg: Markup) -> ElementTree.Element:
    """Return a chart as XML; its coordinates are finite and inside the picture."""
    assert not re.search(
        r"nan|inf", re.sub(r"<title>.*?</title>|>[^<]*<|aria-label=\S*", "><", svg)
    )
    for name, text in re.findall(r'\b(c?x[12]?)="(-?[0-9.]+)%"', svg):
        assert -0.1 <= float(text) <= 100.1, (name, text)
    return ElementTree.fromstring(svg)


def dots(svg: Markup, style: str) -> list[float]:
    """Return the places of circles with a class, in percent."""
    return [
        float(circle.attrib["cx"].removesuffix("%"))
        for circle in parsed(svg).iter("circle")
        if style in circle.attrib["class"].split()
    ]


@pytest.mark.parametrize(
    ("low", "high", "is_log"),
    [(1.0, 1.0, False), (0.98, 1.02, True), (1e-9, 1e3, True), (3.1, 3.3, False), (0, 7e5, False)],
)
def test_an_axis_has_a_few_round_ticks_inside(low: float, high: float, is_log: bool) -> None:
    axis = Axis.around([low, high], is_log=is_log)
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 7
    assert all(axis.low <= tick <= axis.high for tick in ticks)
    assert ticks == sorted(ticks)
    assert 0 < axis.at(low or 1e-9) <= axis.at(high) < 100 or low == 0


def test_an_axis_of_nothing_and_of_no_numbers() -> None:
    for values in ([], [NAN, INF], [0.0, -1.0]):
        axis = Axis.around(values, is_log=True)
        assert (axis.low, axis.high) == (1.0, 10.0)
    assert (axis.at(NAN), axis.at(INF), axis.at(0.0)) == (100.0, 100.0, 0.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1e-5, "1e-5"), (2.95e-6, "2.95e-6"), (0.5, "0.5"), (2e4, "20,000"), (5e6, "5e6")],
)
def test_ticks_say_what_they_are(value: float, text: str) -> None:
    assert tick_text(value) == text


def test_a_chart_has_marks_with_whiskers_lines_and_labels() -> None:
    marks = [
        ChartMark(1.0, 2.0, "first", y_interval=(1.5, 2.5), label="a"),
        ChartMark(2.0, None, "failed", style="over"),
        ChartMark(3.0, 4.0, "last", x_interval=(2.5, 3.5), label="b"),
    ]
    axes = Axis.around([1.0, 3.5]), Axis.around([1.5, 4.0])
    svg = draw([Series("k0", marks)], *axes, "label", height=100, units=("ms", "s"))
    root = parsed(svg)
    assert [line.get("class") for line in root.iter("line")].count("line k0") == 1
    assert sum("whisker" in line.attrib["class"] for line in root.iter("line")) == 2
    heights = [float(circle.attrib["cy"]) for circle in root.iter("circle")]
    assert heights[1] > heights[0] > heights[2]  # a failure is at the bottom
    texts = [text.text for text in root.iter("text")]
    assert {"a", "b", "3 ms", "2 s"} <= set(texts)
    svg = draw([Series("k0", marks, is_line=False)], *axes, "label", height=100)
    assert "line k0" not in svg


def test_labels_of_equal_places_do_not_overlap() -> None:
    marks = [ChartMark(1.0, 1.0, f"engine {n}", label=f"engine {n}") for n in range(5)]
    axes = Axis.around([1.0]), Axis.around([1.0])
    root = parsed(draw([Series("k0", marks)], *axes, "label", height=100))
    places = [text.attrib["y"] for text in root.iter("text") if text.get("class") == "over-lines"]
    assert len(set(places)) == 5


def test_a_trend_shows_failures_noise_and_changes_of_the_environment() -> None:
    def build(day: int, p50_ms: float | None, **more: str) -> PastBuild:
        figures = {
            "latency_p50_ms": p50_ms,
            "latency_interval_ms": [(p50_ms or 0) * 0.99, (p50_ms or 0) * 1.01],
        }
        return PastBuild(
            **{
                "started": f"2026-11-{day:02d}",
                "status": "passed",
                "figures": figures if p50_ms else {},
                **more,
            }
        )

    builds = [
        build(23, 2.2, mark="tool:x 1 → 2"), build(22, None, status="failed"), build(21, 2.0),
        build(20, 2.1, status="noisy"),
    ]  # fmt: skip
    chart = figures.trend(builds)
    assert chart is not None
    assert (len(dots(chart.svg, "dot")), len(dots(chart.svg, "over"))) == (4, 1)
    assert len(dots(chart.svg, "faint")) == 1
    assert chart.svg.count('class="mark"') == 1
    assert chart.numbers is not None
    assert [row[:2] for row in chart.numbers.rows] == [
        ("2026-11-23", "2.20"), ("2026-11-22", "—"), ("2026-11-21", "2.00"),
        ("2026-11-20 noisy", "2.1"),
    ]  # fmt: skip
    assert figures.trend(builds[1:3]) is None
    long = figures.trend([build(1, 2.0)] * 40)
    assert long is not None
    assert long.numbers is not None
    assert (len(long.numbers.rows), long.numbers.notes[0][:22]) == (30, "The last 30 of 40 buil")


def test_engines_are_drawn_by_latency_error_and_size() -> None:
    first = RankedEngine("a", "b", "fp32", 1, 2.0, (1.9, 2.1), None, 100, 1e-6, is_optimal=True)
    second = replace(first, engine="z", p50_ms=4.0, p50_interval_ms=None, is_optimal=False)
    chart = figures.pareto(Ranking("latency", "opt", ranked=(first, second)))
    assert chart is not None
    assert dots(chart.svg, "k0") < dots(chart.svg, "b0")
    for hidden in (None, NAN):
        unknown = replace(second, error=hidden)
        assert figures.pareto(Ranking("latency", "opt", ranked=(first, unknown))) is None
    assert figures.pareto(None) is None


def test_a_sparkline_is_short_and_interrupted_by_failures() -> None:
    line = sparkline([2.0, 2.1, None, 2.0, NAN, 1.9])
    assert line.count("M") == 3
    assert len(sparkline([2.0 + n % 3 for n in range(24)])) < 350
    assert sparkline([]) == sparkline([2.0, None]) == ""


@pytest.mark.parametrize("share", [None, NAN, -1.0, 0.5, 7.0])
def test_a_bar_stays_in_its_cell(share: float | None) -> None:
    width = float(re.findall(r'width="([0-9.]+)%"', bar(share))[0])
    assert 0 <= width <= 100


def test_text_in_charts_is_escaped() -> None:
    marks = [ChartMark(1.0, 1.0, HOSTILE, label=HOSTILE), ChartMark(2.0, 2.0, HOSTILE)]
    axis = Axis.around([1.0, 2.0])
    lines = [(1.0, HOSTILE)]
    svg = draw([Series("k0", marks)], axis, axis, HOSTILE, height=99, lines=lines)
    assert {each.tag for each in parsed(svg).iter()} <= {"svg", "line", "circle", "text", "title"}
    assert not set("\x1b\u202e") & set(svg)
