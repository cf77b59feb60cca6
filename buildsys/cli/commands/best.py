"""buildsys best: the engines of a model in order, and the one to ship."""

import math
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator

from buildsys.cli.command import add_json, add_names, print_answer
from buildsys.cli.console.rows import format_table
from buildsys.cli.failure_report import current_report
from buildsys.cli.session import BuildSession
from buildsys.errors import UsageError
from buildsys.report.formatting import fold
from buildsys.report.ranking import (
    WAIT,
    headline,
    rank_engines,
    ranking_table,
    recommend,
    timed_cases,
)
from buildsys.report.report_types import LATENCY, MEASURES, plain_values

SCHEMA = "buildsys/best/1"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys best``."""
    add_names(parser, "MODEL")
    parser.add_argument("--by", choices=MEASURES, default=LATENCY, help="order of the engines")
    parser.add_argument(
        "--case", default="", help="shape case of latencies and throughputs; the default is opt"
    )
    parser.add_argument(
        "--within",
        type=_number("a relative error such as 1e-3", 0.0),
        help="leave out engines with a larger relative error, such as 1e-3",
    )
    parser.add_argument(
        "--min-accuracy",
        type=_number("a metric such as 97% or 0.2"),
        help="leave out engines with a worse metric on data, such as 97%% or 0.2",
    )
    add_json(parser)


def run(options: Namespace) -> int:
    """Print the ranking; return 1 if no engine can be shipped."""
    session = BuildSession.read_only(options.root)
    model = session.one_model("best", options.names)
    report, _ = current_report(session, model)
    cases = timed_cases(report)
    if options.case and options.case not in cases:
        listed = f"cases with a benchmark: {', '.join(cases) or 'none'}"
        raise UsageError(f"{model} has no timed case {options.case!r}", listed)
    limits = {"within": options.within, "min_accuracy": options.min_accuracy}
    ranking = rank_engines(report, by=options.by, case=options.case, **limits)
    shipped = recommend(report, ranking)
    title = headline(report, shipped)

    def lines() -> Iterator[str]:
        verdict = report.verdict
        detail = verdict.text if title == WAIT else verdict.doubts
        yield f"{title}: {detail}" if detail else title
        prefix = f"Of what has passed, the best is {shipped.engine}. "
        yield f"{prefix if title == WAIT else ''}{shipped.why}"
        if ranking.ranked:
            table = ranking_table(ranking)
            case = f", case {ranking.case} ({ranking.dims})" if ranking.case else ""
            yield from ["", f"Ranked by {ranking.by}{case}:"]
            yield from format_table(table.columns, table.rows)
            yield from table.notes
        if ranking.unranked:
            rows = [(e.engine, e.status, fold(e.reason)[0]) for e in ranking.unranked]
            yield from ["", "Not ranked:"]
            yield from format_table(("engine", "status", "reason"), rows)
            reasons = {engine.reason for engine in ranking.unranked}
            explained = (line for line in report.summary if line.reason in reasons)
            yield from dict.fromkeys(line.hint for line in explained if line.hint)

    document = {
        "schema": SCHEMA,
        "model": model,
        "verdict": report.verdict,
        "headline": title,
        "recommendation": shipped,
        "ranking": ranking,
    }
    print_answer(options, plain_values(document), lines())
    return 0 if title.startswith("Ship ") else 1


def _number(example: str, least: float = -math.inf) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            limit = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            limit = math.nan
        if not (math.isfinite(limit) and limit >= least):
            raise ArgumentTypeError(f"expects {example}, found {text!r}")
        return limit

    return parse
