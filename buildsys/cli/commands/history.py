"""buildsys history: recorded builds."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from buildsys.cli.build_names import SHOWN_REVISION, BuildNames
from buildsys.cli.command import (
    add_json,
    add_names,
    positive_integer,
    print_answer,
    print_json,
    print_lines,
    typed_path,
)
from buildsys.cli.console.rows import format_table, time_ago
from buildsys.cli.session import BuildSession
from buildsys.errors import UsageError
from buildsys.history.builds import RESTORED, Build
from buildsys.history.database import History, history_file, import_history
from buildsys.report.formatting import TIMES, duration, error, fold, latency, plural, size
from buildsys.report.key_figures import key_figure
from buildsys.stages.bench.result import is_recorded_noisy
from buildsys.stages.table import BENCH, ENGINE, ENGINE_STAGES, VERIFY

SCHEMA, IMPORT_SCHEMA = "buildsys/history/1", "buildsys/history-import/1"
_IMPORT = "import"
_WIDTH = 80
_START = 5  # the column of cold starts, left out if no build has any
_COMPLETE = ("passed", "noisy")
_HARDWARE = ("device:cpu.model", "device:cpu.cores", "device:gpu.name")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys history``."""
    add_names(parser, "[MODEL | MODEL:ENGINE | TARGET] | import FILE")
    parser.epilog = (
        "without a name: the recorded models; `history import` adds the builds in history.db of\n"
        "another machine"
    )
    add_json(parser)
    parser.add_argument(
        "-n", type=positive_integer, default=10, dest="count", help="number of builds to show"
    )


def run(options: Namespace) -> int:
    """Print builds, newest first. Having none is no error."""
    session, names = BuildSession.of_history(options.root), list(options.names)
    file = history_file(session.project.state)
    if names[:1] == [_IMPORT] and (len(names) == 2 or _IMPORT not in session.project.models):
        if len(names) != 2:
            hint = "name the file history.db of another machine"
            raise UsageError("history import takes a file", hint)
        counts = import_history(History(file), typed_path(names[1]))
        lines = [f"{plural(counts.added, 'build')} added, {counts.known} known already"]
        print_answer(options, {"schema": IMPORT_SCHEMA, **counts._asdict()}, lines)
        return 0
    if len(names) > 1:
        raise UsageError("history takes one name", "`buildsys help history` explains it")
    history = History.readable(file)
    if not names:
        overview = _overview(history)
        document = {"schema": SCHEMA, "file": str(file), "models": overview}
        print_answer(options, document, _overview_lines(overview, history))
        return 0
    model, engines, builds = _named(session, history, names[0])
    if options.json:
        print_json(_as_json(history, names[0], builds[: options.count]))
        return 0
    for engine in engines:
        print_lines(_engine_lines(history, f"{model}:{engine}", builds, options.count))
    if not engines:
        print_lines(_target_lines(builds[: options.count]))
    return 0


def _named(
    session: BuildSession, history: History, name: str
) -> tuple[str, Sequence[str], Sequence[Build]]:
    """Return the model of a name, the engines to show, and its builds, newest first.

    There are no engines for the name of a target.
    Raises: UsageError: an unknown or ambiguous name, or nothing is recorded of it.
    """
    names = BuildNames(session, history)
    model, _, engine = names.scope(name).partition(":")
    full, builds = names.full_name(name), names.of_model(model)
    stage = full.partition(":")[0]
    is_target = stage in name.split(":") and stage != "build"
    if is_target:
        builds = [build for build in builds if f"{build.target}:".startswith(f"{full}:")]
    elif engine:
        builds = [b for b in builds if b.stage in ENGINE_STAGES and b.variant == engine]
    if not builds:
        hint = f"`buildsys build {name}` builds it"
        raise UsageError(f"the history has no builds of {name}", hint)
    engines = {build.variant for build in builds if build.stage in ENGINE_STAGES}
    return model, [] if is_target else sorted(engines), builds


def _engine_lines(
    history: History, name: str, builds: Sequence[Build], count: int
) -> Iterator[str]:
    """Yield an engine's runs: a table for each machine."""
    machines: dict[tuple[str, str], list[Build]] = {}
    for build in builds:
        if build.stage in ENGINE_STAGES and build.variant == name.partition(":")[2]:
            machines.setdefault((build.machine, build.machine_id), []).append(build)
    for (machine, identity), own in machines.items():
        title = machine or "an unknown machine"
        if sum(other == machine for other, _ in machines) > 1:
            title += f" ({identity or 'without an id'})"
        hardware = next(filter(None, (_hardware(history, build) for build in own)), "")
        yield f"{name} on {', '.join(filter(None, (title, hardware)))}"
        yield from _run_table(own, count)
        yield ""


