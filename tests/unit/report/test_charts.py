from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from buildsys.report.html import charts, svg
from buildsys.report.html.axes import Axis
from buildsys.report.html.charts import Chart, Distribution, ErrorRow, Series, TrendPoint

NAN, INF = math.nan, math.inf


def parsed(chart: Chart | None) -> ElementTree.Element:
    """Return a chart as XML; its coordinates are finite and inside the picture."""
    assert chart is not None
    assert not re.search(r"nan|inf", re.sub(r"<title>.*?</title>|>[^<]*<", "><", chart.svg))
    for name, text in re.findall(r'\b(c?x[12]?)="(-?[0-9.]+)%"', chart.svg):
        assert -0.1 <= float(text) <= 100.1, (name, text)
    assert all(len(row) == len(chart.columns) for row in chart.rows)
    return ElementTree.fromstring(chart.svg)


def circles(chart: Chart | None, style: str) -> list[float]:
    return [
        float((one.get("cx") or "").removesuffix("%"))
        for one in parsed(chart).iter("circle")
        if one.get("class") == style
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


def test_distributions_show_median_interval_and_density() -> None:
    rows = [
        Distribution("engine", "k0", [1 + 0.001 * n for n in range(1000)], 1.5, 1.99, (1.4, 1.6)),
        Distribution("torch", "b0", [4.0, 4.1, 4.2], 4.1, 4.2),
    ]
    chart = charts.distributions(rows)
    root = parsed(chart)
    paths = [path.get("class") for path in root.iter("path")]
    assert paths == ["area k0", "line b0"]  # few samples have no density
    assert [rect.get("class") for rect in root.iter("rect")] == ["interval"]
    assert chart is not None
    assert chart.rows[0][:4] == ("engine", "1,000", "1.00", "1.40 to 1.60")
    assert chart.rows[1][-1] == "4.20"


@pytest.mark.parametrize("samples", [(), (NAN,), (0.0, -1.0, INF)])
def test_distributions_of_no_samples_are_left_out(samples: tuple[float, ...]) -> None:
    assert charts.distributions([Distribution("engine", "k0", samples, None, None)]) is None


def test_equal_samples_and_unknown_percentiles_are_drawn() -> None:
    parsed(charts.distributions([Distribution("engine", "k0", [2.0] * 50, NAN, None, (NAN,))]))


def test_errors_are_drawn_against_their_limit() -> None:
    rows = [ErrorRow("y", {"min": 0.0, "opt": 1e-6, "max": 3e-4, "odd": NAN})]
    chart = charts.errors(rows, 1e-4, "relative error")
    assert circles(chart, "zero") < circles(chart, "within") < circles(chart, "over")
    assert len(circles(chart, "over")) == 2  # above the limit, and not finite
    (limit,) = (line for line in parsed(chart).iter("line") if line.get("class") == "limit")
    within, over = circles(chart, "within")[0], min(circles(chart, "over"))
    assert within < float((limit.get("x1") or "").removesuffix("%")) < over
    assert chart is not None
    assert [row[2] for row in chart.rows] == ["0", "1.0e-06", "3.0e-04", "not finite"]
    assert charts.errors([], 1e-4, "relative error") is None
    assert charts.errors([ErrorRow("y", {"opt": 0.0})], 1e-4, "relative error") is None
    parsed(charts.errors([ErrorRow("y", {"opt": 0.0, "max": NAN})], None, "relative error"))


def test_of_many_cases_the_worst_are_labelled() -> None:
    errors = {f"drawn-{n}": 1e-7 * (1 + n / 100) for n in range(12)}
    chart = charts.errors([ErrorRow("y", errors)], 1e-4, "relative error")
    labels = [t for t in parsed(chart).iter("text") if t.get("class") == "small"]
    assert [label.text for label in labels] == ["drawn-11", "drawn-10", "drawn-9"]
    assert len({label.get("y") for label in labels}) == 3
    assert len(circles(chart, "within")) == 12
    assert chart is not None
    assert [row[1] for row in chart.rows] == list(errors)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1e-5, "1e-5"), (2.95e-6, "2.95e-6"), (0.5, "0.5"), (2e4, "20,000"), (5e6, "5e6")],
)
def test_ticks_say_what_they_are(value: float, text: str) -> None:
    assert svg.tick_text(value) == text


