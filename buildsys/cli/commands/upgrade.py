"""buildsys upgrade: what another version of a library changes, engine by engine."""

import json
import os
import shutil
import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from buildsys.cli.command import (
    add_json,
    add_names,
    print_json,
    print_lines,
    shown_path,
    typed_path,
    unknown_name,
)
from buildsys.cli.commands.build import add_jobs
from buildsys.cli.console.rows import format_table
from buildsys.cli.engine_checks import engines_of, required_checks
from buildsys.cli.session import BuildSession
from buildsys.cli.target_names import ModelFilter, add_filter
from buildsys.errors import CheckFailed, StageError, UsageError
from buildsys.execution.freshness import STALE
from buildsys.execution.stale_reasons import FAILED, NEVER_BUILT, UPSTREAM
from buildsys.plan.action import Action
from buildsys.project.load import load_project
from buildsys.report.formatting import first_names, plural
from buildsys.stages.table import GATE, VERIFY, target_of
from buildsys.system.files import locked, replace_file
from buildsys.system.toolchains import Toolchain, locate_toolchain, override_variable
from buildsys.system.units import number_or_text, parse_duration, parse_percentage
from buildsys.upgrade.driver import DRIVER, compare_drivers
from buildsys.upgrade.shadow import is_package, make_shadow
from buildsys.upgrade.side_by_side import SideBySide
from buildsys.upgrade.sides import Side, Sides
from buildsys.upgrade.summary import COLUMNS, Upgrade, write_pins
from buildsys.upgrade.verdicts import (
    INCOMPARABLE,
    WRONG,
    EngineChange,
    compare_ends,
    compare_results,
    compare_timings,
)