def _run_table(builds: Sequence[Build], count: int) -> Iterator[str]:
    runs: dict[str, dict[str, Build]] = {}
    for build in builds:  # newest first
        runs.setdefault(build.run, {}).setdefault(build.stage, build)
    rows, problems = [], []
    for stages in list(runs.values())[:count]:
        last = max(stages.values(), key=lambda build: build.position)
        figures = {stage: build.figures for stage, build in stages.items()}
        engine, verify, bench = (figures.get(name, {}) for name in (ENGINE, VERIFY, BENCH))
        failed = [build for build in stages.values() if build.status not in _COMPLETE]
        noisy = is_recorded_noisy(bench)
        notes = [failed[0].status] if failed else ["noisy"] if noisy else []
        if all(build.how == RESTORED for build in stages.values()):
            notes.append(RESTORED)
        start, is_unsteady = _cold_start(bench)
        notes += ["start noisy"] if is_unsteady else []
        rows.append(
            [
                last.short_id,
                last.started[:16].replace("T", " "),
                _revision(last),
                latency(p50_ms, noisy=noisy) if (p50_ms := bench.get("latency_p50_ms")) else "",
                _precision(bench),
                start,
                size(engine["bytes"]) if "bytes" in engine else "",
                error(verify["relative"]) if "relative" in verify else "",
                ", ".join(notes),
            ]
        )
        for build in failed:
            text = f"{build.short_id} {build.stage} {build.status}: {build.reason}"
            problems.append(fold(text, _WIDTH - 4)[0])
    titles = ["id", "built (UTC)", "revision", "p50 ms>", "±>", "start ms>", "size>", "error>", ""]
    if not any(row[_START] for row in rows):
        titles, *rows = ([*row[:_START], *row[_START + 1 :]] for row in (titles, *rows))
    yield from (f"  {line}" for line in format_table(titles, rows))
    yield from (f"  {line}" for line in problems)
    if len(runs) > count:
        yield f"  and {len(runs) - count} older (-n {len(runs)} shows all)"


def _target_lines(builds: Sequence[Build]) -> Iterator[str]:
    """Yield a table of single targets."""
    rows = [
        [
            build.short_id,
            build.started[:16].replace("T", " "),
            _revision(build),
            build.target,
            duration(build.seconds),
            f"{build.status}, {RESTORED}" if build.how == RESTORED else build.status,
            fold(build.reason)[0]
            or (key_figure(build.stage, build.figures) if "figures" in build.figures else ""),
        ]
        for build in builds
    ]
    titles = ("id", "built (UTC)", "revision", "target", "time>", "status", "")
    yield from format_table(titles, rows)


def _overview(history: History) -> list[dict[str, Any]]:
    """Count the builds of recorded models."""
    rows = []
    for model in history.models():
        builds = history.builds(model=model)
        engines = {build.variant for build in builds if build.stage in ENGINE_STAGES}
        rows.append(
            {
                "model": model, "builds": len(builds), "engines": sorted(engines),
                "first": builds[-1].started, "last": builds[0].started,
            }
        )  # fmt: skip
    return rows


def _overview_lines(overview: Sequence[dict[str, Any]], history: History) -> Iterator[str]:
    if not overview:
        yield "the history has no builds yet; `buildsys build` builds every model"
        return
    titles = ("model", "engines>", "builds>", "last built")
    rows = [
        [row["model"], str(len(row["engines"])), str(row["builds"]), time_ago(row["last"])]
        for row in overview
    ]
    yield from format_table(titles, rows)
    total = sum(row["builds"] for row in overview)
    machines = history.count_machines()
    stored = size(history.path.stat().st_size)
    yield f"{plural(total, 'build')} of {plural(machines, 'machine')}: {history.path}, {stored}"


def _as_json(history: History, name: str, builds: Sequence[Build]) -> dict[str, Any]:
    documents = []
    for build in builds:
        measured = history.measurements(build) if build.stage == BENCH else ()
        documents.append({**asdict(build), "measurements": list(map(asdict, measured))})
    environments = {b.environment: history.environment(b) for b in builds if b.environment}
    return {"schema": SCHEMA, "name": name, "builds": documents, "environments": environments}


def _hardware(history: History, build: Build) -> str:
    environment = history.environment(build)
    model, cores, gpu = (environment.get(label, "") for label in _HARDWARE)
    text = f"{cores} {TIMES} {model}" if cores and model else model
    return ", ".join(filter(None, (text, gpu if gpu != "none" else "")))


def _precision(bench: Mapping[str, Any]) -> str:
    """Return the distance of the interval's ends from the median in percent."""
    match bench.get("latency_interval_ms"), bench.get("latency_p50_ms"):
        case [float(low), float(high)], float(p50_ms) if p50_ms > 0:
            return f"{100 * max(high - p50_ms, p50_ms - low) / p50_ms:.1f} %"
        case _:
            return ""


def _cold_start(bench: Mapping[str, Any]) -> tuple[str, bool]:
    """Add up loading and the first call, timed by fresh processes; tell if one is noisy."""
    noisy = bool({"load_ms", "first_call_ms"} & {*(bench.get("noisy_starts") or ())})
    match bench.get("load_ms"), bench.get("first_call_ms"):
        case int() | float() as load_ms, int() | float() as call_ms:
            return latency(load_ms + call_ms, noisy=noisy), noisy
        case _:
            return "", False


def _revision(build: Build) -> str:
    changed = "+" if build.dirty else ""
    return f"{build.revision[:SHOWN_REVISION]}{changed}"
