"""The charts of a model's page as inline SVG, and the past builds that they show.

Positions are percentages of the width and sizes are pixels: a chart fills a phone or a wide screen,
and its text keeps its size.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from markupsafe import Markup, escape

from buildsys.report import formatting as q
from buildsys.report.formatting import case_order
from buildsys.report.ranking import unique_names
from buildsys.report.report_types import Accuracy, Chart, Ranking, Report, Table, TimingLine
from buildsys.report.result_files import FAILED, NOISY, PASSED
from buildsys.stages.bench.result import ENGINE_CONTENDERS, is_recorded_noisy
from buildsys.stages.table import BENCH, ENGINE, VERIFY
from buildsys.system.printable import printable_line

_SMALL = 0.02  # a smaller change of a latency without interval is no difference


@dataclass(frozen=True)
class PastBuild:
    """One build of one target."""

    started: str  # ISO 8601, UTC
    status: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    commit: str = ""  # abbreviated, with a mark if the tree was dirty
    why: str = ""  # the reasons of the build
    mark: str = ""  # differences to the environment of the build before
    accepted: str = ""  # why a person has accepted it, against its gate

    @property
    def trusted_latency(self) -> float | None:
        """The median latency in ms, None of a noisy or failed benchmark."""
        is_trusted = self.status in (PASSED, NOISY) and not self.is_noisy
        return self.number("latency_p50_ms") if is_trusted else None

    @property
    def is_noisy(self) -> bool:
        """True for a benchmark without a steady median."""
        return is_recorded_noisy(self.figures)

    @property
    def interval_ms(self) -> tuple[float, float] | None:
        """The interval of the median, None if it is not known."""
        match self.figures.get("latency_interval_ms"):
            case [int() | float() as low, int() | float() as high] if math.isfinite(low + high):
                return (low, high)
            case _:
                return None

    def number(self, name: str) -> float | None:
        """Read a finite figure, None if it is not known."""
        value = self.figures.get(name)
        is_finite = isinstance(value, (int, float)) and math.isfinite(value)
        return float(value) if is_finite else None  # type: ignore[arg-type]


@dataclass(frozen=True)
class EngineHistory:
    """The builds of one engine's targets, newest first."""

    engine: str
    built: tuple[PastBuild, ...] = ()
    verified: tuple[PastBuild, ...] = ()
    timed: tuple[PastBuild, ...] = ()


@dataclass(frozen=True)
class PageChange:
    """A figure of the last build against the one before."""

    what: str
    text: str
    trend: str  # better, worse, same, or "" for a note


def changes(history: EngineHistory, stages: Collection[str]) -> Iterator[PageChange]:
    """Yield changes of latency, size and error by ``stages``, with the build's reason.

    Only builds that passed are compared.
    """
    builds = {ENGINE: history.built, VERIFY: history.verified, BENCH: history.timed}
    builds = {stage: own if stage in stages else () for stage, own in builds.items()}
    figures = (
        ("p50", BENCH, "latency_p50_ms", q.significant, " ms"),
        ("size", ENGINE, "bytes", q.size, ""),
        ("error", VERIFY, "relative", q.error, ""),
    )
    for what, stage, figure, show, unit in figures:
        passed = [
            build
            for build in builds[stage]
            if (build.trusted_latency is not None if stage == BENCH else build.status == PASSED)
        ]
        new, old = ([build.number(figure) for build in passed[:2]] + [None] * 2)[:2]
        if old is None or new is None:
            continue
        texts = show(old), show(new)
        text, note = f"{texts[0]} → {texts[1]}{unit}", ""
        if stage == BENCH and _is_close(*passed[:2]):
            note = f"no significant change: {text}"
        elif stage != BENCH and texts[0] == texts[1]:
            note = f"unchanged: {texts[1]}"
        ratio = f"{q.change(new / old - 1)}: " if old else ""
        trend = "same" if note else "worse" if new > old else "better"
        yield PageChange(f"{what} of {history.engine}", note or f"{ratio}{text}", trend)
    first = [own[0] for own in builds.values() if own]
    newest = max(first, key=lambda build: build.started, default=None)
    if newest is not None and any(len(own) > 1 for own in builds.values()):
        notes = (("built because", newest.why), ("environment", newest.mark))
        yield from (PageChange(what, text, "") for what, text in notes if text)


