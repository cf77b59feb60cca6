"""buildsys bisect: the change between two builds that made an engine worse."""

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from buildsys.bisect.bisection import Bisection, Point, Step
from buildsys.bisect.builds import FIGURES, StateBuilder
from buildsys.bisect.differences import State
from buildsys.bisect.search import UNRESOLVED, Cause
from buildsys.cli.build_names import LAST, PREVIOUS, BuildNames, Side
from buildsys.cli.command import add_json, add_names, print_json, print_lines
from buildsys.cli.git_revision import commits_between, project_at, subject_of
from buildsys.cli.session import BuildSession
from buildsys.errors import CheckFailed, UsageError
from buildsys.history.builds import Build
from buildsys.history.database import History, history_file
from buildsys.report.formatting import fold, plural
from buildsys.stages.table import ENGINE
from buildsys.store.file_digests import hash_file
from buildsys.system.git import commit_query, run_git

SCHEMA = "buildsys/bisect/1"
_NOW = "now"
_SHOWN_COMMIT = 8
_COMMIT = re.compile(r"[0-9a-f]{40}")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys bisect``."""
    add_names(parser, "MODEL:ENGINE --figure FIGURE --good WHEN [--bad WHEN]")
    parser.add_argument("--figure", choices=[*FIGURES], required=True, help="what became worse")
    for name, default in (("good", None), ("bad", _NOW)):
        text = f"the {name} build: last, previous, an id from `buildsys history`, "
        text += "a git revision or now" + (" (the default)" if default else "")
        required = default is None
        parser.add_argument(f"--{name}", default=default, required=required, help=text)
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
        builder = StateBuilder(
            session.executor,
            lambda actions, place, project: session.executor.of_trial(
                actions, place, project=project.root, code=project.code
            ),
            engine.variant,
            options.figure,
            folder,
        )
        bisection = Bisection(
            builder,
            options.figure,
            session.project.root,
            folder / "backup",
            lambda step: None if options.json else print_lines([_step(step)]),
        )
        commits = ends.between(good, bad)
        cause = bisection.run(good.point, bad.point, commits, ends.built_commits())
    document = bisection.as_json(cause)
    names = {"model": engine.model, "engine": engine.variant, "figure": options.figure}
    commit = document["between"][1]["commit"]
    is_one = commit and not bisection.skipped
    subject = subject_of(session.project.root, commit) if is_one else ""
    document = {"schema": SCHEMA, **names, **document, "subject": subject}
    if options.json:
        print_json(document)
    else:
        print_lines(_lines(document, cause))
    return 0 if cause.is_sufficient or cause.is_necessary else CheckFailed.exit_code


class _End(NamedTuple):
    point: Point
    revision: str  # the last commit in it
    is_clean: bool


class _Ends:
    """The two ends of a bisection and the commits between them."""

    def __init__(self, session: BuildSession, model: str, engine: str, stack: ExitStack) -> None:
        self._session, self._model, self._engine = session, model, engine
        self._stack = stack
        self._history = History.readable(history_file(session.project.state))
        self._names = BuildNames(session, self._history)

    def find(self, when: str) -> _End:
        """Find an end by name. Raises: UsageError: there is none."""
        project = self._session.project
        if when == _NOW:
            checkout = self._session.checkout
            state = State(project, project.models[self._model].data, is_own=True)
            revision = checkout.revision if checkout else ""
            return _End(Point(_NOW, "", lambda: state), revision, is_clean=False)
        is_build = when in (LAST, PREVIOUS)
        with suppress(UsageError):
            is_build = is_build or bool(self._history.find(when))
        if is_build:
            return self._recorded(self._names.side(f"{self._model}:{self._engine}", when))
        done = run_git(project.root, *commit_query(when))
        if done.returncode:
            hint = f"`buildsys history {self._model}` lists builds"
            raise UsageError(f"there is no build or git revision {when!r}", hint)
        commit = done.stdout.decode().strip()
        return _End(self._commit(commit, when), commit, is_clean=True)

    def _commit(self, commit: str, name: str = "") -> Point:
        return Point(_short(name or commit), commit, partial(self._checked_out, commit))

    def _checked_out(self, commit: str) -> State:
        there = self._stack.enter_context(project_at(self._session.project, commit)).project
        if self._model not in there.models:
            there.require_all()
            problem = f"{commit[:_SHOWN_COMMIT]} has no model {self._model}"
            raise UsageError(problem, "name another revision")
        return State(there, there.models[self._model].data, is_own=True)

    def _recorded(self, side: Side) -> _End:
        build = side.moment
        parts = {name: self._history.environment(each) for name, each in side.builds.items()}
        is_clean = bool(build.revision) and build.dirty is False
        point = Point(
            f"build {build.short_id}",
            build.revision if is_clean else "",
            partial(self._rebuilt, side),
            parts,
        )
        return _End(point, build.revision, is_clean)

    def _rebuilt(self, side: Side) -> State:
        """Restore the manifest and the files of a recorded build. Raises: UsageError."""
        build, own = side.moment, self._session.project
        there = own
        if build.revision:
            there = self._stack.enter_context(project_at(own, build.revision)).project
        manifest = self._history.manifest(build)
        if not manifest:
            raise UsageError(
                f"the manifest of build {build.short_id} is not recorded", "name another"
            )
        if build.dirty is not False:
            for name, digest in self._files(side).items():
                _restore(build, there.root / name, own.root / name, digest)
        return State(there, manifest, is_own=True)

    def _files(self, side: Side) -> Mapping[str, str]:
        """List the user's files in the recorded keys, with their digests."""
        files: dict[str, str] = {}
        here = self._session.executor.here
        for build in side.builds.values():
            record = here.ledger.lookup(build.target, build.key)
            record = record or here.store.read_action(build.target, build.key)
            for label, value in record.parts.items() if record else ():
                kind, _, name = label.partition(":")
                if kind in ("source", "weights", "read") and not name.startswith(("$", "/", "…")):
                    files[name] = value.partition(" ")[0]
        return {name: digest for name, digest in files.items() if not name.endswith("/")}

    def between(self, good: _End, bad: _End) -> list[Point]:
        """List the commits after ``good`` and before ``bad``, oldest first."""
        if not good.revision or not bad.revision:
            return []
        commits = commits_between(self._session.project.root, good.revision, bad.revision)
        if bad.is_clean:
            commits = [commit for commit in commits if commit != bad.revision]
        return [self._commit(commit) for commit in commits]

    def built_commits(self) -> set[str]:
        """List the commits whose results the store may have."""
        builds = self._names.of_model(self._model)
        return {build.revision for build in builds if build.dirty is False}


def _restore(build: Build, place: Path, present: Path, digest: str) -> None:
    """Give a file of a recorded build its content. Raises: UsageError: it is gone."""
    for path in (place, present):
        if (hash_file(str(path)).digest if path.is_file() else "absent") == digest:
            break
    else:
        problem = f"build {build.short_id} had another {present.name}, which no commit has"
        raise UsageError(problem, "name a commit, or --bad now")
    if path != place:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.write_bytes(path.read_bytes()) if path.is_file() else None


def _step(step: Step) -> str:
    made = f"{plural(step.built, 'target')} built" if step.built else "restored"
    text = fold(step.text)[0] if step.verdict == UNRESOLVED else step.text
    return f"{step.verdict:<10}  {step.state}: {text} ({made})"


def _short(name: str) -> str:
    return name[:_SHOWN_COMMIT] if _COMMIT.fullmatch(name) else name


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
    states = document["states"]
    counts = f"{states['restored']} restored, {states['built']} built"
    yield f"states      {states['tested']} ({counts}); {len(document['differences'])} differences"
    if document["not_separable"]:
        yield f"constant    {', '.join(document['not_separable'])}: not separable here"