_MOST_TARGETS = 3
_FOLDER = "upgrade"  # of the state
_NOT_OF_THE_CHANGE = (UPSTREAM, FAILED, NEVER_BUILT)  # kinds of reasons


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys upgrade``."""
    add_names(parser, "PACKAGE==VERSION ... [MODEL | MODEL:ENGINE ...]")
    parser.epilog = (
        "Builds with the old and the new version side by side, apart from build/, and compares\n"
        "checks, errors, sizes, memory and latencies. Instead of PACKAGE==VERSION also a wheel,\n"
        "'PACKAGE @ FILE', TOOLCHAIN=PYTHON (another interpreter of a toolchain) or driver:\n"
        "recorded builds before and after the driver of the GPU changed"
    )
    parser.add_argument("--toolchain", default="", help="upgrade the packages of a toolchain")
    parser.add_argument(
        "--find-links", action="append", default=[], help="a folder or page with more wheels"
    )
    parser.add_argument(
        "--plan", action="store_true", help="only show the targets that would be built again"
    )
    parser.add_argument("--no-bench", action="store_true", help="compare without measurements")
    parser.add_argument(
        "--tolerance", type=_parsed_by(parse_percentage), default=0.05,
        help="change of latency and size that counts as unchanged; 5%% by default",
    )  # fmt: skip
    parser.add_argument(
        "--duration", type=_parsed_by(parse_duration), default=0.5,
        help="time measured in each of the processes; 0.5s by default",
    )  # fmt: skip
    parser.add_argument("--summary", default="", help="write a summary in Markdown into a file")
    parser.add_argument("--pin", default="", help="set the new versions in a constraints file")
    parser.add_argument("--hold", default="", help="write the engines to hold back into a file")
    parser.add_argument("--keep", action="store_true", help="keep environment and builds")
    parser.add_argument("--side", default="", help=SUPPRESS)
    add_jobs(parser, "number of targets at a time")
    add_json(parser)
    add_filter(parser)


def _parsed_by(parse: Callable[[object], float]) -> Callable[[str], float]:
    def convert(text: str) -> float:
        try:
            return parse(number_or_text(text))
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return convert


def run(options: Namespace) -> int:
    """Compare both sides; return 1 if an engine should be held back."""
    if options.side:
        return _run_side(options.root, Path(options.side))
    words = options.names
    changes = [word for word in words if is_package(word) or "=" in word or word == DRIVER]
    is_range = any(word.partition("=")[0][-1:] in "<>!~" for word in words if not is_package(word))
    if not changes or is_range or (DRIVER in changes and changes != [DRIVER]):
        hint = "`buildsys help upgrade` lists the forms"
        raise UsageError("upgrade needs packages such as onnxruntime==1.31.0, or driver", hint)
    names = [word for word in words if word not in changes]
    session = BuildSession.read_only(options.root, names)
    engines = engines_of(session, session.select(names, only=ModelFilter.of(options)))
    if not engines:
        raise UsageError("there is no engine to compare", "name models that have engines")
    if changes == [DRIVER]:
        from buildsys.history.database import History, history_file

        history = History.readable(history_file(session.project.state))
        upgrade = compare_drivers(history, [(e.model, e.variant) for e in engines])
        return _report(options, session, upgrade)
    state = session.project.state
    state.mkdir(parents=True, exist_ok=True)
    os.environ["BUILDSYS_WORKER_IDLE"] = "0"  # of environments that are removed
    try:
        with locked(state / f"{_FOLDER}.lock", timeout_s=0.0):
            shutil.rmtree(state / _FOLDER, ignore_errors=True)
            try:
                return _compare(options, session, changes, engines)
            finally:
                if not options.keep:
                    shutil.rmtree(state / _FOLDER, ignore_errors=True)
    except BlockingIOError:
        raise StageError("another upgrade of this project is in progress", "wait for it") from None


def _compare(
    options: Namespace, session: BuildSession, changes: Sequence[str], engines: Sequence[Action]
) -> int:
    old, new, upgrade = _sides(options, session, changes)
    _say(options, *(f"warning: {text}" for text in upgrade.conflicts))
    targets = dict.fromkeys(t for e in engines for t in (e.target, *_checks(session, e)))
    sides = Sides(session.project, quiet=options.json, jobs=options.jobs)
    _say(options, f"{upgrade.title}: builds with {old.title}")
    sides.build(old, targets)
    stale = upgrade.affected = sides.affected(new, old, targets)
    _say(options, *_affected_lines(stale, len(session.needed(targets))))
    if options.plan:
        return _report(options, session, upgrade)
    if stale:
        _say(options, f"builds with {new.title}")
        sides.build(new, [target for target in targets if target in stale])
        concerned = [e for e in engines if stale.keys() & {e.target, *_checks(session, e)}]
        upgrade.engines = list(_judge(options, session, concerned, (old, new), stale))
    return _report(options, session, upgrade)


def _say(options: Namespace, *lines: str) -> None:
    if options.json:
        sys.stderr.writelines(f"{line}\n" for line in lines)
    else:
        print_lines(lines)
        sys.stdout.flush()


def _sides(
    options: Namespace, session: BuildSession, changes: Sequence[str]
) -> tuple[Side, Side, Upgrade]:
    """Make both sides. Raises: UsageError: a change is wrong. StageError: pip fails."""
    project, folder = session.project, session.project.state / _FOLDER
    chains = project.toolchains()

    def located(name: str) -> Toolchain:
        if name not in chains:
            listed = f"toolchains: {', '.join(chains) or 'none'}"
            raise unknown_name("toolchain", name, chains, listed)
        python, env = chains[name]
        return locate_toolchain(name, python, env.items(), project.root, os.environ)

    old = Side("this environment", Path(sys.executable), folder / "old")
    places = dict(word.split("=", 1) for word in changes if not is_package(word))
    if places:
        if len(places) < len(changes):
            raise UsageError("upgrade takes packages or toolchains", "run it once for each")
        paths = {n: str(typed_path(p).absolute()) if "/" in p else p for n, p in places.items()}
        versions = {name: (str(located(name).python), path) for name, path in paths.items()}
        variables = {override_variable(name): path for name, path in paths.items()}
        new = replace(old, title="the new one", folder=folder / "new", variables=variables)
        return replace(old, title="the old toolchain"), new, Upgrade(versions, packages=False)
    original = located(options.toolchain) if options.toolchain else None
    packages = [_absolute(word) for word in changes]
    shadow = make_shadow(folder / "environment", original, packages, options.find_links)
    before, after = (
        ", ".join(f"{name} {pair[at]}" for name, pair in shadow.changes.items() if pair[at])
        for at in (0, 1)
    )
    old = replace(old, title=before or old.title)
    new = replace(old, title=after, folder=folder / "new", ends={})
    if original is None:
        new.python = shadow.python
    else:
        new.variables = {override_variable(original.name): str(shadow.python)}
    return old, new, Upgrade(shadow.changes, conflicts=shadow.conflicts)


def _absolute(package: str) -> str:
    """Locate a wheel or ``NAME @ FILE`` that is relative to the user's folder."""
    name, at, place = package.partition("@")
    file = (place if at else package).strip()
    if "://" in file or not (at or file.endswith(".whl")):
        return package
    path = typed_path(file).absolute()
    return f"{name.strip()} @ {path.as_uri()}" if at else str(path)


def _affected_lines(stale: Mapping[str, Any], count: int) -> Iterator[str]:
    """Group the stale targets by their own reasons."""
    yield f"affected: {len(stale)} of {plural(count, 'target')}"
    groups: dict[str, list[str]] = defaultdict(list)
    for target, entry in stale.items():
        text = "; ".join(entry["reasons"])
        groups["upstream targets" if text.startswith(UPSTREAM) else text].append(target)
    for reasons, targets in groups.items():
        yield f"  {first_names(targets, _MOST_TARGETS)}: {reasons}"


