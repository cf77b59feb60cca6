"""buildsys explain: reasons for stale targets, or for their last build."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from buildsys.cli.command import add_json, add_names, print_json
from buildsys.cli.console.rows import Row, print_rows, time_ago
from buildsys.cli.model_filter import ModelFilter, add_filter
from buildsys.cli.session import Session
from buildsys.execution.freshness import FRESH, MAY_RERUN, STALE, Explanation
from buildsys.execution.stale_reasons import (
    Reason,
    decode_reasons,
    format_reasons,
    summarize_reasons,
)
from buildsys.report.engines import refit_origin
from buildsys.report.formatting import duration, first_names
from buildsys.report.key_figures import key_figure
from buildsys.report.results.reader import PASSED, AnyResult, parse, read_result
from buildsys.stages.engine.result import EngineResult
from buildsys.stages.search.result import SearchResult
from buildsys.stages.table import CONVERT, ENGINE, SEARCH
from buildsys.store.ledger import NOISY, UNAVAILABLE

SCHEMA = "buildsys/explain/1"
_SHOWN_CAUSES = 3
_SHOWN_NODES = 12


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys explain``."""
    add_names(parser, "[TARGET ...]")
    add_json(parser)
    add_filter(parser)


def run(options: Namespace) -> int:
    """Print one explanation per target; without names, those of all targets."""
    only = ModelFilter.of(options)
    session = Session.read_only(options.root, () if only else options.names)
    chosen = session.select(options.names, only=only)
    found = [one for one in session.explain(chosen).values() if one.target in chosen]
    if options.json:
        targets = [{**explanation_json(one), **searched_json(session, one.target)} for one in found]
        print_json({"schema": SCHEMA, "targets": targets})
        return 0
    counts = Counter(map(_word, found))
    words = (STALE, MAY_RERUN, FRESH, UNAVAILABLE, NOISY)
    summary = ", ".join(f"{counts[word]} {word}" for word in words if counts[word])
    print_rows(_rows(session, found, by_name=bool(options.names)), [summary or "no targets"])
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
    shortfalls = {UNAVAILABLE: one.unavailable, NOISY: one.noise}
    return found | {status: reason for status, reason in shortfalls.items() if reason is not None}


def noise_text(model: str, reason: str) -> str:
    """Return why a target is noisy, and what measures it again, as one sentence."""
    first = next(iter(reason.strip().splitlines()), "")
    return (
        f"{first}; a change, a nightly run or `buildsys build --remeasure {model}` measures again"
    )


def reasons_json(reasons: Iterable[Reason]) -> list[dict[str, Any]]:
    """Return reasons as JSON."""
    # "line" was the first changed line of a file; it stays in the schema, always null
    return [{**reason._asdict(), "line": None, "text": str(reason)} for reason in reasons]


def refit_note(session: Session, target: str) -> str:
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
    if one.unavailable is not None:
        return UNAVAILABLE
    return one.state if one.noise is None else NOISY


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
            elif one.noise is not None:
                when = f": measured {time_ago(last.started)}" if last else ""
                yield Row(NOISY, one.target + when, [noise_text(model, one.noise)])
            elif by_name:
                built = ""
                if last:
                    how = {"passed": "built", "error": "last run failed"}
                    built = f": {how.get(last.status, last.status)} {time_ago(last.started)}"
                    built += f" in {duration(last.seconds)}"
                    built += f" ({last.reason})" if last.reason else ""
                    built += refit_note(session, one.target)
                    if reasons := decode_reasons(last.why):
                        built += f"; reason: {summarize_reasons(reasons, _SHOWN_CAUSES)}"
                yield Row(FRESH, one.target + built, list(_searched(session, one.target)))


def searched_json(session: Session, target: str) -> dict[str, Any]:
    """Return the result of the search that decided the precision of a target's nodes, or {}."""
    found = _search_of(session, target)
    if found is None:
        return {}
    return {"search": {"target": found.target, "nodes": found.content.get("nodes", [])}}


def _searched(session: Session, target: str) -> Iterator[str]:
    """Yield the nodes that a search keeps in fp32, and what they change."""
    found = _search_of(session, target)
    if found is None:
        return
    yield f"{found.target}: {key_figure(SEARCH, found.content)}"
    names = [" ".join(node[:1]) for node in found.content.get("nodes", [])]
    if names and not found.content.get("is_fp32"):
        yield f"in fp32: {first_names(names, _SHOWN_NODES)} ({found.file} has all)"


def _search_of(session: Session, target: str) -> AnyResult | None:
    """Return the passed search for a graph or an engine, None without one."""
    actions = session.actions
    if actions[target].stage not in (SEARCH, CONVERT, ENGINE):
        return None
    above = [target, *actions[target].after]
    above += [one for name in above[1:] for one in actions[name].after if _is(name, CONVERT)]
    search = next((one for one in above if _is(one, SEARCH)), None)
    if search is None:
        return None
    path = session.project.build / actions[search].outputs["result"].path
    root = session.project.root
    shown = path.relative_to(root) if path.is_relative_to(root) else path
    found = read_result(search, path, str(shown), SearchResult)
    return found if found.status == PASSED else None


def _is(target: str, stage: str) -> bool:
    return target.startswith(f"{stage}:")
