"""``doit explain``: for a stale target every reason, for a fresh one when and why it was built last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TextIO

from buildsys.cli.console.listing import Entry, moment, write_page
from buildsys.cli.console.target_line import duration
from buildsys.cli.session import Session
from buildsys.cli.targets import chosen_targets, explanations, open_project
from buildsys.execution.freshness import FRESH, MAY_RERUN, STALE, Explanation, LastRun
from buildsys.execution.stale_reasons import Reason, format_reasons, summarize_reasons

SCHEMA = "buildsys/explain/1"
_SHOWN_CAUSES = 3


def explain_targets(root: Path, names: Sequence[str], out: TextIO, *, as_json: bool) -> None:
    """Print why targets are stale, or how they came to be fresh; without names, of all.

    Raises: UsageError: a name is not known. ManifestErrors: the manifests are wrong.
    """
    session = open_project(root)
    chosen = chosen_targets([session], names)
    found = [one for one in explanations(session, chosen).values() if one.target in chosen]
    if as_json:
        write_json(out, {"schema": SCHEMA, "targets": [explanation_json(one) for one in found]})
        return
    write_page(out, _entries(session, found, whole=bool(names)), [_counted(found)])


def explanation_json(one: Explanation) -> dict[str, Any]:
    """Return an explanation as it is told in JSON: values whole, the words for each reason beside its data."""
    return {
        "target": one.target,
        "state": one.state.replace(" ", "-"),
        "restorable": one.restorable,
        "reasons": reasons_json(one.reasons),
        "expected_s": one.expected_s,
        "last_run": None if one.last is None else _last_run_json(one.last),
    }


def reasons_json(reasons: Iterable[Reason]) -> list[dict[str, Any]]:
    """Return reasons as they are told in JSON."""
    # "line" was the first changed line of a file; it stays in the schema, always null
    return [{**reason._asdict(), "line": None, "text": str(reason)} for reason in reasons]


def write_json(out: TextIO, answer: Any) -> None:
    """Print one JSON document."""
    import json

    json.dump(answer, out, indent=2)  # ASCII: a file name may be no text in any encoding
    out.write("\n")


def _last_run_json(last: LastRun) -> dict[str, Any]:
    return {
        "status": last.status,
        "started": last.started,
        "seconds": last.seconds,
        "reason": last.reason,
        "reasons": reasons_json(last.reasons),
    }


def _entries(session: Session, found: Iterable[Explanation], *, whole: bool) -> Iterator[Entry]:
    """Yield what to print; unless targets were named, what is fresh of a model together."""
    grouped = groupby(found, key=lambda one: session.actions[one.target].model)
    for model, members in grouped:
        listed = list(members)
        fresh = [one for one in listed if one.state == FRESH]
        if fresh and not whole:
            yield _fresh_together(model, fresh, len(listed))
        yield from (_entry(one) for one in listed if whole or one.state != FRESH)


def _fresh_together(model: str, fresh: Sequence[Explanation], of: int) -> Entry:
    count = f"all {of}" if len(fresh) == of else f"{len(fresh)} of {of}"
    latest = max((one.last.started for one in fresh if one.last), default="")
    return Entry(
        FRESH, f"{model}: {count} targets" + (f", last built {moment(latest)}" if latest else "")
    )


def _entry(one: Explanation) -> Entry:
    if one.state == FRESH:
        return Entry(FRESH, f"{one.target}: {_how_built(one.last)}" if one.last else one.target)
    details = format_reasons(one.reasons)
    if one.restorable:
        details.append("nothing is run: its outputs are in the store and will be restored")
    seen = f": last run {moment(one.last.started)}, {one.last.status}" if one.last else ""
    return Entry(one.state, one.target + seen, details)


def _how_built(last: LastRun) -> str:
    how = {"passed": "built", "error": "last run failed"}.get(last.status, last.status)
    text = f"{how} {moment(last.started)} in {duration(last.seconds)}"
    text += f" ({last.reason})" if last.reason else ""
    return text + (
        f"; reason then: {summarize_reasons(last.reasons, _SHOWN_CAUSES)}" if last.reasons else ""
    )


def _counted(found: Sequence[Explanation]) -> str:
    counts = {
        state: sum(one.state == state for one in found) for state in (STALE, MAY_RERUN, FRESH)
    }
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "no targets"
