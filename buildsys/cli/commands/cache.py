"""buildsys cache: stored builds (size, integrity, garbage collection), keys, worker servers."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from buildsys.cli.command import add_json, add_names, print_answer, print_lines
from buildsys.cli.console.rows import format_table
from buildsys.cli.project_root import typed_path
from buildsys.cli.store_limit import reached_names
from buildsys.errors import UsageError
from buildsys.execution.build_cache import store_folder
from buildsys.project.load import STATE_FOLDER, Project, empty_project
from buildsys.report.formatting import count, size
from buildsys.store import garbage_collection
from buildsys.store.object_store import Store
from buildsys.store.signatures import generate_key
from buildsys.store.timing_caches import damaged, set_aside
from buildsys.system.units import number_or_text, parse_duration, parse_size
from buildsys.workers import registry

SCHEMA = "buildsys/cache/1"
_DAMAGED = 1
T = TypeVar("T")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys cache``."""
    add_names(parser, "[show | verify | gc | keygen FILE | workers]")
    parser.epilog = (
        "show    size of the store by stage (the default)\n"
        "verify  read everything; damaged files go into quarantine (exit code 1)\n"
        "gc      remove what the manifests do not reach, or only what is too old or too large\n"
        "keygen  write a new key that signs shared results to FILE, and print its public key\n"
        "workers list the worker servers of all projects that wait for the next run, or stop them"
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
        "--now", action="store_true", help="workers: stop all at once, with the jobs they run"
    )


def run(options: Namespace) -> int:
    """Run the subcommand; return 1 if verify found damage."""
    commands = {"show": _show, "verify": _verify, "gc": _collect}
    name = options.names[0] if options.names else "show"
    if name == "keygen":
        return _generate_key(options.names[1:], options)
    if options.names == ["workers"]:
        return _list_workers(options)
    if name not in commands or len(options.names) > 1:
        hint = "run `buildsys help cache` for their options"
        raise UsageError("cache takes one of show, verify, gc, keygen, workers", hint)
    store, project = Store(store_folder(options.root / STATE_FOLDER)), empty_project(options.root)
    timing_caches = project.timing_caches()
    document, lines = commands[name](project, store, timing_caches, options)
    document = {"schema": SCHEMA, "folder": str(store.folder), **document}
    print_answer(options, document, lines)
    return _DAMAGED if document.get("damaged") else 0


def _generate_key(names: Sequence[str], options: Namespace) -> int:
    if len(names) != 1:
        raise UsageError(
            "cache keygen takes the name of a new file",
            "write for example `buildsys cache keygen ci.key`",
        )
    file = typed_path(names[0])
    public = generate_key(file)
    document = {"schema": SCHEMA, "file": str(file), "public_key": public}
    lines = [
        f"{file}: a private key; keep it secret, and out of the repository",
        "in configs/project.yaml, of machines that build:",
        f"  cache: {{signing_key: {file}}}",
        "of those that use the results:",
        f"  cache: {{trusted_keys: ['{public}']}}",
    ]
    print_answer(options, document, lines)
    return 0


def _list_workers(options: Namespace) -> int:
    """Print a table of worker servers, or one line per stopped server."""
    if options.now or options.stop:
        lines = registry.format_stopped(registry.stop_servers(os.environ, now=options.now))
    else:
        lines = registry.format_running(registry.list_servers(os.environ))
    print_lines(lines)
    return 0


Answer = tuple[Mapping[str, Any], Sequence[str]]


