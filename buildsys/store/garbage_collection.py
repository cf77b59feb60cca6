"""Usage, verification and garbage collection of a store and of timing caches."""

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from buildsys.errors import StageError
from buildsys.store.file_digests import hash_file
from buildsys.store.ledger import ActionRecord
from buildsys.store.object_store import Store, StoredAction
from buildsys.store.record_file import RecordError, read_record
from buildsys.store.timing_caches import SUFFIX

_ABANDONED_S = 3600.0


@dataclass(frozen=True)
class StageUsage:
    """The share of a stage; shared content counts for its first record."""

    stage: str
    actions: int
    bytes: int


@dataclass(frozen=True)
class Collection:
    """The result of a garbage collection or its dry run."""

    actions: tuple[str, ...]  # targets, one per removed record
    objects: int
    bytes: int
    kept_actions: int
    kept_bytes: int


def usage(store: Store) -> list[StageUsage]:
    """Measure the usage per stage, and last of objects without a record.

    Raises: OSError: the store cannot be read.
    """
    sizes = _sizes(store)
    actions: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    for stored in store.actions():
        stage = stored.record.target.partition(":")[0]
        actions[stage] += 1
        taken[stage] += sum(sizes.pop(digest, 0) for digest in _digests(stored.record))
    rows = [StageUsage(stage, count, taken[stage]) for stage, count in actions.items()]
    return [*rows, StageUsage("", 0, sum(sizes.values()))]


def stored_bytes(store: Store) -> int:
    """Add up the sizes of all objects. Raises: OSError: the store cannot be read."""
    return sum(_sizes(store).values())


def verify(store: Store, progress: Callable[[int, int], None]) -> list[str]:
    """Quarantine all damaged files; return a sentence on each.

    ``progress`` receives the number of files read and of all files.
    Raises: OSError: the store cannot be read.
    """
    objects, records = (sorted(store.folder.glob(f"{n}/??/*")) for n in ("objects", "actions"))
    problems = []
    for count, path in enumerate([*objects, *records], 1):
        with ExitStack() as stack:
            if problem := _damage(path):
                with suppress(OSError):  # a read-only store, which stays as it is
                    stack.enter_context(store.lock(shared=False))
                # read again alone: others may have removed it, and put it there again
                if problem := _damage(path):
                    store.quarantine(path)
                    problems.append(f"{path} {problem}")
        progress(count, len(objects) + len(records))
    return problems


def _damage(path: Path) -> str:
    """Find the problem of an object or a record, "" for a missing file."""
    try:
        if path.parts[-3] == "actions":
            read_record(path, "", path.stem)
        elif hash_file(str(path)).digest != path.name:
            return "does not match its digest"
    except RecordError as error:
        return "" if error.newer else str(error)
    except (StageError, OSError) as error:
        if isinstance(error.__cause__ or error, FileNotFoundError):  # a collection removed it
            return ""
        return f"cannot be read: {getattr(error, 'strerror', error)}"
    return ""


def collect(
    store: Store,
    *,
    unused_for_s: float | None,
    max_bytes: int | None,
    reached: Callable[[Sequence[ActionRecord]], Container[tuple[str, str]]],
    spared_for_s: float = 0.0,
    dry_run: bool,
) -> Collection:
    """Remove unreached records by age and size, then objects without a record.

    ``reached`` returns target and key of the reached ones among all records; they always stay, and
    so do those used within ``spared_for_s``. Without ``unused_for_s`` and ``max_bytes`` all others
    are removed.
    Raises: OSError: the store cannot be read or written.
    """
    with store.lock(shared=False):
        # least recently used first, then oldest
        stored = sorted(store.actions(), key=lambda a: (a.used, a.record.started))
        live = reached([action.record for action in stored])
        used_since = math.inf if max_bytes is None else -math.inf
        if unused_for_s is not None:
            used_since = time.time() - unused_for_s
        spared_since = time.time() - spared_for_s if spared_for_s else math.inf
        sizes = _sizes(store)
        users = Counter(digest for a in stored for digest in set(_digests(a.record)))
        taken = sum(sizes.get(digest, 0) for digest in users)
        gone: list[StoredAction] = []
        for action in stored:
            if (action.record.target, action.record.key) in live or action.used >= spared_since:
                continue
            if action.used < used_since or (max_bytes is not None and taken > max_bytes):
                gone.append(action)
                for digest in set(_digests(action.record)):
                    users[digest] -= 1
                    taken -= 0 if users[digest] else sizes.get(digest, 0)
        unnamed = {digest: size for digest, size in sizes.items() if not users[digest]}
        if not dry_run:
            # records first: a record without its objects is only a cache miss
            for path in [a.path for a in gone] + [store.object_path(digest) for digest in unnamed]:
                path.unlink(missing_ok=True)
            for path, status in _stats(store.folder.glob("tmp/*")).items():
                if time.time() - status.st_mtime > _ABANDONED_S:  # its process died
                    path.unlink(missing_ok=True)
        return Collection(
            actions=tuple(sorted(action.record.target for action in gone)),
            objects=len(unnamed),
            bytes=sum(unnamed.values()),
            kept_actions=len(stored) - len(gone),
            kept_bytes=taken,
        )


def timing_caches(folder: Path, unused_for_s: float = 0.0) -> dict[Path, int]:
    """List the timing caches of a folder that were not used for a while, with their sizes.

    Raises: OSError: it cannot be read.
    """
    stats = _stats(folder.glob(f"*{SUFFIX}*"))
    oldest = time.time() - unused_for_s
    return {path: stat.st_size for path, stat in stats.items() if stat.st_mtime <= oldest}


def _digests(record: ActionRecord) -> list[str]:
    return [file.digest for file in record.files.values()]


def _sizes(store: Store) -> dict[str, int]:
    stats = _stats(store.folder.glob("objects/??/*"))
    return {path.name: status.st_size for path, status in stats.items()}


def _stats(paths: Iterable[Path]) -> dict[Path, os.stat_result]:
    """Stat existing files; another process may remove some meanwhile."""
    stats = {}
    for path in paths:
        with suppress(FileNotFoundError):
            stats[path] = path.stat()
    return stats
