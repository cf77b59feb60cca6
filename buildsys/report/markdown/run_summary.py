"""One screen of Markdown about a run, for comments and job summaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from buildsys.report.formatting import NOTHING, duration, first_names, plural
from buildsys.report.markdown.elements import code, escape, section, table
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

_MOST_ROWS = 25  # of one table
_MOST_NAMES = 5


def run_summary(run: RunResults, title: str) -> str:
    """Return the summary of a run as Markdown."""
    return "\n".join((f"# {escape(title)}: {escape(outcome(run))}", *_lines(run))) + "\n"


def outcome(run: RunResults) -> str:
    """Return a run's outcome: ``1 failed, 2 never ran`` or ``passed``."""
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
    parts += [plural(count, one, many) for count, one, many in counts if count]
    parts = parts or ["passed"]
    parts += [f"{run.count(one)} {one}" for one in (UNAVAILABLE, NOISY) if run.count(one)]
    return ", ".join(parts)


def _lines(run: RunResults) -> Iterator[str]:
    counts = [
        f"{run.count(status)} {status.replace('-', ' ')}"
        for status in STATUSES
        if run.count(status)
    ]
    listed = ", ".join(counts) or "no targets"
    when = run.started.replace("T", " ").removesuffix("Z")
    yield from ("", f"{listed} in {duration(run.seconds)}, on {escape(run.host)} from {when} UTC.")
    if run.error:
        yield from ("", escape(run.error))
    if run.manifests:
        yield from section("## Broken manifests")
        for manifest in run.manifests[:_MOST_ROWS]:
            yield from (f"- {escape(error)}" for error in manifest.errors[:_MOST_ROWS])
        yield from _more(len(run.manifests))
    for heading, targets in (("Failed", run.failed), ("Regressed", run.regressed)):
        if targets:
            yield from section(f"## {heading}")
            rows = ((code(one.target), escape(one.owner), _reason(one)) for one in targets)
            yield from table(("target", "owner", "reason"), list(rows)[:_MOST_ROWS])
            yield from _more(len(targets))
    if run.never_ran:
        yield from section("## Never ran")
        groups = [
            (
                first_names([code(one.target) for one in found], _MOST_NAMES),
                _owners(found),
                escape(why),
            )
            for why, found in run.never_ran_by_reason.items()
        ]
        yield from table(("targets", "owner", "reason"), groups[:_MOST_ROWS])
        yield from _more(len(groups))
    if run.noisy:
        yield from section("## Noisy")
        noisy = ((code(one.target), escape(one.owner), _reason(one)) for one in run.noisy)
        yield from table(("target", "owner", "reason"), list(noisy)[:_MOST_ROWS])
        yield from _more(len(run.noisy))
    if run.flaky:
        yield from section("## Flaky: passed when repeated")
        rows = (
            (code(one.target), escape(one.owner), escape(one.first_failure)) for one in run.flaky
        )
        yield from table(("target", "owner", "first failure"), list(rows)[:_MOST_ROWS])
        yield from _more(len(run.flaky))
    if run.built:
        yield from section("## Built")
        built = (
            (code(one.target), duration(one.seconds) if one.seconds else NOTHING,
             escape(one.figure), escape(one.why))
            for one in run.built
        )  # fmt: skip
        yield from table(("target", "time>", "key figure", "reason"), list(built)[:_MOST_ROWS])
        yield from _more(len(run.built))


def _reason(one: TargetResult) -> str:
    parts = [escape(one.reason.split("\n")[0])]
    parts += [f"last passed {one.last_passed[:10]}"] if one.last_passed else []
    parts += [f"log: {code(one.log)}"] if one.log else []
    return "; ".join(part for part in parts if part)


def _owners(targets: Sequence[TargetResult]) -> str:
    return escape(", ".join(dict.fromkeys(one.owner for one in targets if one.owner)))


def _more(count: int) -> Sequence[str]:
    return ("", f"and {count - _MOST_ROWS} more") if count > _MOST_ROWS else ()