def _show(project: Project, store: Store, timing_caches: Path, _options: Namespace) -> Answer:
    with _usable("store", store.folder):
        found = garbage_collection.usage(store)
    with _usable("timing caches in", timing_caches):
        timings = garbage_collection.timing_cache_usage(timing_caches)
    quarantined = sum(1 for _ in store.folder.glob("quarantine/*"))
    total, limit = sum(row.bytes for row in found), project.store_limit()
    stages = {row.stage or "unreferenced": row for row in found}
    document = {
        "stages": {n: {"actions": row.actions, "bytes": row.bytes} for n, row in stages.items()},
        "bytes": total,
        "limit_bytes": limit,
        "quarantined": quarantined,
        "timing_caches": {"folder": str(timing_caches), **asdict(timings)},
    }
    rows = [(n, count(row.actions), size(row.bytes)) for n, row in stages.items() if row.bytes]
    lines = [f"{store.folder}: {size(total)}, {f'limit {size(limit)}' if limit else 'no limit'}"]
    lines += format_table(("stage", "records>", "size>"), rows) if rows else []
    if quarantined:
        folder = store.folder / "quarantine"
        lines.append(f"{count(quarantined)} in quarantine: {folder} (safe to delete)")
    if timings.shared + timings.broken:
        broken = f", {count(timings.broken)} set aside (safe to delete)" if timings.broken else ""
        kinds = f"{count(timings.shared)} in use{broken}"
        lines.append(f"{timing_caches}: {size(timings.bytes)} of timing caches: {kinds}")
    return document, lines


def _verify(_project: Project, store: Store, timing_caches: Path, _options: Namespace) -> Answer:
    with _usable("store", store.folder):
        problems = garbage_collection.verify(store, _print_progress)
    with _usable("timing caches in", timing_caches):
        unusable = list(damaged(timing_caches))
        for path, _ in unusable:
            set_aside(path)
    problems += [f"{path} is unusable: {why}" for path, why in unusable]
    if not problems:
        return {"damaged": []}, [f"{store.folder}: all objects match their digests"]
    moved = f"{count(len(problems))} moved into quarantine; affected targets will be rebuilt"
    return {"damaged": problems}, [*problems, moved]


def _collect(project: Project, store: Store, timing_caches: Path, options: Namespace) -> Answer:
    from buildsys.cli.git_revision import reached_by

    older_than = _quantity(parse_duration, options.older_than, "--older-than")
    max_size = _quantity(parse_size, options.max_size, "--max-size")
    dry_run = options.dry_run
    reached = reached_by(project.root, [ref for ref in options.keep_refs.split(",") if ref])
    with _usable("store", store.folder):
        found = garbage_collection.collect(
            store,
            unused_for_s=older_than,
            max_bytes=max_size,
            reached=partial(reached_names, project, reached),
            dry_run=dry_run,
        )
    removed = garbage_collection.TimingCacheCollection(0, 0)
    if max_size is None or older_than is not None:  # not only the store's size is limited
        with _usable("timing caches in", timing_caches):
            removed = garbage_collection.collect_timing_caches(
                timing_caches, unused_for_s=older_than, dry_run=dry_run
            )
    document = {"dry_run": dry_run, **asdict(found), "timing_caches": asdict(removed)}
    verb = "would remove" if dry_run else "removed"
    lines = [
        f"{verb} {count(len(found.actions))} records and {count(found.objects)} files, "
        f"{size(found.bytes)}; {count(found.kept_actions)} records remain, {size(found.kept_bytes)}"
    ]
    if max_size is not None and found.kept_bytes > max_size:
        lines.append(f"what the manifests reach stays, so {size(max_size)} is not met")
    if removed.files:
        caches = "timing cache" if removed.files == 1 else "timing caches"
        lines.append(f"{verb} {count(removed.files)} {caches}, {size(removed.bytes)}")
    return document, lines


@contextmanager
def _usable(what: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = f"cannot use the {what} {folder}: {error.strerror or error}"
        raise UsageError(problem, "check the folder and its permissions") from error


def _quantity(parse: Callable[[object], T], text: str, name: str) -> T | None:
    try:
        return parse(number_or_text(text)) if text else None
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def _print_progress(done: int, total: int) -> None:
    if sys.stderr.isatty() and (done % 16 == 0 or done == total):
        sys.stderr.write(f"\r{done} of {total} read" + ("\r\x1b[K" if done == total else ""))
        sys.stderr.flush()