def _is_close(new: PastBuild, old: PastBuild) -> bool:
    """Compare two latencies, by their intervals if known."""
    new_ms, old_ms = new.trusted_latency or 0.0, old.trusted_latency or 0.0
    if new.interval_ms and old.interval_ms:
        return new.interval_ms[0] <= old.interval_ms[1] and old.interval_ms[0] <= new.interval_ms[1]
    return abs(new_ms - old_ms) <= _SMALL * old_ms


_TABLE_BUILDS = 30  # rows below a trend
_ENGINE_COLORS = 3
_TORCH = "torch"  # the baseline that is the original model


@dataclass(frozen=True)
class PlottedContender:
    """An engine or a baseline in one case."""

    line: TimingLine
    name: str
    kind: str  # the class of its color
    share: float | None  # its median over the slowest
    is_fastest: bool
    ratio: str  # its median over the engine's in the same benchmark, if both are steady


def contenders(report: Report) -> list[tuple[str, str, list[PlottedContender]]]:
    """List every contender by case and sizes, the recommendation's case first."""
    first = report.recommendation.case if report.recommendation else ""
    names = unique_names(report.bench)
    numbers = {engine.name: number for number, engine in enumerate(report.engines)}
    cases = {line.case for line in report.bench}
    groups = []
    for case in sorted(cases, key=lambda name: (name != first, case_order(name))):
        lines = [line for line in report.bench if line.case == case]
        least_ms = min(filter(None, map(_steady_ms, lines)), default=None)
        slowest_ms = max((n.p50_ms or 1.0 for n in lines if _is_positive(n.p50_ms)), default=1.0)
        own = {line.engine: line for line in reversed(lines)}  # the first one is the engine itself
        rows = []
        for line in lines:
            engine, p50_ms = own[line.engine], _steady_ms(line)
            engine_ms, ratio = _steady_ms(engine), ""
            if line is not engine and p50_ms and engine_ms:
                ratio = f"{p50_ms / engine_ms:.2f}{q.TIMES}"
            is_engine = line.contender in ENGINE_CONTENDERS
            kind = f"k{numbers.get(line.engine, 0) % _ENGINE_COLORS}" if is_engine else "b0"
            share = (line.p50_ms or 0.0) / slowest_ms
            is_fastest = p50_ms is not None and p50_ms == least_ms
            name = names[line.engine, line.contender]
            rows.append(PlottedContender(line, name, kind, share, is_fastest, ratio))
        groups.append((case, lines[0].dims, rows))
    return groups


def accuracies(report: Report) -> Markup | None:
    """Draw the metric on data over the latency, and the Pareto front of ranked engines."""
    ranking = report.ranking or Ranking("")
    ranked = {engine.engine for engine in ranking.ranked}
    known = {engine.name: engine.accuracy for engine in report.engines if engine.accuracy}
    timed: dict[str, tuple[float, Accuracy]] = {}
    lines = [line for line in report.bench if line.case == ranking.case and line.engine in known]
    for line in sorted(lines, key=lambda line: (_steady_ms(line) or 0.0, line.engine)):
        own = known[line.engine]
        if not (p50_ms := _steady_ms(line)):
            continue
        if line.contender in ENGINE_CONTENDERS:
            timed.setdefault(line.engine, (p50_ms, own))
        elif line.contender == _TORCH:
            original = replace(own, value=own.original, loss=0.0, low=0.0, high=0.0)
            timed.setdefault(_TORCH, (p50_ms, original))
    if not timed:
        return None
    marks, least = [], math.inf
    longest_ms = max(p50_ms for p50_ms, _ in timed.values())
    for name, (p50_ms, own) in timed.items():
        unit, text = 100 if own.is_share else 1, q.metric(own.value, is_share=own.is_share)
        mark = ChartMark(
            unit * own.value,
            f"{name}: {text}, {q.significant(p50_ms)} ms",
            [unit * end for end in own.interval],
            name not in known,
            place=p50_ms / longest_ms,
            name=f"{name}, {q.significant(p50_ms)} ms",
            is_linked=name in ranked and own.loss < least,
            is_failed=name in known and name not in ranked,
        )
        least = own.loss if mark.is_linked else least
        marks.append(mark)
    label = f"{own.title} over the median latency"
    return trend_line(marks, label, "%" if own.is_share else "", _TALL)


