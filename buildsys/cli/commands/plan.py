"""buildsys plan: targets of the next run, in order, with usual times.

With ``--since REV``: which targets differ from a git revision, built or not.
"""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from buildsys.cli.command import add_json, add_names, print_json
from buildsys.cli.commands.explain import explanation_json, reasons_json
from buildsys.cli.console.progress import NO_TARGETS, engine_of, target_line
from buildsys.cli.console.rows import Row, print_rows
from buildsys.cli.session import BuildSession
from buildsys.cli.target_names import ModelFilter, add_filter
from buildsys.errors import StageError
from buildsys.execution.action_key import KeyBuilder, declared_parts
from buildsys.execution.freshness import FRESH, MAY_RERUN, STALE, Freshness
from buildsys.execution.recorded_reads import Reads
from buildsys.execution.stale_reasons import (
    UNREADABLE,
    UPSTREAM,
    StaleReason,
    format_reasons,
    part_reasons,
    summarize_reasons,
)
from buildsys.plan.action import Action
from buildsys.project.load import broken_manifests
from buildsys.project.plan import model_of
from buildsys.report.formatting import duration, first_names, plural
from buildsys.store.file_digests import DigestCache, FileDigest
from buildsys.store.ledger import Ledger
from buildsys.store.state_db import ReadOnlyStateDb
from buildsys.system.printable import printable

if TYPE_CHECKING:
    from buildsys.cli.git_revision import Revision

SCHEMA, SINCE_SCHEMA = "buildsys/plan/1", "buildsys/plan-since/1"
ADDED, CHANGED, REMOVED, DOWNSTREAM = "added", "changed", "removed", "downstream"
_MOST_REASONS = 2
_MOST_UNAVAILABLE = 4
_NOT_IN_A_REVISION = ("input", "tool", "device", "env", "code")  # kinds of key parts


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys plan``."""
    add_names(parser, "[TARGET ...]")
    add_json(parser)
    add_filter(parser)
    parser.add_argument("--since", default=None, help="compare with a git revision")


def run(options: Namespace) -> int:
    """Print the targets of the next run, or differences from a revision."""
    only = ModelFilter.of(options)
    session = BuildSession.read_only(options.root, options.names)
    if options.since is not None:
        print_since(session, options, only)
        return session.exit_code
    explained = session.explain(session.select(options.names, only=only))
    print_plan(session, list(explained.values()), as_json=options.json)
    return session.exit_code


def print_plan(session: BuildSession, explained: Sequence[Freshness], *, as_json: bool) -> None:
    """Print the targets of the next run, in order."""
    steps = [step for step in explained if step.state != FRESH]
    executed = [step for step in steps if not step.restorable]
    times = {
        name: sum(step.expected_s or 0.0 for step in executed if step.state in states)
        for name, states in (("expected_s", (STALE,)), ("expected_at_most_s", (STALE, MAY_RERUN)))
    }
    unknown = sum(step.expected_s is None for step in executed)
    unavailable = {
        step.target: step.unavailable for step in explained if step.unavailable is not None
    }
    obstacles = _obstacles(session, steps)
    if as_json:
        targets = [explanation_json(step) for step in steps]
        document = {"schema": SCHEMA, **times, "unknown": unknown, "targets": targets}
        more = {"unavailable": unavailable, "expected_unavailable": obstacles}
        print_json(document | {name: causes for name, causes in more.items() if causes})
        return
    width = max((len(step.target) for step in steps), default=0)
    rows = []
    for step in steps:
        word = "restore" if step.restorable else "run" if step.state == STALE else step.state
        usual = "unknown" if step.expected_s is None else duration(step.expected_s)
        text = f"{step.target:<{width}}  {'' if step.restorable else usual:>10}"
        rows.append(Row(word, text, note=summarize_reasons(step.reasons, _MOST_REASONS)))
    closing = [_summary(steps, times, unknown) if explained else NO_TARGETS]
    if unavailable:
        names = first_names(list(unavailable), _MOST_UNAVAILABLE)
        closing.append(f"{len(unavailable)} unavailable on this machine: {names}")
    implied = {target for target in obstacles if engine_of(target_line(target)) in obstacles}
    closing += [
        f"cannot run on this machine: {target}: {why}"
        for target, why in obstacles.items()
        if target not in implied
    ][:_MOST_UNAVAILABLE]
    print_rows(rows, closing)


def _obstacles(session: BuildSession, steps: Sequence[Freshness]) -> dict[str, str]:
    """List the expected causes by target, for a missing engine the engine's."""
    from buildsys.execution.local_runs import expected_obstacle

    obstacles: dict[str, str] = {}
    for step in steps:  # in build order: engines first
        action = session.actions[step.target]
        engine = engine_of(target_line(step.target))
        obstacle = obstacles.get(engine) or expected_obstacle(action, session.project.root)
        if obstacle:
            obstacles[step.target] = obstacle
    return obstacles


