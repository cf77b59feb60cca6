"""What ``doit cache`` answers: the store's size, whether it is whole, and what was collected."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from buildsys.cli.cache.timing_caches import TimingFolder
from buildsys.errors import UsageError
from buildsys.execution.build_cache import store_folder
from buildsys.manifest.project import STATE_FOLDER
from buildsys.manifest.units import parse_duration, parse_size
from buildsys.report.formatting import count, size
from buildsys.report.markdown.elements import table
from buildsys.store import garbage_collection as collecting
from buildsys.store.ledger import ActionRecord
from buildsys.store.object_store import Store

_DAMAGED = 1
T = TypeVar("T")
Options = Mapping[str, Any]


def show(root: Path, options: Options) -> tuple[str, int]:
    """Return a table of what each stage has in the store."""
    store = _store(root)
    found = _reading(store, lambda: collecting.usage(store))
    timings = TimingFolder.of(root)
    quarantined = sum(1 for _ in store.folder.glob("quarantine/*"))
    total = sum(row.bytes for row in found)
    if options["json"]:
        rows = {
            row.stage or "unreferenced": {"actions": row.actions, "bytes": row.bytes}
            for row in found
        }
        more = {"quarantined": quarantined, "timing_caches": timings.facts()}
        return _json(folder=str(store.folder), stages=rows, bytes=total, **more), 0
    cells = [
        (row.stage or "named by no record", count(row.actions), size(row.bytes))
        for row in found
        if row.bytes
    ]
    text = f"{store.folder}: {size(total)}\n"
    if cells:
        text += "\n".join(table(("stage", "records>", "size>"), cells)) + "\n"
    if quarantined:
        text += (
            f"{count(quarantined)} in quarantine: {store.folder / 'quarantine'} (safe to delete)\n"
        )
    return text + timings.text(), 0


def verify(root: Path, options: Options) -> tuple[str, int]:
    """Read the whole store; return what is damaged."""
    store = _store(root)
    problems = (
        _reading(store, lambda: collecting.verify(store, _tell_progress))
        + TimingFolder.of(root).verified()
    )
    code = _DAMAGED if problems else 0
    if options["json"]:
        return _json(folder=str(store.folder), damaged=problems), code
    if not problems:
        return f"{store.folder}: everything is what its name says\n", code
    lines = "".join(f"{problem}\n" for problem in problems)
    return (
        f"{lines}{count(len(problems))} put into quarantine; what needs them is built again\n",
        code,
    )


def collect(root: Path, options: Options) -> tuple[str, int]:
    """Remove what is not reached, too old or too much."""
    from buildsys.cli.cache.reachable import reached_by

    older_than = _quantity(parse_duration, options["older_than"], "--older-than")
    max_size = _quantity(parse_size, options["max_size"], "--max-size")
    refs = [ref for ref in options["keep_refs"].split(",") if ref]
    store = _store(root)
    reached = reached_by(root, refs)
    dry_run = options["dry_run"]
    wanted = _reading(store, lambda: reached.pins | _recorded_timings(store, reached.records))
    found = _reading(
        store,
        lambda: collecting.collect(
            store,
            unused_for_s=older_than,
            max_bytes=max_size,
            reached=reached.records,
            dry_run=dry_run,
        ),
    )
    timings = TimingFolder.of(root).collected(
        wanted, older_than, by_size=max_size is not None, dry_run=dry_run
    )
    if options["json"]:
        return _json(
            folder=str(store.folder),
            dry_run=dry_run,
            **asdict(found),
            timing_caches=asdict(timings),
        ), 0
    done = "would remove" if dry_run else "removed"
    freed = f"{done} {count(len(found.actions))} records and {count(found.objects)} files, {size(found.bytes)}"
    plural = "s" * (timings.files != 1)
    more = (
        f"{done} {count(timings.files)} timing cache{plural}, {size(timings.bytes)}\n"
        if timings.files
        else ""
    )
    return f"{freed}; {count(found.kept_actions)} records stay, {size(found.kept_bytes)}\n{more}", 0


def _recorded_timings(store: Store, reached: Callable[[ActionRecord], bool]) -> set[str]:
    """Return the digests of the timing caches that engines of the manifests were built with: one may yet be pinned."""
    found = [
        stored.record.figures.get("timing_cache")
        for stored in store.actions()
        if reached(stored.record)
    ]
    used = [figures for figures in found if isinstance(figures, Mapping)]
    return {
        str(figures[name])
        for figures in used
        for name in ("digest", "grown_digest")
        if name in figures
    }


def _store(root: Path) -> Store:
    return Store(store_folder(root / STATE_FOLDER))


def _reading(store: Store, work: Callable[[], T]) -> T:
    try:
        return work()
    except OSError as error:
        raise UsageError(
            f"cannot use the store {store.folder}: {error.strerror or error}"
        ) from error


def _quantity(parse: Callable[[object], T], text: str, option: str) -> T | None:
    try:
        return parse(float(text) if text.replace(".", "", 1).isdigit() else text) if text else None
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def _tell_progress(done: int, total: int) -> None:
    if sys.stderr.isatty() and (done % 16 == 0 or done == total):
        sys.stderr.write(f"\r{done} of {total} read" + ("\r\x1b[K" if done == total else ""))
        sys.stderr.flush()


def _json(**fields: Any) -> str:
    return json.dumps({"schema": "buildsys/cache/1", **fields}, indent=2) + "\n"
