"""doit cache: size, integrity and garbage collection of stored builds."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from buildsys.cli.command import JSON, Options, ProjectCommand, option, print_json, print_lines
from buildsys.cli.console.rows import format_table
from buildsys.errors import UsageError
from buildsys.execution.build_cache import store_folder
from buildsys.manifest.project import STATE_FOLDER, empty_project
from buildsys.manifest.units import parse_duration, parse_size
from buildsys.report.formatting import count, size
from buildsys.store import garbage_collection
from buildsys.store.ledger import ActionRecord
from buildsys.store.object_store import Store
from buildsys.store.timing_caches import garbage_collection as timing_collection
from buildsys.store.timing_caches.files import damaged, set_aside

SCHEMA = "buildsys/cache/1"
_DAMAGED = 1
T = TypeVar("T")


class Cache(ProjectCommand):
    """Show, verify or shrink the store."""

    doc_purpose = "show, verify or shrink the store of earlier builds"
    doc_usage = "[show | verify | gc]"
    doc_description = (
        "show    size of the store by stage (the default)\n"
        "verify  read everything; damaged files go into quarantine (exit code 1)\n"
        "gc      remove what the manifests do not reach, or only what is too old or too large"
    )
    options = (
        JSON,
        option("older_than", "gc: remove what was not used for this long (30d)"),
        option("max_size", "gc: shrink the store to this size (20GiB)"),
        option("keep_refs", "gc: keep what these git revisions reach (comma-separated)"),
        option("dry_run", "gc: remove nothing", flag=True),
    )

    def run(self, root: Path, names: Sequence[str], options: Options) -> int:
        """Run the subcommand; return 1 if verify found damage."""
        commands = {"show": _show, "verify": _verify, "gc": _collect}
        name = names[0] if names else "show"
        if name not in commands or len(names) > 1:
            hint = "run `doit help cache` for their options"
            raise UsageError("cache takes one of show, verify, gc", hint)
        store = Store(store_folder(root / STATE_FOLDER))
        document, lines = commands[name](root, store, _TimingCaches.of(root), options)
        if options["json"]:
            print_json({"schema": SCHEMA, "folder": str(store.folder), **document})
        else:
            print_lines(lines)
        return _DAMAGED if document.get("damaged") else 0


@dataclass(frozen=True)
class _TimingCaches:
    """The folder of timing caches of a project."""

    folder: Path
    is_private: bool  # not shared with other clones

    @classmethod
    def of(cls, root: Path) -> _TimingCaches:
        project = empty_project(root)
        folder = project.timing_caches()
        inside = Path(os.path.abspath(folder)).is_relative_to(project.state)  # noqa: PTH100
        return cls(folder, is_private=inside)

    def usage(self) -> tuple[dict[str, Any], list[str]]:
        with _usable("timing caches in", self.folder):
            found = timing_collection.usage(self.folder)
        lines = []
        if found.shared + found.kept + found.broken:
            kinds = f"{count(found.shared)} shared, {count(found.kept)} kept by digest"
            kinds += f", {count(found.broken)} set aside (safe to delete)" if found.broken else ""
            lines = [f"{self.folder}: {size(found.bytes)} of timing caches: {kinds}"]
        return {"folder": str(self.folder), **asdict(found)}, lines

    def set_damaged_aside(self) -> list[str]:
        """Return one sentence per damaged file."""
        with _usable("timing caches in", self.folder):
            found = list(damaged(self.folder))
            for path, _ in found:
                set_aside(path)
        return [f"{path} is unusable: {why}" for path, why in found]

    def collect(
        self, wanted: Collection[str], unused_for_s: float | None, *, by_size: bool, dry_run: bool
    ) -> timing_collection.TimingCacheCollection:
        """Remove unwanted files, unless only the store's size is limited."""
        if by_size and unused_for_s is None:
            return timing_collection.TimingCacheCollection(0, 0)
        with _usable("timing caches in", self.folder):
            return timing_collection.collect(
                self.folder,
                wanted=wanted,
                unused_for_s=unused_for_s,
                private=self.is_private,
                dry_run=dry_run,
            )


