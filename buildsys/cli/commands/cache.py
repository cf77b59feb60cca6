"""buildsys cache: stored builds (size, integrity, garbage collection), keys, worker servers."""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from buildsys.cli.command import add_json, add_names, print_answer, typed_path
from buildsys.cli.console.rows import format_table
from buildsys.cli.git_revision import project_at
from buildsys.errors import BuildsysError, UsageError
from buildsys.execution.baselines import baseline_digests
from buildsys.execution.build_cache import PlannedBuilds, planned_builds, store_folder
from buildsys.execution.key_parts import builder_versions
from buildsys.project.load import STATE_FOLDER, Project, empty_project, load_project
from buildsys.project.plan import ProjectPlan
from buildsys.report.formatting import count, plural, size
from buildsys.stages.table import GATE
from buildsys.store import garbage_collection
from buildsys.store.ledger import ActionRecord, Ledger
from buildsys.store.object_store import Store
from buildsys.store.signatures import generate_key
from buildsys.store.state_db import ReadOnlyStateDb
from buildsys.system.printable import printable_line
from buildsys.system.units import number_or_text, parse_duration, parse_size
from buildsys.workers import registry

SCHEMA = "buildsys/cache/1"
_DAMAGED = 1
_COLLECTED_SHARE = 0.9  # share of the limit, so that not every run collects
_SPARED_S = 24 * 3600.0  # other checkouts may share the store, and their manifests are unknown here
Names = set[tuple[str, str]]  # target and key
T = TypeVar("T")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys cache``."""
    add_names(parser, "[show | verify | gc | keygen FILE | workers]")
    parser.epilog = (
        "show    size of the store by stage (the default)\n"
        "verify  read everything; damaged files go into quarantine (exit code 1)\n"
        "gc      remove what the manifests do not reach, or only what is too old or too large\n"
        "keygen  write a new key that signs shared results to FILE, and print its public key\n"
        "workers list the worker servers of all projects, or stop this project's"
    )
    add_json(parser)
    parser.add_argument(
        "--older-than", default="", help="gc: remove what was not used for this long (30d)"
    )
    parser.add_argument("--max-size", default="", help="gc: shrink the store to this size (20GiB)")
    parser.add_argument(
        "--keep-refs", default="", help="gc: keep what these git revisions reach (comma-separated)"
    )
    parser.add_argument("--dry-run", action="store_true", help="gc: remove nothing")
    parser.add_argument(
        "--stop", action="store_true", help="workers: stop them, at once or after their run"
    )
    parser.add_argument(
        "--now", action="store_true", help="workers: stop them at once, with the jobs they run"
    )
    parser.add_argument(
        "--all", action="store_true", help="workers: stop the servers of all projects"
    )


def run(options: Namespace) -> int:
    """Run the subcommand; return 1 if verify found damage."""
    commands = {"show": _show, "verify": _verify, "gc": _collect}
    name, *others = options.names or ["show"]
    if name == "keygen":
        return _generate_key(others, options)
    if options.names == ["workers"]:
        return _list_workers(options)
    if name not in commands or others:
        hint = "run `buildsys help cache` for their options"
        raise UsageError("cache takes one of show, verify, gc, keygen, workers", hint)
    store, project = Store(store_folder(options.root / STATE_FOLDER)), empty_project(options.root)
    try:
        document, lines = commands[name](project, store, options)
    except OSError as error:
        problem = f"cannot use {error.filename or store.folder}: {error.strerror or error}"
        raise UsageError(problem, "check the folder and its permissions") from error
    document = {"schema": SCHEMA, "folder": str(store.folder), **document}
    print_answer(options, document, lines)
    return _DAMAGED if document.get("damaged") else 0


def _generate_key(names: Sequence[str], options: Namespace) -> int:
    if len(names) != 1:
        problem = "cache keygen takes the name of a new file"
        raise UsageError(problem, "write for example `buildsys cache keygen ci.key`")
    file = typed_path(names[0])
    public = generate_key(file)
    lines = [
        f"{file}: a private key; keep it secret, and out of the repository",
        "in project.yaml, of machines that build:",
        f"  cache: {{signing_key: {file}}}",
        "of those that use the results:",
        f"  cache: {{trusted_keys: ['{public}']}}",
    ]
    print_answer(options, {"schema": SCHEMA, "file": str(file), "public_key": public}, lines)
    return 0


def _list_workers(options: Namespace) -> int:
    """Print a table of worker servers, stopped before if requested."""
    folder = None if options.all else options.root / STATE_FOLDER
    if is_stop := options.now or options.stop:
        servers = registry.stop_servers(os.environ, now=options.now, state=folder)
    else:
        servers = registry.list_servers(os.environ)
    listed = []
    for _, record, state in servers:
        if is_stop:
            state = "ends after its run" if record.process.is_running else "ended"
        names = {"kind": record.kind, "state": state, "python": record.python}
        listed.append({"pid": record.pid, **names, "project": record.project})
    rows = [tuple(map(str, server.values())) for server in listed]
    none = "no worker servers" + (" of this project" if is_stop and folder else "")
    lines = format_table([*listed[0]], rows) if rows else [none]
    print_answer(options, {"schema": SCHEMA, "servers": listed}, lines)
    return 0


Answer = tuple[Mapping[str, Any], Sequence[str]]


def _show(project: Project, store: Store, _options: Namespace) -> Answer:
    usage, folder = garbage_collection.usage(store), project.timing_caches()
    timings = garbage_collection.timing_caches(folder)
    quarantined = sum(1 for _ in store.folder.glob("quarantine/*"))
    total, limit = sum(row.bytes for row in usage), project.store_limit()
    stages = {row.stage or "unreferenced": row for row in usage}
    document = {
        "stages": {n: {"actions": row.actions, "bytes": row.bytes} for n, row in stages.items()},
        "bytes": total,
        "limit_bytes": limit,
        "quarantined": quarantined,
        "timing_caches": {"folder": str(folder), **_sums(timings)},
    }
    rows = [(n, count(row.actions), size(row.bytes)) for n, row in stages.items() if row.bytes]
    lines = [f"{store.folder}: {size(total)}, {f'limit {size(limit)}' if limit else 'no limit'}"]
    lines += format_table(("stage", "records>", "size>"), rows) if rows else []
    if quarantined:
        place = store.folder / "quarantine"
        lines.append(f"{count(quarantined)} in quarantine: {place} (safe to delete)")
    if timings:
        lines.append(f"{folder}: {plural(len(timings), 'timing cache')}, {_total(timings)}")
    return document, lines


def _verify(_project: Project, store: Store, _options: Namespace) -> Answer:
    problems = garbage_collection.verify(store, _print_progress)
    if not problems:
        return {"damaged": []}, [f"{store.folder}: all objects match their digests"]
    moved = f"{count(len(problems))} moved into quarantine; affected targets will be rebuilt"
    return {"damaged": problems}, [*problems, moved]


def _collect(project: Project, store: Store, options: Namespace) -> Answer:
    older_than = _quantity(parse_duration, options.older_than, "--older-than")
    max_size = _quantity(parse_size, options.max_size, "--max-size")
    collection = garbage_collection.collect(
        store,
        unused_for_s=older_than,
        max_bytes=max_size,
        reached=reached_by(project.root, [*filter(None, options.keep_refs.split(","))]),
        dry_run=options.dry_run,
    )
    removed: dict[Path, int] = {}
    if older_than is not None:
        removed = garbage_collection.timing_caches(project.timing_caches(), older_than)
    if not options.dry_run:
        for path in removed:
            path.unlink(missing_ok=True)
    document = {
        "dry_run": options.dry_run, **asdict(collection), "timing_caches": _sums(removed)
    }  # fmt: skip
    verb = "would remove" if options.dry_run else "removed"
    gone = f"{count(len(collection.actions))} records and {count(collection.objects)} files"
    remaining = f"{count(collection.kept_actions)} records remain, {size(collection.kept_bytes)}"
    lines = [f"{verb} {gone}, {size(collection.bytes)}; {remaining}"]
    if max_size is not None and collection.kept_bytes > max_size:
        lines.append(f"what the manifests reach stays, so {size(max_size)} is not met")
    if removed:
        lines.append(f"{verb} {plural(len(removed), 'timing cache')}, {_total(removed)}")
    return document, lines


def _sums(sizes: Mapping[Path, int]) -> dict[str, int]:
    return {"files": len(sizes), "bytes": sum(sizes.values())}


def _total(sizes: Mapping[Path, int]) -> str:
    return size(sum(sizes.values()))


def _quantity(parse: Callable[[object], T], text: str, name: str) -> T | None:
    try:
        return parse(number_or_text(text)) if text else None
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def _print_progress(done: int, total: int) -> None:
    if sys.stderr.isatty() and (done % 16 == 0 or done == total):
        sys.stderr.write(f"\r{done} of {total} read" + ("\r\x1b[K" if done == total else ""))
        sys.stderr.flush()


def enforce_limit(project: Project) -> None:
    """Shrink a store over its limit, with a notice. Never fails a run.

    Results reached by the manifests or used within a day stay.
    """
    limit, store = project.store_limit(), Store(store_folder(project.state))
    try:
        used = garbage_collection.stored_bytes(store)
        if limit is None or used <= limit:
            return
        collection = garbage_collection.collect(
            store,
            unused_for_s=None,
            max_bytes=round(limit * _COLLECTED_SHARE),
            reached=reached_by(project.root),
            spared_for_s=_SPARED_S,
            dry_run=False,
        )
        text = f"the store exceeded its limit of {size(limit)} (`store.limit`): "
        text += f"{size(collection.bytes)} removed, {size(collection.kept_bytes)} remain"
        if not collection.bytes:
            return
        if collection.kept_bytes > limit:
            text += ", needed by the manifests or used within a day"
    except (BuildsysError, OSError) as error:  # such as broken manifests
        text = f"the store stays above its limit: {' '.join(str(error).split())}"
    sys.stderr.write(f"buildsys: {printable_line(text)}\n")
    sys.stderr.flush()


def reached_by(
    root: Path, revisions: Sequence[str] = ()
) -> Callable[[Sequence[ActionRecord]], Names]:
    """Plan what manifests and gates need, here or at one of the revisions.

    Returns a function that lists target and key of the stored records that are needed.
    Raises: ManifestErrors: the manifests here are wrong.
    UsageError: a revision is unknown, or its manifests are wrong.
    """
    project = load_project(root)
    project.require_all()  # objects of models that are left out would be removed
    plans = [_planned(project)]
    for revision in revisions:
        with project_at(project, revision) as at:
            at.project.require_all()
            plans.append(_planned(at.project))
    return partial(_reached_names, project.state, plans)


def _planned(project: Project) -> PlannedBuilds:
    actions = ProjectPlan(project.models, builder_versions(project.root))
    return planned_builds(project.root, project.build, actions, project.code)


def _reached_names(
    state: Path, plans: Sequence[PlannedBuilds], stored: Sequence[ActionRecord]
) -> Names:
    ledger = Ledger(ReadOnlyStateDb(state / "state.db"))
    by_target: dict[str, list[ActionRecord]] = {}
    for record in stored:
        by_target.setdefault(record.target, []).append(record)

    def builds(target: str) -> list[ActionRecord]:
        # a recorded build may be in the build folder only, and its outputs feed stored builds
        return [*by_target.get(target, ()), *ledger.records(target)]

    gates = {target for plan in plans for target in plan.parts if target.startswith(f"{GATE}:")}
    baselines = baseline_digests(ledger, gates)
    names = {name for plan in plans for name in plan.matching(builds)}
    return names | {
        (record.target, record.key)
        for record in stored
        if any(file.digest in baselines for file in record.files.values())
    }
