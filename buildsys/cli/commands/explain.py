"""buildsys explain: reasons for stale targets, or for their last build."""

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from buildsys.cli.command import add_json, add_names, print_json, shown_path
from buildsys.cli.console.rows import Row, format_table, print_rows, time_ago
from buildsys.cli.session import BuildSession
from buildsys.cli.target_names import ModelFilter, add_filter
from buildsys.execution.freshness import FRESH, MAY_RERUN, STALE, Freshness
from buildsys.execution.stale_reasons import (
    StaleReason,
    decode_reasons,
    format_reasons,
    summarize_reasons,
)
from buildsys.report.engines import refit_origin
from buildsys.report.formatting import duration, first_names
from buildsys.report.key_figures import key_figure, stage_report
from buildsys.report.result_files import PASSED, parse, read_result
from buildsys.stages.engine.result import EngineResult
from buildsys.stages.search.result import SearchResult
from buildsys.stages.table import CONVERT, ENGINE, SEARCH
from buildsys.store.ledger import NOISY, UNAVAILABLE

SCHEMA = "buildsys/explain/1"
_MOST_CAUSES = 3
_MOST_NODES = 12


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys explain``."""
    add_names(parser, "[TARGET ...]")
    add_json(parser)
    add_filter(parser)


def run(options: Namespace) -> int:
    """Print one explanation per target; without names, for all targets."""
    only = ModelFilter.of(options)
    session = BuildSession.read_only(options.root, options.names)
    chosen = session.select(options.names, only=only)
    explained = [
        explanation
        for explanation in session.explain(chosen).values()
        if explanation.target in chosen
    ]
    if options.json:
        print_json({"schema": SCHEMA, "targets": [*map(explanation_json, explained)]})
        return session.exit_code
    counts = Counter(map(state_word, explained))
    words = (STALE, MAY_RERUN, FRESH, UNAVAILABLE, NOISY)
    summary = ", ".join(f"{counts[word]} {word}" for word in words if counts[word])
    print_rows(_rows(session, explained, by_name=bool(options.names)), [summary or "no targets"])
    return session.exit_code


def explanation_json(explanation: Freshness) -> dict[str, Any]:
    """Convert an explanation to JSON, reasons as data and text."""
    last = explanation.last
    last_run = last and {
        "status": last.status, "started": last.started, "seconds": last.seconds,
        "reason": last.reason, "reasons": reasons_json(decode_reasons(last.why)),
    }  # fmt: skip
    document = {
        "target": explanation.target,
        "state": explanation.state.replace(" ", "-"),
        "restorable": explanation.restorable,
        "reasons": reasons_json(explanation.reasons),
        "expected_s": explanation.expected_s,
        "last_run": last_run,
    }
    shortfalls = {UNAVAILABLE: explanation.unavailable, NOISY: explanation.noise}
    return document | {
        status: reason for status, reason in shortfalls.items() if reason is not None
    }


def noise_text(model: str, reason: str) -> str:
    """Describe why a target is noisy, and what measures it again, as one sentence."""
    first = next(iter(reason.strip().splitlines()), "")
    return (
        f"{first}; a change, a nightly run or `buildsys build --remeasure {model}` measures again"
    )


def reasons_json(reasons: Iterable[StaleReason]) -> list[dict[str, Any]]:
    """Convert reasons to JSON."""
    return [{**reason._asdict(), "text": str(reason)} for reason in reasons]


def refit_note(session: BuildSession, target: str) -> str:
    """Describe how an engine got its weights, if not by a build."""
    if not session.actions[target].refits:
        return ""
    result: EngineResult = parse(session.result(target), EngineResult)
    if reason := result.get("not_refitted"):
        return f"; not refitted: {reason}"
    origin = refit_origin(result)
    return f"; refitted from {origin}" if origin else ""


def state_word(explanation: Freshness) -> str:
    """Return the state of a target as printed."""
    if explanation.unavailable is not None:
        return UNAVAILABLE
    return explanation.state if explanation.noise is None else NOISY


def _rows(session: BuildSession, explained: Iterable[Freshness], *, by_name: bool) -> Iterator[Row]:
    """Yield one row per target; unnamed fresh targets share one per model."""
    for model, members in groupby(
        explained, key=lambda target: session.actions[target.target].model
    ):
        targets = list(members)
        fresh = [target for target in targets if state_word(target) == FRESH]
        if fresh and not by_name:
            count = f"all {len(fresh)}" if fresh == targets else f"{len(fresh)} of {len(targets)}"
            latest = max((target.last.started for target in fresh if target.last), default="")
            built = f", last built {time_ago(latest)}" if latest else ""
            yield Row(FRESH, f"{model}: {count} targets{built}")
        for target in targets:
            if by_name or target not in fresh:
                yield _row(session, model, target)


def _row(session: BuildSession, model: str, target: Freshness) -> Row:
    word, last = state_word(target), target.last
    when = time_ago(last.started) if last else ""
    details: list[str] = []
    if word == UNAVAILABLE:
        text, details = f"tried {when}", (target.unavailable or "").splitlines()
    elif word == NOISY:
        text, details = f"measured {when}", [noise_text(model, target.noise or "")]
    elif word != FRESH:
        text, details = f"last run {when}, {last and last.status}", format_reasons(target.reasons)
        details += (target.failure or "").splitlines()[1:]  # remedies, and what was tried
        details += ["its outputs are in the store and will be restored"] * target.restorable
    elif last:
        how = {"passed": "built", "error": "last run failed"}.get(last.status, last.status)
        text = f"{how} {when} in {duration(last.seconds)}"
        text += f" ({last.reason})" if last.reason else ""
        text += refit_note(session, target.target)
        if reasons := decode_reasons(last.why):
            text += f"; reason: {summarize_reasons(reasons, _MOST_CAUSES)}"
        details = list(_search_lines(session, target.target))
    return Row(word, f"{target.target}: {text}" if last else target.target, details)


def _search_lines(session: BuildSession, target: str) -> Iterator[str]:
    """Yield the nodes that the search for a graph or an engine keeps in fp32."""
    actions = session.actions
    if actions[target].stage not in (SEARCH, CONVERT, ENGINE):
        return
    for name in [name for name in session.needed([target]) if actions[name].stage == SEARCH][:1]:
        file = actions[name].outputs["result"].path
        path = session.project.build / file
        search = read_result(name, path, shown_path(path), SearchResult)
        if search.status != PASSED:
            return
        yield f"{name}: {key_figure(SEARCH, search.content)}"
        nodes = [" ".join(node[:1]) for node in search.content.get("nodes", [])]
        if nodes and not search.content.get("is_fp32"):
            yield f"in fp32: {first_names(nodes, _MOST_NODES)} ({search.file} has all)"
        tables = stage_report(SEARCH, "details")([search]) if name == target else ()
        for table in (table for table in tables if table.rows):
            yield from format_table(table.columns, table.rows)