Answer = tuple[Mapping[str, Any], Sequence[str]]


def _show(_root: Path, store: Store, timings: _TimingCaches, _options: Options) -> Answer:
    with _usable("store", store.folder):
        found = garbage_collection.usage(store)
    quarantined = sum(1 for _ in store.folder.glob("quarantine/*"))
    total = sum(row.bytes for row in found)
    timing_figures, timing_lines = timings.usage()
    stages = {
        row.stage or "unreferenced": {"actions": row.actions, "bytes": row.bytes} for row in found
    }
    document = {
        "stages": stages,
        "bytes": total,
        "quarantined": quarantined,
        "timing_caches": timing_figures,
    }
    rows = [
        (row.stage or "unreferenced", count(row.actions), size(row.bytes))
        for row in found
        if row.bytes
    ]
    lines = [f"{store.folder}: {size(total)}"]
    lines += format_table(("stage", "records>", "size>"), rows) if rows else []
    if quarantined:
        folder = store.folder / "quarantine"
        lines.append(f"{count(quarantined)} in quarantine: {folder} (safe to delete)")
    return document, [*lines, *timing_lines]


def _verify(_root: Path, store: Store, timings: _TimingCaches, _options: Options) -> Answer:
    with _usable("store", store.folder):
        problems = garbage_collection.verify(store, _print_progress)
    problems += timings.set_damaged_aside()
    if not problems:
        return {"damaged": []}, [f"{store.folder}: all objects match their digests"]
    moved = f"{count(len(problems))} moved into quarantine; affected targets will be rebuilt"
    return {"damaged": problems}, [*problems, moved]


def _collect(root: Path, store: Store, timings: _TimingCaches, options: Options) -> Answer:
    from buildsys.cli.reachable_builds import reached_by

    older_than = _quantity(parse_duration, options["older_than"], "--older-than")
    max_size = _quantity(parse_size, options["max_size"], "--max-size")
    dry_run = options["dry_run"]
    reached = reached_by(root, [ref for ref in options["keep_refs"].split(",") if ref])
    with _usable("store", store.folder):
        wanted = reached.pins | _recorded_timings(store, reached.records)
        found = garbage_collection.collect(
            store,
            unused_for_s=older_than,
            max_bytes=max_size,
            reached=reached.records,
            dry_run=dry_run,
        )
    removed = timings.collect(wanted, older_than, by_size=max_size is not None, dry_run=dry_run)
    document = {"dry_run": dry_run, **asdict(found), "timing_caches": asdict(removed)}
    verb = "would remove" if dry_run else "removed"
    lines = [
        f"{verb} {count(len(found.actions))} records and {count(found.objects)} files, "
        f"{size(found.bytes)}; {count(found.kept_actions)} records remain, {size(found.kept_bytes)}"
    ]
    if removed.files:
        caches = f"timing cache{'s' * (removed.files != 1)}"
        lines.append(f"{verb} {count(removed.files)} {caches}, {size(removed.bytes)}")
    return document, lines


def _recorded_timings(store: Store, reached: Callable[[ActionRecord], bool]) -> set[str]:
    """Return the timing caches of reached engines; a manifest may pin them."""
    figures = [
        stored.record.figures.get("timing_cache")
        for stored in store.actions()
        if reached(stored.record)
    ]
    return {
        str(found[name])
        for found in figures
        if isinstance(found, Mapping)
        for name in ("digest", "grown_digest")
        if name in found
    }


@contextmanager
def _usable(what: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = f"cannot use the {what} {folder}: {error.strerror or error}"
        raise UsageError(problem) from error


def _quantity(parse: Callable[[object], T], text: str, name: str) -> T | None:
    try:
        return parse(float(text) if text.replace(".", "", 1).isdigit() else text) if text else None
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def _print_progress(done: int, total: int) -> None:
    if sys.stderr.isatty() and (done % 16 == 0 or done == total):
        sys.stderr.write(f"\r{done} of {total} read" + ("\r\x1b[K" if done == total else ""))
        sys.stderr.flush()