def test_a_density_reaches_its_peak_and_stays_above_the_axis() -> None:
    samples = [1.5 + 0.05 * math.sin(n) for n in range(400)]
    chart = charts.distributions([Distribution("engine", "k0", samples, 1.5, 1.55)])
    (path,) = (path.get("d") or "" for path in parsed(chart).iter("path"))
    assert re.fullmatch(r"M0 360l[-\d ]+V360H1000Z", path)
    steps = [int(step) for step in re.findall(r"-?\d+", path)[2:-2]]
    assert len(steps) % 2 == 0
    heights = [-sum(steps[1 : n + 2 : 2]) for n in range(0, len(steps), 2)]
    assert min(heights) >= 0
    assert max(heights) == 340  # of 360: 2 pixels stay free
    assert sum(steps[::2]) <= 1000


def test_the_label_of_a_limit_at_the_left_end_stays_inside() -> None:
    anchors = []
    for error in (1e-12, 1e-4):
        chart = charts.errors([ErrorRow("y", {"opt": error})], 1e-8, "relative error")
        (label,) = (text for text in parsed(chart).iter("text") if text.get("class") == "limit")
        anchors.append(label.get("text-anchor"))
    assert anchors == ["end", "start"]


def test_lines_need_two_sizes() -> None:
    series = Series("engine", "k0", ((1.0, 0.5, (0.4, 0.6)), (8.0, 2.0, None)))
    chart = charts.lines([series], "batch size", "p50 (ms)")
    assert len(circles(chart, "dot k0")) == 2
    one = Series("engine", "k0", ((8.0, 2.0, None),))
    assert charts.lines([one], "batch size", "p50 (ms)") is None
    assert charts.lines([], "batch size", "p50 (ms)") is None


def test_a_trend_shows_failures_and_changes_of_the_environment() -> None:
    points = [
        TrendPoint(2.0, (1.9, 2.1), "first"),
        TrendPoint(None, None, "second"),
        TrendPoint(2.2, None, "third", mark="tool:x 1 → 2"),
    ]
    chart = charts.trend(points, "ms", most_rows=9)
    root = parsed(chart)
    assert [r.get("class") for r in root.iter("rect")] == ["failed"]
    assert [line.get("class") for line in root.iter("line")].count("mark") == 1
    assert chart is not None
    assert [row[0] for row in chart.rows] == ["third", "second", "first"]
    assert charts.trend(points[:2], "ms", most_rows=9) is None


def test_a_sparkline_is_short_and_interrupted_by_failures() -> None:
    line = svg.sparkline([2.0, 2.1, None, 2.0, NAN, 1.9])
    assert line.count("M") == 3
    assert len(svg.sparkline([2.0 + n % 3 for n in range(24)])) < 350
    assert svg.sparkline([]) == svg.sparkline([2.0, None]) == ""


@pytest.mark.parametrize("share", [None, NAN, -1.0, 0.5, 7.0])
def test_a_bar_stays_in_its_cell(share: float | None) -> None:
    width = float(re.findall(r'width="([0-9.]+)%"', svg.bar(share))[0])
    assert 0 <= width <= 100


def test_text_in_charts_is_escaped() -> None:
    name = "<script>alert(1)</script>\x1b\u202e&" * 3
    samples = [1.0, 2.0, 3.0]
    for chart in (
        charts.distributions([Distribution(name, "k0", samples, 2.0, 3.0)]),
        charts.errors([ErrorRow(name, {name: 1e-6})], 1e-4, name),
        charts.lines([Series(name, "k0", ((1, 1, None), (2, 2, None)))], name, name),
        charts.trend(
            [TrendPoint(1.0, None, name), TrendPoint(2.0, None, name, mark=name)], "ms", most_rows=9
        ),
    ):
        root = parsed(chart)
        assert not [one for one in root.iter() if one.tag == "script"]
        assert chart is not None
        assert not set("\x1b\u202e") & set(chart.svg)