def trend(builds: Sequence[PastBuild]) -> tuple[Markup, Table] | None:
    """Draw and list the latency of builds (newest first) with their intervals.

    None with fewer than two latencies.
    """
    marks, rows = [], []
    for build in reversed(builds):
        value = None if build.status == FAILED else build.number("latency_p50_ms")
        parts = [build.started[:16].replace("T", " "), build.commit, NOISY * build.is_noisy]
        parts += [f"accepted: {build.accepted}"] if build.accepted else []
        label, text = " ".join(filter(None, parts)), q.latency(value, noisy=build.is_noisy)
        interval = build.interval_ms if value else None
        rows.append((label, text, q.interval(interval, noisy=build.is_noisy), build.mark))
        title = f"{label}: {f'{text} ms' if value else 'failed'}"
        drawn = (interval or ()) if value else ()
        marks.append(ChartMark(value or None, title, drawn, build.is_noisy, build.mark))
    if sum(mark.value is not None for mark in marks) < 2:
        return None
    columns = ("build", "p50 (ms)>", "95 % interval>", "changed before it")
    note = f"The last {_TABLE_BUILDS} of {len(builds)} builds; `buildsys history` lists all."
    notes = (note,) if len(builds) > _TABLE_BUILDS else ()
    newest = tuple(rows[: -_TABLE_BUILDS - 1 : -1])
    svg = trend_line(marks, f"Median latency of the last {len(builds)} builds", "ms")
    return svg, Table("Builds", columns, newest, notes)


def _steady_ms(line: TimingLine) -> float | None:
    return line.p50_ms if _is_positive(line.p50_ms) and not line.noisy else None


