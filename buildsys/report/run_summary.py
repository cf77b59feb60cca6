"""One screen of Markdown about a run, for comments and job summaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from buildsys.report.formatting import NOTHING, duration, first_names, plural
from buildsys.report.markdown import code, escape, section, table
from buildsys.report.run_results import (
    INTERRUPTED,
    NOISY,
    REFUSED,
    RUNNING,
    STATUSES,
    UNAVAILABLE,
    RunResults,
    TargetResult,
)

_MOST_ROWS = 25
_MOST_NAMES = 5


def run_summary(run: RunResults, title: str) -> str:
    """Write the summary of a run as Markdown."""
    return "\n".join((f"# {escape(title)}: {escape(outcome(run))}", *_lines(run))) + "\n"


def outcome(run: RunResults) -> str:
    """Describe a run's outcome: ``1 failed, 2 never ran`` or ``passed``."""
    if run.status == REFUSED:
        return "nothing could run"
    if run.status == RUNNING:
        return "not finished"
    counts = (
        (len(run.manifests), "broken manifest", "broken manifests"),
        (len(run.failed), "failed", "failed"),
        (len(run.regressed), "regressed", "regressed"),
        (len(run.never_ran), "never ran", "never ran"),
    )
    parts = [INTERRUPTED] if run.status == INTERRUPTED else []
    parts += [plural(count, single, several) for count, single, several in counts if count]
    parts = parts or ["passed"]
    parts += [f"{count} {s}" for s in (UNAVAILABLE, NOISY) if (count := run.count(s))]
    return ", ".join(parts)


def _lines(run: RunResults) -> Iterator[str]:
    counts = [f"{count} {s.replace('-', ' ')}" for s in STATUSES if (count := run.count(s))]
    targets = ", ".join(counts) or "no targets"
    when = run.started.replace("T", " ").removesuffix("Z")
    yield from ("", f"{targets} in {duration(run.seconds)}, on {escape(run.host)} from {when} UTC.")
    if run.error:
        yield from ("", escape(run.error))
    if run.manifests:
        yield from section("## Broken manifests")
        for manifest in run.manifests[:_MOST_ROWS]:
            yield from (f"- {escape(error)}" for error in manifest.errors[:_MOST_ROWS])
        yield from _more(len(run.manifests))
    for heading, columns, rows in _tables(run):
        if rows:
            yield from section(f"## {heading}")
            yield from table(columns, rows[:_MOST_ROWS])
            yield from _more(len(rows))


def _tables(run: RunResults) -> Iterator[tuple[str, Sequence[str], list[tuple[str, ...]]]]:
    """Yield heading, columns and rows, first what needs somebody."""
    columns = ("target", "owner", "reason")
    yield "Failed", columns, [(*_names(target), _reason(target)) for target in run.failed]
    yield "Regressed", columns, [(*_names(target), _reason(target)) for target in run.regressed]
    yield (
        "Never ran",
        ("targets", "owner", "reason"),
        [
            (
                first_names([code(target.target) for target in targets], _MOST_NAMES),
                escape(", ".join(dict.fromkeys(t.owner for t in targets if t.owner))),
                escape(why),
            )
            for why, targets in run.never_ran_by_reason.items()
        ],
    )
    yield "Noisy", columns, [(*_names(target), _reason(target)) for target in run.noisy]
    yield (
        "Flaky: passed when repeated",
        ("target", "owner", "first failure"),
        [(*_names(target), escape(target.first_failure)) for target in run.flaky],
    )
    yield (
        "Built",
        ("target", "time>", "key figure", "reason"),
        [
            (
                code(target.target),
                duration(target.seconds) if target.seconds else NOTHING,
                escape(target.figure),
                escape(target.why),
            )
            for target in run.built
        ],
    )


def _names(target: TargetResult) -> tuple[str, str]:
    return code(target.target), escape(target.owner)


def _reason(target: TargetResult) -> str:
    parts = [escape(target.reason.split("\n")[0])]
    parts += [f"last passed {target.last_passed[:10]}"] if target.last_passed else []
    parts += [f"log: {code(target.log)}"] if target.log else []
    return "; ".join(part for part in parts if part)


def _more(count: int) -> Sequence[str]:
    return ("", f"and {count - _MOST_ROWS} more") if count > _MOST_ROWS else ()
