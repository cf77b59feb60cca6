"""The report as one screen of Markdown, for comments of CI systems.

The HTML page and report.json have the details. Nothing is computed here.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from buildsys.report import formatting as q
from buildsys.report.checks import margin_text
from buildsys.report.formatting import align, display_width
from buildsys.report.ranking import WAIT, accuracy_texts, headline, rank_text, unique_names
from buildsys.report.report_types import LATENCY, Ranking, Recommendation, Report, problems
from buildsys.stages.bench.result import ENGINE_CONTENDERS
from buildsys.stages.table import VERIFY, target_of
from buildsys.system.printable import printable

_SPECIAL = re.compile(r"([\\`*<|\[\]~]|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;))")
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_LONGEST = 400
_STATUS_TEXTS = {"failed": "FAILED", "noisy": "NOISY", "absent": "no result"}


def escape(text: str, longest: int = _LONGEST) -> str:
    """Escape text to one line without markup but code spans; very long text is cut."""
    parts = _CODE.split(q.fold(_one_line(text), longest)[0])
    return "".join(
        code(part) if number % 2 else _SPECIAL.sub(r"\\\1", part)
        for number, part in enumerate(parts)
    )


def sentence(text: str) -> str:
    """Escape text, with one full stop at its end."""
    return escape(text.rstrip().rstrip(".")) + "."


def code(text: str) -> str:
    """Write text as a code span; empty text stays empty."""
    line = _one_line(text)
    if not line:
        return ""
    mark = fence(line)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{mark}{pad}{line}{pad}{mark}"


def fence(text: str, least: int = 1) -> str:
    """Choose more backticks than ``text`` has in one place."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(least, longest + 1)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Write the lines of a table. A title ending in ``>`` aligns right."""
    right = [column.endswith(">") for column in columns]
    # a bar ends a cell even inside a code span; one that is escaped already stays as it is
    cells = [[re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in row] for row in rows]
    titles, *cells = align([[column.removesuffix(">") for column in columns], *cells], right, 3)
    rule = [
        "-" * (display_width(title) - 1) + (":" if at_right else "-")
        for title, at_right in zip(titles, right, strict=True)
    ]
    return [f"| {' | '.join(row)} |" for row in (titles, rule, *cells)]


def status_text(status: str) -> str:
    """Write a status for people; only passed targets are called so."""
    return _STATUS_TEXTS.get(status, status)


def section(title: str) -> tuple[str, str, str]:
    """Write the lines of a heading such as ``## Title``."""
    return ("", title, "")


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


Lines = Iterator[str]
_FAILED_TITLE = "build failed"
_MOST_ROWS = 12
_MOST_PROBLEMS = 5
_MOST_WARNINGS = 3


def render(report: Report) -> str:
    """Render the report as Markdown, ending in a newline."""
    return printable("\n".join(_lines(report))) + "\n"


def _lines(report: Report) -> Lines:
    yield f"# {escape(report.model)}: {_FAILED_TITLE if report.notice else 'build report'}"
    yield from ("", f"**{sentence(report.verdict.text)}**")
    if report.notice:
        yield from ("", sentence(report.notice))
    shipped = report.recommendation
    if shipped is not None:
        title = headline(report, shipped)
        best = f"Of what has passed, the best engine is {code(shipped.engine)}. "
        best = best if title == WAIT else ""
        yield from ("", f"**{escape(title)}.** {best}{escape(shipped.why)}")
    yield from _engines(report)
    yield from _latencies(report)
    for own in report.tables:
        yield from section(f"## {escape(own.title)}")
        yield from table(own.columns, [[*map(escape, row)] for row in own.rows[:_MOST_ROWS]])
        yield from _further(len(own.rows), "figures")
        yield from ("", *(f"- {escape(note)}" for note in own.notes)) if own.notes else ()
    yield from _targets(report)
    if report.warnings:
        yield ""
        yield from (f"- Warning: {escape(text)}" for text in report.warnings[:_MOST_WARNINGS])
        if len(report.warnings) > _MOST_WARNINGS:
            yield f"- and {len(report.warnings) - _MOST_WARNINGS} more warnings in `report.json`"