def _is_positive(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0


_LEVELS = 16  # percent of the width, for the labels of levels
_HEIGHT, _TALL = 130, 220  # pixels
_MARGIN = 0.15  # of the range of values
_LONGEST_TITLE = 400
_MOST_TICKS = 6
_RIGHT = 70  # percent of the width, from where names are on the left
Place = tuple[float, float]  # percent of the width, pixels from the top


@dataclass(frozen=True)
class ChartMark:
    """One value of a trend, None for a failure."""

    value: float | None
    title: str  # the tooltip
    interval: Sequence[float] = ()
    is_faint: bool = False
    change: str = ""  # what changed before it: a vertical line
    place: float | None = None  # share of the width; None: in order
    name: str = ""  # next to it
    is_linked: bool = True  # by the line
    is_failed: bool = False
    series: int = 0  # the line, with its color


def trend_line(
    marks: Sequence[ChartMark],
    label: str,
    unit: str,
    height: int = _HEIGHT,
    limit: float | None = None,
    ticks: Mapping[str, float] = MappingProxyType({}),
) -> Markup:
    """Draw finite values in order over levels; failures are at the bottom.

    With a ``limit``, the chart ends at twice its height. ``ticks`` are places along the width.
    """
    drawn = [(mark.value, *(() if mark.is_faint else mark.interval)) for mark in marks]
    ends = [end for values in drawn for end in values if end is not None]
    span = (max(ends) - min(ends)) or abs(max(ends)) * 0.1 or 1.0
    low, high = min(ends) - span * _MARGIN, max(ends) + span * _MARGIN
    if limit is not None:
        low, high = -limit * _MARGIN, 2 * limit

    def across(number: float, place: float | None = None) -> float:
        share = (number + 1) / (len(marks) + 1) if place is None else place
        return _LEVELS + (98 - _LEVELS) * share

    def down(value: float | None) -> float:
        if value is None:
            return height - 5
        return height * (1 - min(max((value - low) / (high - low), 0.0), 1.0))

    parts = []
    step = round_step((high - low) / _MOST_TICKS)
    for number in range(math.ceil(low / step), math.floor(high / step) + 1):
        y, text = down(number * step), f"{tick_text(number * step)} {unit}"
        parts.append(_line("grid", (0, y), (100, y)))
        parts.append(f'<text class="tick" y="{_short(y - 4)}">{text}</text>')
    if limit is not None:
        parts.append(_line("mark", (_LEVELS, down(limit)), (100, down(limit)), "the limit"))
    for text, share in ticks.items():
        at = f'x="{_short(across(0, share))}%" y="{height - 4}" text-anchor="middle"'
        parts.append(f'<text class="tick" {at}>{text}</text>')
    places = [(across(n, mark.place), down(mark.value)) for n, mark in enumerate(marks)]
    for series in dict.fromkeys(mark.series for mark in marks):
        points = [
            place
            for place, mark in zip(places, marks, strict=True)
            if mark.value is not None and mark.is_linked and mark.series == series
        ]
        parts += [_line(f"line k{series}", *ends) for ends in pairwise(points)]
    for number, ((x, y), mark) in enumerate(zip(places, marks, strict=True)):
        if mark.change:
            before = across(number - 0.5)
            parts.append(_line("mark", (before, 0), (before, height), mark.change))
        if mark.interval:
            low_y, high_y = map(down, mark.interval)
            parts.append(_line(f"whisker k{mark.series}", (x, low_y), (x, high_y)))
        is_bad = mark.value is None or mark.is_failed
        style = " over" if is_bad else " faint" if mark.is_faint else ""
        radius = 4 if mark.value is None or mark.name else 2.5
        place = f'cx="{_short(x)}%" cy="{_short(y)}" r="{radius}"'
        kind = f"k{mark.series}{style}"
        parts.append(f'<circle class="dot {kind}" {place}>{_title(mark.title)}</circle>')
        if mark.name:  # in turn above and below, as neighbours may be close
            anchor, gap = ("end", -8) if x > _RIGHT else ("start", 8)
            at = f'x="{_short(x)}%" y="{_short(y + (17 if number % 2 else -7))}" dx="{gap}"'
            text = escape(printable_line(mark.name))
            parts.append(f'<text {at} text-anchor="{anchor}">{text}</text>')
    return Markup(  # noqa: S704 - all texts are escaped
        f'<svg class="chart" role="img" aria-label="{escape(printable_line(label))}"'
        f' width="100%" height="{height}">{"".join(parts)}</svg>'
    )


def curves(chart: Chart) -> Markup:
    """Draw the curves of a chart, each in its color."""
    longest = max(point.x for curve in chart.curves.values() for point in curve)
    marks = [
        ChartMark(
            point.y,
            point.title,
            point.interval,
            place=point.x / longest,
            series=series % _ENGINE_COLORS,
        )
        for series, curve in enumerate(chart.curves.values())
        for point in curve
    ]
    step = round_step(longest / _MOST_TICKS)
    ticks = {tick_text(n * step): n * step / longest for n in range(int(longest / step) + 1)}
    return trend_line(marks, chart.title, chart.unit, _TALL, chart.limit, ticks)


def sparkline(values: Sequence[float | None], style: str = "spark") -> Markup:
    """Draw a small line without axes, "" for one value; a failed build interrupts it."""
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    if len(numbers) < 2:
        return Markup("")
    middle = (min(numbers) + max(numbers)) / 2
    half = max(max(numbers) - middle, abs(middle) * 0.05) or 1.0  # 5 %: noise stays a flat line
    path, pen = "", "M"
    for n, value in enumerate(values):
        if value is None or not math.isfinite(value):
            pen = "M"
            continue
        x, y = round(96 * n / (len(values) - 1)), round(12 - 10 * (value - middle) / half)
        path += f"{pen}{x} {y}"
        pen = "L"
    return Markup(  # noqa: S704
        f'<svg class="{style}" viewBox="-2 0 100 24" preserveAspectRatio="none" aria-hidden="true">'
        f'<path d="{path}"/></svg>'
    )


def bar(share: float | None, kind: str = "k0") -> Markup:
    """Draw a horizontal bar for a table cell."""
    width = 0.0 if share is None or not math.isfinite(share) else min(max(share, 0.0), 1.0)
    return Markup(  # noqa: S704
        f'<svg class="bar" aria-hidden="true"><rect class="{kind}" width="{_short(width * 100)}%"/>'
        "</svg>"
    )


def tick_text(value: float) -> str:
    """Write a tick's value: 0.5, 20, 1e-5."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.10g}"
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def round_step(span: float) -> float:
    """Choose the smallest 1, 2 or 5 times a power of ten that is not below ``span``."""
    size = 10.0 ** math.floor(math.log10(span))
    return next((step * size for step in (1.0, 2.0, 5.0) if step * size >= span), 10 * size)


def _line(style: str, begin: Place, end: Place, title: str = "") -> str:
    ends = f'x1="{_short(begin[0])}%" x2="{_short(end[0])}%"'
    ends += f' y1="{_short(begin[1])}" y2="{_short(end[1])}"'
    return f'<line class="{style}" {ends}>{_title(title)}</line>'


def _title(text: str) -> str:
    line = printable_line(text)
    line = f"{line[:_LONGEST_TITLE]}…" if len(line) > _LONGEST_TITLE else line
    return f"<title>{escape(line)}</title>" if text else ""


def _short(value: float) -> str:
    """Write a coordinate with as few characters as possible."""
    return f"{value:.1f}".removesuffix(".0")
