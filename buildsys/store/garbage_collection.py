"""What a store holds, whether it is whole, and what may go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from buildsys.errors import StageError
from buildsys.store.file_digests import hash_file
from buildsys.store.ledger import ActionRecord
from buildsys.store.object_store import Store, StoredAction
from buildsys.store.record_file import RecordError, decode_record


@dataclass(frozen=True)
class StageUsage:
    """What one stage has in the store; content that several records name counts for the first of them."""

    stage: str
    actions: int
    bytes: int


@dataclass(frozen=True)
class Collection:
    """What was removed, or would be."""

    actions: tuple[str, ...]  # targets, one for each record
    objects: int
    bytes: int
    kept_actions: int
    kept_bytes: int


def usage(store: Store) -> list[StageUsage]:
    """Return what each stage has in the store, and last what no record names any more.

    Raises: OSError: the store cannot be read.
    """
    sizes = _sizes(store)
    actions: dict[str, int] = {}
    taken: dict[str, int] = {}
    for stored in store.actions():
        stage = stored.record.target.partition(":")[0]
        actions[stage] = actions.get(stage, 0) + 1
        taken[stage] = taken.get(stage, 0) + sum(
            sizes.pop(digest, 0) for digest in _digests(stored.record)
        )
    found = [StageUsage(stage, count, taken[stage]) for stage, count in actions.items()]
    return [*found, StageUsage("", 0, sum(sizes.values()))]


def verify(store: Store, progress: Callable[[int, int], None]) -> list[str]:
    """Read everything in the store; put into quarantine what is not what its name says, and return a sentence on each.

    ``progress`` is told how many of how many files have been read. Raises: OSError: the store cannot be read.
    """
    objects, records = list(store.objects()), sorted(store.folder.glob("actions/??/*.json"))
    problems = []
    for count, path in enumerate([*objects, *records], 1):
        problem = _problem_of_object(path) if count <= len(objects) else _problem_of_record(path)
        if problem:
            store.quarantine(path)
            problems.append(f"{path} {problem}")
        progress(count, len(objects) + len(records))
    return problems


def collect(
    store: Store,
    *,
    unused_for_s: float | None,
    max_bytes: int | None,
    reached: Callable[[ActionRecord], bool],
    dry_run: bool,
) -> Collection:
    """Remove records that nothing reaches, by age and size, then the objects that no record names.

    With neither ``unused_for_s`` nor ``max_bytes`` all records go that are not reached; what is reached always stays.
    Raises: OSError: the store cannot be read or written.
    """
    with store.lock_for_removal():
        stored = sorted(store.actions(), key=lambda action: action.used)  # the longest unused first
        loose = [action for action in stored if not reached(action.record)]
        sizes = _sizes(store)
        gone = (
            _aged(loose, unused_for_s)
            if unused_for_s is not None
            else []
            if max_bytes is not None
            else loose
        )
        if max_bytes is not None:
            gone = _shrunk(stored, loose, gone, sizes, max_bytes)
        going = {action.path for action in gone}
        kept = [action for action in stored if action.path not in going]
        named = {digest for action in kept for digest in _digests(action.record)}
        dead = {digest: size for digest, size in sizes.items() if digest not in named}
        if not dry_run:
            _remove(
                path for path in going
            )  # first the records: without its objects a record is only a miss
            _remove(store.object_path(digest) for digest in dead)
            store.remove_abandoned()
        targets = tuple(sorted(action.record.target for action in gone))
        kept_bytes = sum(sizes[digest] for digest in named if digest in sizes)
        return Collection(targets, len(dead), sum(dead.values()), len(kept), kept_bytes)


def _aged(actions: Iterable[StoredAction], unused_for_s: float) -> list[StoredAction]:
    limit = time.time() - unused_for_s
    return [action for action in actions if action.used < limit]


def _shrunk(
    stored: list[StoredAction],
    loose: list[StoredAction],
    gone: list[StoredAction],
    sizes: Mapping[str, int],
    limit: int,
) -> list[StoredAction]:
    """Return what goes so that the rest takes no more than ``limit`` bytes, if that can be."""
    users: dict[str, int] = {}
    going = {action.path for action in gone}
    for action in stored:
        if action.path not in going:
            for digest in set(_digests(action.record)):
                users[digest] = users.get(digest, 0) + 1
    taken = sum(sizes.get(digest, 0) for digest in users)
    for action in loose:
        if taken <= limit:
            break
        if action.path in going:
            continue
        gone = [*gone, action]
        for digest in set(_digests(action.record)):
            users[digest] -= 1
            taken -= 0 if users[digest] else sizes.get(digest, 0)
    return gone


def _digests(record: ActionRecord) -> list[str]:
    return [file.digest for file in record.files.values()]


def _sizes(store: Store) -> dict[str, int]:
    sizes = {}
    for path in store.objects():
        with suppress(FileNotFoundError):
            sizes[path.name] = path.stat().st_size
    return sizes


def _problem_of_object(path: Path) -> str:
    try:
        digest = hash_file(str(path)).digest
    except StageError as error:
        return f"cannot be read: {error}"
    return "" if digest == path.name else "does not have the content that its name says"


def _problem_of_record(path: Path) -> str:
    try:
        decode_record(path.read_bytes(), "", path.stem)
    except RecordError as error:
        return "" if error.newer else str(error)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return ""


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