def _engines(report: Report) -> Lines:
    """Yield the engines, with separate columns for built, verified and timed."""
    if not report.source:  # it has commands only
        return
    yield from section("## Engines")
    if not report.engines:
        yield "The manifest has no engines."
        return
    margins = {check.target: margin_text(check) for check in report.checks}
    ranking = report.ranking or Ranking(LATENCY)
    ranks = {
        engine.engine: (rank_text(ranking, engine), "yes" if engine.is_optimal else "no")
        for engine in ranking.ranked
    }
    accuracy = next((line.accuracy for line in report.engines if line.accuracy), None)
    columns = (
        "engine", "precision", "built", "size>", "verified", "error of limit>", "timed",
        *([f"{escape(accuracy.title)}, loss (95 %)>"] if accuracy else []),
        "rank>", "Pareto-optimal",
    )  # fmt: skip
    rows = [
        (
            code(line.name),
            escape(line.precision),
            "yes" if line.built == "passed" else status_text(line.built),
            q.size(line.size_bytes),
            status_text(line.verified),
            margins.get(target_of(VERIFY, report.model, line.name)) or q.NOTHING,
            status_text(line.timed),
            *([": ".join(accuracy_texts(line.accuracy))] if accuracy else []),
            *ranks.get(line.name, (q.NOTHING, q.NOTHING)),
        )
        for line in report.engines[:_MOST_ROWS]
    ]
    yield from table(columns, rows)
    yield from _further(len(report.engines), "engines")


def _latencies(report: Report) -> Lines:
    """Yield engines and the best one's baselines in a case, the fastest first, noisy ones last."""
    shipped = report.recommendation or Recommendation("", "")
    case = shipped.case
    lines = [line for line in report.bench if line.case == case and line.p50_ms is not None]
    lines = [n for n in lines if n.contender in ENGINE_CONTENDERS or n.engine == shipped.engine]
    if not lines:
        return
    lines.sort(key=lambda line: (line.noisy, line.p50_ms or 0.0))
    names, rows = unique_names(lines), []
    for line in lines[:_MOST_ROWS]:
        name = escape(names[line.engine, line.contender]) + (" NOISY" if line.noisy else "")
        p50_ms, p99_ms, rate = (
            q.latency(value, noisy=line.noisy)
            for value in (line.p50_ms, line.p99_ms, line.throughput_per_s)
        )
        interval = q.interval(line.p50_interval_ms, noisy=line.noisy)
        rows.append((name, p50_ms, interval, p99_ms, rate))
    dims = f" ({escape(lines[0].dims)})" if lines[0].dims else ""
    yield from section(f"## Latency, case {escape(case)}{dims}")
    columns = ("contender", "p50 (ms)>", "95 % interval>", "p99 (ms)>", "mean items/s>")
    yield from table(columns, rows)
    yield from _further(len(lines), "contenders")


def _targets(report: Report) -> Lines:
    """Yield the targets with reasons of failures; of many, without passed ones."""
    yield from section("## Targets")
    lines = list(report.summary)
    if len(lines) > _MOST_ROWS:
        lines = [line for line in lines if line.status != "passed"]
        passed = len(report.summary) - len(lines)
        yield from (f"{passed} of {len(report.summary)} targets passed.", "")
    rows = [
        (
            code(line.target),
            status_text(line.status),
            q.duration(line.seconds),
            escape(line.outcome) or q.NOTHING,
        )
        for line in lines[:_MOST_ROWS]
    ]
    if rows:
        yield from table(("target", "status", "time>", "result"), rows)
    yield from _further(len(lines), "targets")
    causes = problems(report.summary)
    yield from [""] if causes else []
    for (status, hint), entries in causes[:_MOST_PROBLEMS]:
        for reason, concerned in entries:
            targets = q.first_names([code(line.target) for line in concerned], 4)
            head, rest = q.fold(reason)
            first = escape(head.removesuffix(" …")) if rest else sentence(head)
            yield f"- {targets} — {status_text(status)}: {first}"
            yield from [f"  {sentence(rest)}"] if rest else []
            if status == "failed":
                logs = q.first_names([code(line.log) for line in concerned], 4)
                yield f"  Log: {logs}. Run again: {code(f'buildsys build {concerned[0].target}')}."
        if "\n" in hint:  # a list, with YAML to copy
            listed = (f"  {line}" for line in hint.splitlines())
            mark = fence(hint, 3)
            yield from ("  What to do:", "", f"  {mark}text", *listed, f"  {mark}", "")
        elif hint:
            yield f"  What to do: {sentence(hint)}"
    if len(causes) > _MOST_PROBLEMS:
        yield f"- and {len(causes) - _MOST_PROBLEMS} more reasons in `report.json`"


def _further(count: int, noun: str) -> Lines:
    if count > _MOST_ROWS:
        yield from ("", f"and {count - _MOST_ROWS} more {noun} in `report.json`")
