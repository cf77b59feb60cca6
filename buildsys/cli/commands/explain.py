"""doit explain: reasons for stale targets, or for their last build."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from buildsys.cli.command import JSON, Options, ProjectCommand, print_json
from buildsys.cli.console.rows import Row, print_rows, time_ago
from buildsys.cli.model_filter import ModelFilter, filter_options
from buildsys.cli.session import Session
from buildsys.execution.freshness import FRESH, MAY_RERUN, STALE, Explanation
from buildsys.execution.stale_reasons import (
    Reason,
    decode_reasons,
    format_reasons,
    summarize_reasons,
)
from buildsys.report.formatting import duration
from buildsys.report.key_figures import refit_origin
from buildsys.report.results.engine import EngineResult
from buildsys.report.results.reader import parse
from buildsys.store.ledger import UNAVAILABLE

SCHEMA = "buildsys/explain/1"
_SHOWN_CAUSES = 3


class Explain(ProjectCommand):
    """Explain the state of targets."""

    doc_purpose = "explain why targets are stale, or when and why they were built"
    doc_usage = "[TARGET ...]"
    options = (JSON, *filter_options())

    def run(self, root: Path, names: Sequence[str], options: Options) -> int:
        """Print one explanation per target; without names, those of all targets."""
        only = ModelFilter.of(options)
        session = Session.read_only(root, () if only else names)
        chosen = session.select(names, only=only)
        found = [one for one in session.explain(chosen).values() if one.target in chosen]
        if options["json"]:
            print_json({"schema": SCHEMA, "targets": [explanation_json(one) for one in found]})
            return 0
        counts = Counter(map(_word, found))
        words = (STALE, MAY_RERUN, FRESH, UNAVAILABLE)
        summary = ", ".join(f"{counts[word]} {word}" for word in words if counts[word])
        print_rows(_rows(session, found, by_name=bool(names)), [summary or "no targets"])
        return 0


def explanation_json(one: Explanation) -> dict[str, Any]:
    """Return an explanation as JSON, reasons as data and text."""
    last = one.last
    last_run = last and {
        "status": last.status, "started": last.started, "seconds": last.seconds,
        "reason": last.reason, "reasons": reasons_json(decode_reasons(last.why)),
    }  # fmt: skip
    found = {
        "target": one.target, "state": one.state.replace(" ", "-"), "restorable": one.restorable,
        "reasons": reasons_json(one.reasons), "expected_s": one.expected_s, "last_run": last_run,
    }  # fmt: skip
    return found if one.unavailable is None else {**found, "unavailable": one.unavailable}


def reasons_json(reasons: Iterable[Reason]) -> list[dict[str, Any]]:
    """Return reasons as JSON."""
    # "line" was the first changed line of a file; it stays in the schema, always null
    return [{**reason._asdict(), "line": None, "text": str(reason)} for reason in reasons]


def _refitted(session: Session, target: str) -> str:
    """Return how an engine got its weights, if not by a build."""
    if not session.actions[target].refits:
        return ""
    result: EngineResult = parse(session.result(target), EngineResult)
    if reason := result.get("not_refitted"):
        return f"; not refitted: {reason}"
    origin = refit_origin(result)
    return f"; refitted from {origin}" if origin else ""


def _word(one: Explanation) -> str:
    """Return the state of a target as printed."""
    return one.state if one.unavailable is None else UNAVAILABLE


def _rows(session: Session, found: Iterable[Explanation], *, by_name: bool) -> Iterator[Row]:
    """Yield one row per target; unnamed fresh targets share one per model."""
    for model, members in groupby(found, key=lambda one: session.actions[one.target].model):
        targets = list(members)
        fresh = [one for one in targets if _word(one) == FRESH]
        if fresh and not by_name:
            count = f"all {len(fresh)}" if fresh == targets else f"{len(fresh)} of {len(targets)}"
            latest = max((one.last.started for one in fresh if one.last), default="")
            built = f", last built {time_ago(latest)}" if latest else ""
            yield Row(FRESH, f"{model}: {count} targets{built}")
        for one in targets:
            last = one.last
            if one.state != FRESH:
                details = format_reasons(one.reasons)
                if one.restorable:
                    details.append("its outputs are in the store and will be restored")
                last_run = f": last run {time_ago(last.started)}, {last.status}" if last else ""
                yield Row(one.state, one.target + last_run, details)
            elif one.unavailable is not None:
                when = f": tried {time_ago(last.started)}" if last else ""
                yield Row(UNAVAILABLE, one.target + when, one.unavailable.splitlines())
            elif by_name:
                built = ""
                if last:
                    how = {"passed": "built", "error": "last run failed"}
                    built = f": {how.get(last.status, last.status)} {time_ago(last.started)}"
                    built += f" in {duration(last.seconds)}"
                    built += f" ({last.reason})" if last.reason else ""
                    built += _refitted(session, one.target)
                    if reasons := decode_reasons(last.why):
                        built += f"; reason: {summarize_reasons(reasons, _SHOWN_CAUSES)}"
                yield Row(FRESH, one.target + built)
