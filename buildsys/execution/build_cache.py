"""Outputs of earlier builds, in the project's store and the shared cache.

A cache only saves time: a problem with it costs a warning and a rebuild, never a build.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from buildsys.errors import StageError, with_hint
from buildsys.execution.action_key import ActionKey
from buildsys.execution.recorded_reads import READ, Reads, is_followed
from buildsys.plan.action import Action, missing_outputs
from buildsys.store.file_digests import THREADS_FROM_BYTES, run_all
from buildsys.store.ledger import NOISY, PASSED, UNAVAILABLE, ActionRecord, Ledger, OutputFile
from buildsys.store.object_store import DamagedError, Store
from buildsys.store.record_file import RecordError, shown
from buildsys.store.signatures import BUILT_HERE, NO_POLICY, TrustPolicy
from buildsys.system.signatures import SignatureError

if TYPE_CHECKING:
    from buildsys.execution.provenance import ProvenanceSigner
    from buildsys.store.shared_cache import SharedCache


class BuildCache:
    """Lookup in the ledger, the store and the shared cache."""

    def __init__(
        self,
        build: Path,
        store: Store,
        ledger: Ledger,
        remote: SharedCache | None,
        notify: Callable[[str], None],
        *,
        signer: ProvenanceSigner | None = None,
        trust: TrustPolicy = NO_POLICY,
    ) -> None:
        self._build = build
        self._store = store
        self._ledger = ledger
        self._remote = remote
        self._notify = notify
        self._signer = signer
        self._trust = trust
        self._warned: set[str] = set()
        # target -> key and record of the last look into the shared cache
        self._read_last: dict[str, tuple[str, ActionRecord | None]] = {}

    def find(self, action: Action, key: ActionKey) -> ActionRecord | None:
        """Return a record with this key and complete outputs."""
        # the ledger does not know where a record came from
        known = (self._stored,) if self._trust.is_active else (self._ledger.lookup, self._stored)
        for look_up in known:
            found = look_up(action.target, key.digest)
            if (
                found is not None
                and self._is_valid(found, action, key)
                and all(map(self._store.holds, found.files.values()))
                and self._is_trusted(found)
            ):
                return found
        if self._remote is None or action.measures:  # figures of other machines are not ours
            return None
        found = self._remote.read_action(action.target, key.digest)
        if action.sources:  # else it is not asked for again
            self._read_last[action.target] = key.digest, found
        if found is None or not self._is_valid(found, action, key, shared=True):
            return None
        if not self._is_trusted(found):
            return None
        with self._tolerant(), self._store.lock(shared=True):
            if self._remote.fetch(found.files.values(), self._store):
                self._store.write_action(found)
                return found
        return None

    def find_with_reads(
        self, action: Action, key: ActionKey, with_reads: Callable[[Reads], ActionKey]
    ) -> tuple[ActionKey, ActionRecord | None]:
        """Return a record with this key, or with the reads of another build, and its key."""
        found = self.find(action, key)
        if found is None and action.sources:  # what other builds read may be something else
            for reads in self._reads(action, key.without_reads()):
                key = with_reads(reads)
                found = self.find(action, key)
                if found is not None:
                    break
        self._read_last.pop(action.target, None)  # a record takes 50 kB
        return key, found

    def _reads(self, action: Action, key: ActionKey) -> Iterator[Reads]:
        """Yield reads of other builds with otherwise equal parts.

        Such a build has two records: its own, and this one without the reads in its key.
        """
        for found in self._records(action, key):
            own = found.parts.keys() - key.parts.keys()
            reads = {
                label: found.parts[label].partition(" ")[2] if label.startswith(READ) else ""
                for label in sorted(own)
            }
            if reads and all(map(is_followed, reads)) and self._is_trusted(found):
                yield reads

    def _records(self, action: Action, key: ActionKey) -> Iterator[ActionRecord]:
        """Yield a key's records in the store and the shared cache."""
        if found := self._stored(action.target, key.digest):
            yield found
        if self._remote is not None and not action.measures:
            digest, shared = self._read_last.pop(action.target, ("", None))
            if digest != key.digest:
                shared = self._remote.read_action(action.target, key.digest)
            if shared is not None:
                yield shared

    def fetch(self, record: ActionRecord, names: Mapping[str, OutputFile], tree: Path) -> bool:
        """Copy outputs into an empty folder, False if one is damaged."""
        jobs = [partial(self._store.fetch, file, tree / name) for name, file in names.items()]
        many = sum(file.size for file in names.values()) >= THREADS_FROM_BYTES
        try:
            for name in names:
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
            run_all(jobs, in_threads=many)
        except DamagedError as error:
            self._warn("damaged", f"{error}; {record.target} is rebuilt")
            return False
        except OSError as error:
            folder = self._store.folder
            text = f"cannot restore {record.target} from the store {folder}: {error.strerror}"
            self._warn("fetch", text)
            return False
        with suppress(OSError):  # a read-only store: its owner removes what is unused
            os.utime(self._store.action_path(record.key))
        return True

    def keep(self, action: Action, record: ActionRecord, names: str = "") -> None:
        """Copy published outputs into the caches.

        ``names`` is the key without reads, under which other machines find out what was read.
        """
        share = record.status == PASSED and not action.measures
        with self._tolerant(), self._store.lock(shared=True):
            files = record.files.items()
            kept = [self._store.put(self._build / name, file) for name, file in files]
            if all(kept):  # otherwise overwritten meanwhile, as the next build will notice
                outputs = {n: file for n, file in record.outputs.items() if action.owns(n)}
                for one in [record, *([replace(record, key=names)] if names else [])]:
                    self._store.write_action(one)
                    if share and self._remote is not None:
                        self._share(replace(one, outputs=outputs))

    def signer(self, record: ActionRecord) -> str:
        """Return the public key of a record's verified signature, or ""."""
        if not record.origin:
            return BUILT_HERE
        with suppress(SignatureError):
            return self._trust.signer(record) if self._trust.is_active else ""
        return ""

    def _share(self, record: ActionRecord) -> None:
        assert self._remote is not None
        if self._signer is not None and self._remote.is_writable:
            signed = self._signer.sign_record(record)
            if signed is None:  # it has warned
                return
            record = signed
        self._remote.push(record, self._store)

    def _is_trusted(self, found: ActionRecord) -> bool:
        if not found.origin or not self._trust.is_active:
            return True
        try:
            self._trust.signer(found)
            return True
        except SignatureError as error:
            problem = error
        used = self._trust.tolerates(problem)
        text = f"the shared record of {found.target} {with_hint(problem.problem, problem.remedy)}"
        self._warn(f"trust {found.target}", f"{text}; {'used anyway' if used else 'ignored'}")
        return used

    def _stored(self, target: str, key: str) -> ActionRecord | None:
        try:
            return self._store.read_action(target, key)
        except StageError as error:
            self._warn("record", str(error))
            return None

    def _is_valid(
        self, found: ActionRecord, action: Action, key: ActionKey, *, shared: bool = False
    ) -> bool:
        """Return True if a record matches the key and the target's outputs.

        A local record may name more files in the target's folders. A ``shared`` one may not, as
        they may also hold files of other targets, unless the folder itself is an output.
        """
        declared = {ref.path for ref in action.outputs.values()}
        folders = {PurePosixPath(name).parent for name in declared}
        record = f"a stored record of {action.target}"
        for name in found.outputs.keys() - declared:
            path = PurePosixPath(name)
            inside = any(folder in path.parents for folder in folders)
            inside = action.owns(name) or (inside and not shared)
            if not inside or path.is_absolute() or ".." in path.parts:
                self._warn(
                    "strange", f"{record} names {shown(name)}, not one of its files; ignored"
                )
                return False
        if found.parts.items() > key.parts.items():
            return False  # names what was read; see ``reads``
        if found.parts != key.parts or not declared <= found.outputs.keys():
            self._warn("parts", f"{record} does not match its key; ignored")
            return False
        if missing := missing_outputs(action, found.status, found.outputs):
            self._warn("incomplete", f"{record} is without {missing[0]}; ignored")
            return False
        return found.status in (PASSED, UNAVAILABLE)

    @contextmanager
    def _tolerant(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RecordError) as error:
            problem = f"cannot write to the store {self._store.folder}"
            reason = getattr(error, "strerror", None) or f"a record {error}"
            self._warn("keep", f"{problem}: {reason}; the build continues without it")

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            self._notify(text)


def is_restorable(store: Store, ledger: Ledger, action: Action, key: ActionKey) -> bool:
    """Return True if the store has the outputs of a key.

    Writes nothing.
    """
    target = action.target
    if ledger.is_forgotten(target) or not (store.has_actions() or ledger.has_records(target)):
        return False
    try:
        found = ledger.lookup(target, key.digest)
        if found is None or found.status == NOISY:
            found = store.read_action(target, key.digest, read_only=True)
    except StageError:
        return False
    return (
        found is not None
        and not missing_outputs(action, found.status, found.outputs)
        and all(map(store.holds, found.files.values()))
    )


def store_folder(state: Path) -> Path:
    """Return the store's folder: BUILDSYS_STORE or inside the state folder."""
    return state.parent / (os.environ.get("BUILDSYS_STORE") or state / "store")
