"""What was built before, here or elsewhere: found by action key, fetched by digest, kept after each build.

A cache is a help: whatever is wrong with it costs a warning and a rebuild, never a build.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from buildsys.errors import StageError
from buildsys.execution.key_inputs import Snapshot
from buildsys.plan.action import Action
from buildsys.store.background import Background
from buildsys.store.file_digests import THREADS_FROM_BYTES, run_all
from buildsys.store.ledger import PASSED, UNAVAILABLE, ActionRecord, Ledger, OutputFile
from buildsys.store.object_store import DamagedError, Store

if TYPE_CHECKING:
    from buildsys.store.shared_cache import SharedCache


class Cache:
    """The store of a project, behind it the ledger's own records and, when there is one, the shared cache."""

    def __init__(
        self,
        build: Path,
        store: Store,
        ledger: Ledger,
        background: Background,
        remote: SharedCache | None,
        notify: Callable[[str], None],
    ) -> None:
        self._build = build
        self._store = store
        self._ledger = ledger
        self._background = background
        self._remote = remote
        self._notify = notify
        self._told: set[str] = set()

    def find(self, action: Action, now: Snapshot) -> ActionRecord | None:
        """Return a record of exactly this key whose outputs can all be fetched."""
        for look in (self._recorded, self._stored):
            found = look(action, now)
            if found is not None and self._fits(found, action, now) and self._can_fetch(found):
                return found
        return self._shared(action, now)

    def fetch(self, record: ActionRecord, names: Mapping[str, OutputFile], tree: Path) -> bool:
        """Copy outputs into an empty folder; False when one of them turns out not to be what it should."""
        jobs = []
        for name, file in names.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            jobs.append(partial(self._store.fetch, file, tree / name))
        try:
            run_all(
                jobs, in_threads=sum(file.size for file in names.values()) >= THREADS_FROM_BYTES
            )
        except DamagedError as error:
            self._warn("damaged", f"{error}; {record.target} is built anew")
            return False
        except OSError as error:
            self._warn(
                "fetch",
                f"cannot take {record.target} from the store {self._store.folder}: {error.strerror}",
            )
            return False
        self._store.mark_used(record.key)
        return True

    def keep(self, action: Action, record: ActionRecord) -> None:
        """Copy what was just published into the store, and into the shared cache, beside the next stages."""
        self._background.submit(
            partial(self._keep, record, record.status == PASSED and not action.measures)
        )

    def _recorded(self, action: Action, now: Snapshot) -> ActionRecord | None:
        return self._ledger.lookup(action.target, now.key)

    def _stored(self, action: Action, now: Snapshot) -> ActionRecord | None:
        try:
            return self._store.read_action(action.target, now.key)
        except StageError as error:
            self._warn("record", str(error))
            return None

    def _shared(self, action: Action, now: Snapshot) -> ActionRecord | None:
        """Return a record of the shared cache, after its outputs have come into the store."""
        if self._remote is None or action.measures:  # figures of another machine are not this one's
            return None
        found = self._remote.read_action(action.target, now.key)
        if found is None or not self._fits(found, action, now):
            return None
        with self._excused("keep"), self._store.lock_for_adding():
            if self._remote.fetch(found.files.values(), self._store):
                self._store.write_action(found)
                return found
        return None

    def _fits(self, found: ActionRecord, action: Action, now: Snapshot) -> bool:
        """Return whether a record says what it must of this key, and names no file but the target's own."""
        folders = {PurePosixPath(ref.path).parent for ref in action.outputs.values()}
        strange = next((name for name in found.outputs if not _lies_in(name, folders)), "")
        if strange:
            self._warn(
                "strange",
                f"a stored record of {action.target} names {strange}, not a file of its own; ignored",
            )
        elif found.parts != now.parts or not all(
            ref.path in found.outputs for ref in action.outputs.values()
        ):
            self._warn(
                "parts",
                f"a stored record of {action.target} does not say what its key stands for; ignored",
            )
        elif found.status in (PASSED, UNAVAILABLE):
            return True
        return False

    def _can_fetch(self, record: ActionRecord) -> bool:
        return all(self._store.holds(file) for file in record.files.values())

    def _keep(self, record: ActionRecord, share: bool) -> None:
        with self._excused("keep"), self._store.lock_for_adding():
            kept = [
                self._store.put(self._build / name, file) for name, file in record.files.items()
            ]
            if all(kept):  # else written by somebody else meanwhile: the next build finds out
                self._store.write_action(record)
                if share and self._remote is not None:
                    self._remote.push(record, self._store)

    @contextmanager
    def _excused(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            self._warn(
                what,
                f"cannot write to the store {self._store.folder}: {reason}; the build goes on without it",
            )

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            self._notify(text)


def stored_in(store: Store, ledger: Ledger) -> Callable[[Action, Snapshot], bool]:
    """Return what tells whether a stale target would be restored from the store; it writes nothing."""

    def is_stored(action: Action, now: Snapshot) -> bool:
        if ledger.is_forgotten(action.target):
            return False
        try:
            found = ledger.lookup(action.target, now.key) or store.read_action(
                action.target, now.key, looking=True
            )
        except StageError:
            return False
        return found is not None and all(store.holds(file) for file in found.files.values())

    return is_stored


def store_folder(state: Path) -> Path:
    """Return the folder of the store: BUILDSYS_STORE, absolute or relative to the project, or one beside the state."""
    return state.parent / (os.environ.get("BUILDSYS_STORE") or state / "store")


def _lies_in(name: str, folders: set[PurePosixPath]) -> bool:
    path = PurePosixPath(name)
    inside = any(folder in path.parents for folder in folders)
    return inside and not path.is_absolute() and ".." not in path.parts
