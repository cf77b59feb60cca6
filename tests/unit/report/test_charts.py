import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hostile_text import HOSTILE
from markupsafe import Markup

from buildsys.report.html import figures
from buildsys.report.html.figures import (
    ChartMark,
    PastBuild,
    bar,
    round_step,
    sparkline,
    tick_text,
    trend_line,
)

NAN = math.nan


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


@pytest.mark.parametrize("span", [1e-9, 0.2, 1.0, 3.1, 7e5])
def test_a_trend_has_a_few_round_steps(span: float) -> None:
    step = round_step(span / 6)
    assert 2 <= span / step <= 6
    assert re.fullmatch("[125]0*", f"{step:.0e}".partition("e")[0])


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1e-5, "1e-5"), (2.95e-6, "2.95e-6"), (0.5, "0.5"), (2e4, "20,000"), (5e6, "5e6")],
)
def test_ticks_say_what_they_are(value: float, text: str) -> None:
    assert tick_text(value) == text


def test_a_trend_shows_failures_noise_and_changes_of_the_environment() -> None:
    def build(day: int, p50_ms: float | None, **more: str) -> PastBuild:
        figures = {
            "latency_p50_ms": p50_ms,
            "latency_interval_ms": [(p50_ms or 0) * 0.99, (p50_ms or 0) * 1.01],
            "noisy": more.pop("noisy", None),
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
        build(20, 2.1, noisy=["load"]),
    ]  # fmt: skip
    chart = figures.trend(builds)
    assert chart is not None
    svg, table = chart
    root = parsed(svg)
    assert (len(dots(svg, "dot")), len(dots(svg, "over")), len(dots(svg, "faint"))) == (4, 1, 1)
    classes = [line.attrib["class"] for line in root.iter("line")]
    counts = [classes.count(kind) for kind in ("mark", "whisker k0", "line k0")]
    assert counts == [1, 3, 2]
    heights = [float(circle.attrib["cy"]) for circle in root.iter("circle")]
    assert heights[2] > heights[1] > heights[3]  # a failure is at the bottom
    assert "2.1 ms" in [text.text for text in root.iter("text")]
    assert [row[:2] for row in table.rows] == [
        ("2026-11-23", "2.20"), ("2026-11-22", "—"), ("2026-11-21", "2.00"),
        ("2026-11-20 noisy", "2.1"),
    ]  # fmt: skip
    assert figures.trend(builds[1:3]) is None
    wide = replace(builds[3], figures={**builds[3].figures, "latency_interval_ms": [0.1, 90.0]})
    again = figures.trend([*builds[:3], wide])
    assert again is not None
    circles = [circle.attrib["cy"] for circle in parsed(again[0]).iter("circle")]
    assert [float(cy) for cy in circles] == heights  # a noisy interval does not set the scale
    long = figures.trend([build(1, 2.0)] * 40)
    assert long is not None
    assert (len(long[1].rows), long[1].notes[0][:22]) == (30, "The last 30 of 40 buil")


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
    marks = [ChartMark(1.0, HOSTILE), ChartMark(2.0, HOSTILE, change=HOSTILE)]
    svg = trend_line(marks, HOSTILE, "")
    assert {node.tag for node in parsed(svg).iter()} <= {"svg", "line", "circle", "text", "title"}
    assert not set("\x1b\u202e") & set(svg)