def _judge(
    options: Namespace,
    session: BuildSession,
    engines: Sequence[Action],
    sides: tuple[Side, Side],
    stale: Mapping[str, Any],
) -> Iterator[EngineChange]:
    """Compare the engines, and time those that both sides run."""
    from buildsys.workers.pool import WorkerPool

    folder = session.project.state / _FOLDER / "side_by_side"
    folder.mkdir()
    old, new = sides
    with WorkerPool(folder) as pool:
        both = SideBySide(session.project, pool, old, new)
        for engine in engines:
            change = EngineChange(engine.model, engine.variant)
            checks = _checks(session, engine)
            needed = session.in_order(session.needed([engine.target, *checks]))
            change.reasons = [*dict.fromkeys(r for t in needed for r in _reasons(stale, t))]
            if compare_ends(change, old, new, needed):
                verify = target_of(VERIFY, engine.model, engine.variant)
                try:
                    checked = both.verify(session.actions[verify])
                    is_new = compare_results(change, old, new, checked, options.tolerance)
                    is_new |= stale.get(verify, {}).get("state") == STALE
                    if is_new and change.verdict != WRONG and not options.no_bench:
                        _say(options, f"timing {change.name}")
                        pace = options.tolerance, options.duration
                        measured = both.measure(engine.model, engine.variant, *pace)
                        compare_timings(change, measured, options.tolerance)
                except StageError as error:
                    change.add(INCOMPARABLE, str(error))
            yield change


def _reasons(stale: Mapping[str, Any], target: str) -> list[str]:
    return list(stale[target]["reasons"]) if target in stale else []


def _checks(session: BuildSession, engine: Action) -> list[str]:
    checks = required_checks(session, engine)
    return [name for name in checks if session.actions[name].stage != GATE]


def _report(options: Namespace, session: BuildSession, upgrade: Upgrade) -> int:
    """Print the result, and write the files of the command line."""
    specs = {
        f"{model}:{engine['name']}": engine
        for model, spec in session.project.models.items()
        for engine in spec.data["engines"]
    }
    files: dict[str, str] = {}
    if options.summary:
        files[options.summary] = upgrade.markdown(specs)
    if options.hold:
        held = (f"{engine.name}  # {', '.join(engine.verdicts)}\n" for engine in upgrade.held)
        files[options.hold] = "".join(held)
    if options.pin and upgrade.pins:
        file = typed_path(options.pin)
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        files[options.pin] = write_pins(text, upgrade.pins)
    for name, text in files.items() if not options.plan else ():
        replace_file(typed_path(name), text.encode())
    code = CheckFailed.exit_code if upgrade.held else 0
    if options.json:
        print_json({**upgrade.as_json(), "exit_code": code})
        return code
    if options.plan:
        return code
    lines = format_table(COLUMNS, list(upgrade.rows())) if upgrade.engines else []
    lines += [f"  {engine.name}: {why}" for engine in upgrade.engines for why in engine.why]
    lines += [f"{upgrade.title}: {upgrade.counts()}"]
    if upgrade.held:
        lines += ["hold back:", *(f"  {line}" for line in upgrade.instructions(specs))]
    print_lines([*lines, *(f"wrote {shown_path(typed_path(name))}" for name in files)])
    return code


def _run_side(root: Path, file: Path) -> int:
    """Build or explain targets in private folders, for the process of the command."""
    from buildsys.cli.run_files import collect_results
    from buildsys.cli.tasks import run_targets
    from buildsys.store.ledger import utc_now

    request = json.loads(file.read_bytes())
    folder = Path(request["folder"])
    project = replace(load_project(root), build=folder / "build", state=folder / "state")
    session, started = BuildSession(project), utc_now()
    session.has_summary = False
    answer: dict[str, Any]
    if "explain" in request:
        answer = {"stale": _stale(session, request["explain"])}
    else:
        run_targets(session, request["build"], jobs=request["jobs"], keep_going=True)
        ends = collect_results(session, started).targets
        answer = {"ends": {e.target: {"status": e.status, "reason": e.reason} for e in ends}}
    replace_file(file.with_name("answer.json"), json.dumps(answer).encode())
    return 0


def _stale(session: BuildSession, targets: Sequence[str]) -> dict[str, Any]:
    """Explain what this environment builds again, apart from what failed in the other one."""
    stale: dict[str, Any] = {}
    for target, state in session.explain(t for t in targets if t in session.actions).items():
        reasons = [str(r) for r in state.reasons if r.kind not in _NOT_OF_THE_CHANGE]
        upstream = [name for name in session.actions[target].after if name in stale]
        if reasons or upstream:
            causes = reasons or [f"{UPSTREAM}: {first_names(upstream, _MOST_TARGETS)}"]
            stale[target] = {"state": STALE if reasons else state.state, "reasons": causes}
    return stale
