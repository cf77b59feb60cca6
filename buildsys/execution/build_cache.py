"""Outputs of earlier builds, in the project's store and the shared cache.

A cache only saves time: a problem with it costs a warning and a rebuild, never a build.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from buildsys.errors import StageError, with_hint
from buildsys.execution.action_key import ABSENT, ActionKey, KeyBuilder
from buildsys.execution.recorded_reads import READ, Reads, is_followed
from buildsys.plan.action import Action, missing_outputs
from buildsys.store.file_digests import DigestCache
from buildsys.store.ledger import PASSED, UNAVAILABLE, ActionRecord, Ledger
from buildsys.store.object_store import DamagedError, Store
from buildsys.store.record_file import RecordError, read_record, shown
from buildsys.store.signatures import BUILT_HERE, NO_POLICY, TrustPolicy
from buildsys.store.state_db import StateDb
from buildsys.system.signatures import SignatureError

if TYPE_CHECKING:
    from buildsys.execution.provenance import ProvenanceSigner
    from buildsys.store.shared_cache import SharedCache

_FROM_REPOSITORY = ("config", "source", "weights", "inputs", "outputs")  # kinds of key parts
_INPUT = "input:"
Parts = frozenset[tuple[str, str]]
RecordsOf = Callable[[str], Sequence[ActionRecord]]  # target -> its known builds


class BuildCache:
    """Lookup in the store and the shared cache."""

    def __init__(
        self,
        build: Path,
        store: Store,
        remote: SharedCache | None,
        notify: Callable[[str], None],
        *,
        signer: ProvenanceSigner | None = None,
        trust: TrustPolicy = NO_POLICY,
    ) -> None:
        self._build = build
        self._store = store
        self._remote = remote
        self._notify = notify
        self._signer = signer
        self._trust = trust
        self._warned: set[str] = set()

    def find_with_reads(
        self, action: Action, key: ActionKey, with_reads: Callable[[Reads], ActionKey]
    ) -> tuple[ActionKey, ActionRecord | None]:
        """Find a record with this key, or with the reads of another build, and its key.

        A build whose stage read something has two records: its own, and this one without the reads
        in its key.
        """
        read_shared = cache(partial(self._read_shared, action))
        record = self._find(action, key, read_shared)
        if record is None and action.sources:  # what other builds read may be something else
            bare = key.without_reads()
            for other in (self._stored(action.target, bare.digest), read_shared(bare.digest)):
                reads = {} if other is None else _reads_of(other, bare)
                if other is None or not reads or not self._is_trusted(other):
                    continue
                key = with_reads(reads)
                record = self._find(action, key, read_shared)
                if record is not None:
                    break
        return key, record

    def _find(
        self, action: Action, key: ActionKey, read_shared: Callable[[str], ActionRecord | None]
    ) -> ActionRecord | None:
        """Find a record with this key and complete outputs."""
        record = self._stored(action.target, key.digest)
        if (
            record is not None
            and self._is_valid(record, action, key)
            and all(map(self._store.holds, record.files.values()))
            and self._is_trusted(record)
        ):
            return record
        record = read_shared(key.digest)
        if record is None or not self._is_valid(record, action, key, shared=True):
            return None
        if self._remote is None or not self._is_trusted(record):
            return None
        with self._tolerant(), self._store.lock(shared=True):
            if self._remote.fetch(record.files.values(), self._store):
                self._store.write_action(record)
                return record
        return None

    def _read_shared(self, action: Action, key: str) -> ActionRecord | None:
        if self._remote is None or action.measures:  # figures of other machines are not ours
            return None
        return self._remote.read_action(action.target, key)

    def fetch(self, record: ActionRecord, tree: Path) -> bool:
        """Copy the outputs of a record into an empty folder, False if one is damaged."""
        try:
            for name, file in record.files.items():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                self._store.fetch(file, tree / name)
        except (DamagedError, OSError) as error:
            text = f"cannot restore {record.target} from the store {self._store.folder}: {error}"
            self._warn("fetch", f"{text}; it is rebuilt")
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
            for name, file in record.files.items():
                if not self._store.put(self._build / name, file):
                    return  # overwritten meanwhile, as the next build will notice
            outputs = {name: file for name, file in record.outputs.items() if action.owns(name)}
            for stored in [record, *([replace(record, key=names)] if names else [])]:
                self._store.write_action(stored)
                if not share or self._remote is None:
                    continue
                shared: ActionRecord | None = replace(stored, outputs=outputs)
                if self._signer is not None and self._remote.is_writable:
                    shared = self._signer.sign_record(replace(stored, outputs=outputs))
                if shared is not None:  # the signer has warned
                    self._remote.push(shared, self._store)

    def signer(self, record: ActionRecord) -> str:
        """Find the public key of a record's verified signature, or ""."""
        if not record.origin:
            return BUILT_HERE
        with suppress(SignatureError):
            return self._trust.signer(record) if self._trust.is_active else ""
        return ""

    def _is_trusted(self, record: ActionRecord) -> bool:
        if not record.origin or not self._trust.is_active:
            return True
        try:
            self._trust.signer(record)
        except SignatureError as error:
            used = self._trust.tolerates(error)
            text = f"the shared record of {record.target} {with_hint(error.problem, error.remedy)}"
            self._warn(f"trust {record.target}", f"{text}; {'used anyway' if used else 'ignored'}")
            return used
        return True

    def _stored(self, target: str, key: str) -> ActionRecord | None:
        try:
            return self._store.read_action(target, key)
        except StageError as error:
            self._warn("record", str(error))
            return None

    def accepts(self, action: Action, record: ActionRecord) -> bool:
        """Check the outputs and the signature of another machine's record, whatever its key."""
        return self._has_own_outputs(record, action, shared=True) and self._is_trusted(record)

    def _is_valid(
        self, record: ActionRecord, action: Action, key: ActionKey, *, shared: bool = False
    ) -> bool:
        """Compare a record with the key and the target's outputs."""
        if record.parts.items() > key.parts.items():
            return False  # names what was read; see ``find_with_reads``
        if record.parts != key.parts:
            self._warn(
                "parts", f"a stored record of {action.target} does not match its key; ignored"
            )
            return False
        is_whole = self._has_own_outputs(record, action, shared=shared)
        return is_whole and record.status in (PASSED, UNAVAILABLE)

    def _has_own_outputs(self, record: ActionRecord, action: Action, *, shared: bool) -> bool:
        """Check that a record names all files of its target, and no others.

        A local record may name more files in the target's folders. A ``shared`` one may not, as
        they may also hold files of other targets, unless the folder itself is an output.
        """
        declared = {ref.path for ref in action.outputs.values()}
        folders = {PurePosixPath(name).parent for name in declared}
        strange = [*declared - record.outputs.keys()]
        for name in record.outputs.keys() - declared:
            path = PurePosixPath(name)
            inside = not shared and any(folder in path.parents for folder in folders)
            if not (inside or action.owns(name)) or path.is_absolute() or ".." in path.parts:
                strange.append(name)
        strange += missing_outputs(action, record.status, record.outputs)
        if strange:
            problem = f"has other outputs than it should: {shown(strange[0])}"
            self._warn("outputs", f"a stored record of {action.target} {problem}; ignored")
        return not strange

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


