"""buildsys bisect: the change between two builds that made an engine worse."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from buildsys.bisect.bisection import Bisection, Point, Step
from buildsys.bisect.builds import FIGURES, State, StateBuilder
from buildsys.bisect.differences import copy_file, files_of
from buildsys.bisect.search import UNRESOLVED, Cause
from buildsys.cli.build_names import LAST, PREVIOUS, SHOWN_REVISION, BuildNames, Side
from buildsys.cli.command import add_json, add_names, print_answer, print_lines
from buildsys.cli.commands.explain import reasons_json
from buildsys.cli.git_revision import commits_between, project_at, subject_of
from buildsys.cli.session import BuildSession
from buildsys.errors import CheckFailed, UsageError
from buildsys.history.database import History, history_file
from buildsys.report.formatting import fold, plural
from buildsys.stages.table import ENGINE
from buildsys.store.file_digests import hash_file
from buildsys.system.git import commit_query, run_git

SCHEMA = "buildsys/bisect/1"
_NOW = "now"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys bisect``."""
    add_names(parser, "MODEL:ENGINE --figure FIGURE --good WHEN [--bad WHEN]")
    parser.add_argument("--figure", choices=[*FIGURES], required=True, help="what became worse")
    text = "last, previous, an id from `buildsys history`, a git revision or now"
    parser.add_argument("--good", required=True, help=f"the good build: {text}")
    parser.add_argument("--bad", default=_NOW, help="the bad build; by default now")
    add_json(parser)


def run(options: Namespace) -> int:
    """Print the cause; return 1 if none was isolated."""
    session = BuildSession.load(options.root)
    engine = session.actions[session.one_target("bisect", options.names)]
    if engine.stage != ENGINE:
        raise UsageError(f"{engine.target} is not an engine", "name MODEL:ENGINE")
    with ExitStack() as stack:
        stack.callback(session.close)
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="buildsys-bisect-")))
        ends = _Ends(session, engine.model, engine.variant, stack)
        good, bad = (ends.find(when.removeprefix("@")) for when in (options.good, options.bad))
        root, figure = session.project.root, options.figure
        builder = StateBuilder(session.executor, root, engine.variant, figure, folder)
        report = partial(_report, is_quiet=options.json)
        bisection = Bisection(builder, figure, root, folder / "backup", report)
        cause = bisection.run(good, bad, ends.between(good, bad), ends.built_commits())
    commit = "" if bisection.skipped else bisection.between[1].commit
    reasons = [difference.reason for difference in bisection.differences]
    document = {
        "schema": SCHEMA, "model": engine.model, "engine": engine.variant,
        "figure": options.figure,
        "between": [{"name": point.name, "commit": point.commit} for point in bisection.between],
        "commits_skipped": bisection.skipped,
        "subject": subject_of(root, commit) if commit else "",
        "cause": [reasons_json([reasons[number] for number in group]) for group in cause.groups],
        "confidence": cause.confidence, "bad_alone": cause.is_sufficient,
        "good_without": cause.is_necessary, "differences": reasons_json(reasons),
        "not_separable": reasons_json(bisection.inseparable),
        "restored": sum(not step.built for step in bisection.steps),
        "built": sum(step.built > 0 for step in bisection.steps),
        "steps": [step._asdict() for step in bisection.steps],
    }  # fmt: skip
    print_answer(options, document, _lines(document, cause))
    return 0 if cause.is_sufficient or cause.is_necessary else CheckFailed.exit_code