def _summary(steps: Sequence[Freshness], times: Mapping[str, float], unknown: int) -> str:
    if not steps:
        return "everything is up to date: nothing would run"
    count, run_s = plural(len(steps), "target"), times["expected_s"]
    rerun_s = times["expected_at_most_s"] - run_s
    listed = [f"{duration(run_s)} for what will run"] if run_s else []
    listed += [f"{duration(rerun_s)} for what may rerun"] if rerun_s else []
    listed += [f"unknown for {unknown}"] if unknown else []
    if not listed:
        return f"{count}; nothing has to run, everything is in the store"
    return f"{count}; usual time: {', '.join(listed)}"


def print_since(now: BuildSession, options: Namespace, only: ModelFilter) -> None:
    """Print the targets with differences since a git revision.

    Models of broken manifests in the revision count as added.
    Raises: UsageError: a name or the revision is unknown, or its shared manifests are wrong.
    """
    from buildsys.cli.git_revision import project_at

    with project_at(now.project, options.since) as there:
        before = _session_at(there)
        chosen = now.select(options.names, before, only=only)
        differences = [
            change
            for change in _differences(before, now)
            if change.target in chosen
            and not (
                change.state == REMOVED and broken_manifests(now.project, model_of(change.target))
            )
        ]
    if options.json:
        targets = [change.as_json() for change in differences]
        fields = {"since": options.since, "commit": there.commit, "targets": targets}
        print_json({"schema": SINCE_SCHEMA, **fields})
        return
    counts = Counter(change.state for change in differences)
    words = [word for word in (CHANGED, ADDED, REMOVED, DOWNSTREAM) if counts[word]]
    summary = ", ".join(f"{counts[word]} {word}" for word in words) or "no differences"
    rows = (
        Row(change.state, change.target, format_reasons(change.reasons)) for change in differences
    )
    print_rows(rows, [f"since {options.since} ({there.commit[:10]}): {summary}"])


def changed_targets(now: BuildSession, revision: str) -> list[str]:
    """List the targets changed since a git revision, and those downstream.

    Models of broken manifests in the revision count as changed.
    Raises: UsageError: the revision is unknown, or its shared manifests are wrong.
    """
    from buildsys.cli.git_revision import project_at

    with project_at(now.project, revision) as there:
        differences = list(_differences(_session_at(there), now))
    return [difference.target for difference in differences if difference.state != REMOVED]


def _session_at(there: "Revision") -> BuildSession:
    """Open the project of a revision; a warning names its broken manifests."""
    for file in there.project.broken:
        text = f"{file} of {there.name} is broken; its models count as changed"
        sys.stderr.write(printable(f"buildsys: warning: {text}\n"))
    return BuildSession(replace(there.project, broken={}))


class _TargetDifference(NamedTuple):
    target: str
    state: str
    reasons: tuple[StaleReason, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Convert the difference to JSON."""
        return {**self._asdict(), "reasons": reasons_json(self.reasons)}


def _differences(before: BuildSession, now: BuildSession) -> Iterator[_TargetDifference]:
    """Yield the targets with another declaration or other sources, and those downstream."""
    db = ReadOnlyStateDb(now.project.state / "state.db")
    ledger = Ledger(db)
    digests, projects = _RealPathDigests(db), (before.project, now.project)
    old, new = (KeyBuilder(p.root, p.build, digests, db, code=p.code) for p in projects)
    states: dict[str, str] = {}
    for target, action in now.actions.items():
        if target not in before.actions:
            states[target] = ADDED
            yield _TargetDifference(target, ADDED)
            continue
        try:
            reads = ledger.reads(target)
            own = part_reasons(
                _parts(old, before.actions[target], reads), _parts(new, action, reads)
            )
        except StageError as error:
            own = [StaleReason(UNREADABLE, str(error))]
        upstream = [
            StaleReason(UPSTREAM, name, None, "may rerun" if state == DOWNSTREAM else "will rerun")
            for name in action.after
            if (state := states.get(name))
        ]
        if own or upstream:
            states[target] = CHANGED if own else DOWNSTREAM
            yield _TargetDifference(target, states[target], (*own, *upstream))
    for target in before.actions:
        if target not in now.actions:
            yield _TargetDifference(target, REMOVED)


def _parts(keys: KeyBuilder, action: Action, reads: Reads) -> Mapping[str, str]:
    """List key parts for manifest fields and sources."""
    has_files = action.sources or action.weights
    parts = keys.build(action, reads).parts if has_files else declared_parts(action)
    others = _NOT_IN_A_REVISION
    return {name: value for name, value in parts.items() if name.partition(":")[0] not in others}


class _RealPathDigests(DigestCache):
    """Digests by real path, as linked files are known by it."""

    def digest(self, path: str) -> FileDigest | None:
        return super().digest(os.path.realpath(path))