def _reads_of(record: ActionRecord, key: ActionKey) -> Reads:
    """List the reads in a record with otherwise equal parts, none if they cannot be followed."""
    reads = {
        label: record.parts[label].partition(" ")[2] if label.startswith(READ) else ""
        for label in sorted(record.parts.keys() - key.parts.keys())
    }
    return reads if all(map(is_followed, reads)) else {}


def is_restorable(store: Store, ledger: Ledger, action: Action, key: ActionKey) -> bool:
    """Look for the outputs of a key in the store, without writing anything."""
    if ledger.is_forgotten(action.target) or not store.has_actions():
        return False
    try:
        record = read_record(store.action_path(key.digest), action.target, key.digest)
    except (OSError, RecordError):
        return False
    return not missing_outputs(action, record.status, record.outputs) and all(
        map(store.holds, record.files.values())
    )


def store_folder(state: Path) -> Path:
    """Locate the store: BUILDSYS_STORE or inside the state folder."""
    return state.parent / (os.environ.get("BUILDSYS_STORE") or state / "store")


@dataclass(frozen=True)
class PlannedBuilds:
    """Targets with the parts of their keys from a repository."""

    parts: Mapping[str, Parts]
    after: Mapping[str, tuple[str, ...]]  # target -> targets whose outputs it reads

    def matching(self, records: RecordsOf) -> set[tuple[str, str]]:
        """List target and key of the restorable builds of all targets.

        Their inputs must be outputs of matching builds upstream.
        """

        @cache
        def builds(target: str) -> list[ActionRecord]:
            made = {
                (f"{_INPUT}{path}", file.digest)
                for name in self.after[target]
                for record in builds(name)
                for path, file in record.files.items()
            }
            return [
                record
                for record in records(target)
                if _select(record.parts) == self.parts[target]
                and all(
                    part in made
                    for part in record.parts.items()
                    if part[0].startswith(_INPUT) and part[1] != ABSENT
                )
            ]

        return {(record.target, record.key) for target in self.parts for record in builds(target)}


def planned_builds(
    root: Path, build: Path, actions: Mapping[str, Action], code: Sequence[str] = ()
) -> PlannedBuilds:
    """Plan the builds of ``actions`` in the project at ``root``.

    Manifest fields, sources and the chain of inputs are compared. Versions
    of libraries, devices and buildsys itself are not: builds from other machines count as well.

    Raises: StageError: a source cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="buildsys-") as folder:
        db = StateDb(Path(folder) / "state.db")
        keys = KeyBuilder(root, build, DigestCache(db), db, code=code)
        parts = {
            target: _select(keys.build(action, from_repository=True).parts)
            for target, action in actions.items()
        }
        db.close()
    return PlannedBuilds(parts, {target: action.after for target, action in actions.items()})


def _select(parts: Mapping[str, str]) -> Parts:
    return frozenset(
        part for part in parts.items() if part[0].partition(":")[0] in _FROM_REPOSITORY
    )