class _Ends:
    """The two ends of a bisection and the commits between them."""

    def __init__(self, session: BuildSession, model: str, engine: str, stack: ExitStack) -> None:
        self._session, self._project, self._stack = session, session.project, stack
        self._model, self._engine = session.project.models[model], f"{model}:{engine}"
        self._history = History.readable(history_file(session.project.state))
        self._names = BuildNames(session, self._history)

    def find(self, when: str) -> Point:
        """Find an end by name. Raises: UsageError: there is none."""
        if when == _NOW:
            checkout = self._session.checkout
            state = State(self._project, self._model)
            return Point(_NOW, "", checkout.revision if checkout else "", lambda: state)
        is_build = when in (LAST, PREVIOUS)
        with suppress(UsageError):
            is_build = is_build or bool(self._history.find(when))
        if is_build:
            return self._recorded(self._names.side(self._engine, when))
        done = run_git(self._project.root, *commit_query(when))
        if done.returncode:
            hint = f"`buildsys history {self._engine}` lists builds"
            raise UsageError(f"there is no build or git revision {when!r}", hint)
        commit = done.stdout.decode().strip()
        return self._commit(commit, commit[:SHOWN_REVISION] if commit == when else when)

    def _commit(self, commit: str, name: str) -> Point:
        return Point(name, commit, commit, partial(self._checked_out, commit))

    def _checked_out(self, commit: str) -> State:
        there = self._stack.enter_context(project_at(self._project, commit)).project
        if self._model.name not in there.models:
            there.require_all()
            problem = f"{commit[:SHOWN_REVISION]} has no model {self._model.name}"
            raise UsageError(problem, "name another revision")
        return State(there, there.models[self._model.name])

    def _recorded(self, side: Side) -> Point:
        build = side.moment
        commit = build.revision if build.dirty is False else ""
        parts = {name: self._history.environment(each) for name, each in side.builds.items()}
        name = f"build {build.short_id}"
        return Point(name, commit, build.revision, partial(self._rebuilt, side), parts)

    def _rebuilt(self, side: Side) -> State:
        """Restore the manifest and the files of a recorded build. Raises: UsageError."""
        build, there = side.moment, self._project
        if build.revision:
            there = self._stack.enter_context(project_at(there, build.revision)).project
        here, parts = self._session.executor.here, {}
        for each in side.builds.values() if build.dirty is not False else ():
            record = here.ledger.lookup(each.target, each.key)
            record = record or here.store.read_action(each.target, each.key)
            parts[each.target] = record.parts if record else {}
        for name, (_, digest) in files_of(parts).items():
            places = [project.root / name for project in (there, self._project)]
            alike = [place for place in places if _digest(place) in (digest, None)]
            if not alike:
                problem = f"build {build.short_id} had another {name}, which no commit has"
                raise UsageError(problem, "name a commit, or --bad now")
            if places[0] not in alike:
                copy_file(alike[0], places[0])
        manifest = self._history.manifest(build)
        if not manifest:
            problem = f"the manifest of build {build.short_id} is not recorded"
            raise UsageError(problem, "name another")
        manifest = {"toolchains": self._model.data.get("toolchains", {}), **manifest}
        return State(there, self._model).with_manifest(manifest)

    def between(self, good: Point, bad: Point) -> list[Point]:
        """List the commits after ``good`` and before ``bad``, oldest first."""
        if not good.revision or not bad.revision:
            return []
        commits = commits_between(self._project.root, good.revision, bad.revision)
        return [self._commit(c, c[:SHOWN_REVISION]) for c in commits if c != bad.commit]

    def built_commits(self) -> set[str]:
        """List the commits whose results the store may have."""
        builds = self._names.of_model(self._model.name)
        return {build.revision for build in builds if build.dirty is False}


def _digest(path: Path) -> str | None:
    """Digest a file as a key does; None for a folder, whose files have no digests in it."""
    if path.is_dir():
        return None
    return hash_file(str(path)).digest if path.is_file() else "absent"


def _report(step: Step, *, is_quiet: bool) -> None:
    made = f"{plural(step.built, 'target')} built" if step.built else "restored"
    text = fold(step.text)[0] if step.verdict == UNRESOLVED else step.text
    if not is_quiet:
        print_lines([f"{step.verdict:<10}  {step.state}: {text} ({made})"])


def _lines(document: Mapping[str, Any], cause: Cause) -> Iterator[str]:
    """Yield the cause as text."""
    groups = document["cause"]
    words = "the cause is" if len(groups) == 1 else "only together:"
    yield f"{document['model']}:{document['engine']}, {document['figure']}: {words}"
    for group in groups:
        yield from (f"  {difference['text']}" for difference in group)
        if len(group) > 1:
            yield "  which could not be divided: no state between them has a verdict"
    names = [point["name"] for point in document["between"]]
    subject = f", {document['subject']}" if document["subject"] else ""
    if skipped := document["commits_skipped"]:
        subject = f", with {plural(skipped, 'commit')} without a verdict"
    yield f"between     {names[0]} and {names[1]}{subject}"
    alone = "bad when applied alone" if cause.is_sufficient else "not bad when applied alone"
    others = "good without it" if cause.is_necessary else "not good without it: there is more"
    yield f"checked     {alone}, {others}"
    yield f"confidence  {100 * cause.confidence:.1f} %, the product over all verdicts"
    counts = f"{document['restored']} restored, {document['built']} built"
    yield f"states      {counts}; {plural(len(document['differences']), 'difference')}"
    if constant := ", ".join(reason["text"] for reason in document["not_separable"]):
        yield f"constant    {constant}: not separable here"
