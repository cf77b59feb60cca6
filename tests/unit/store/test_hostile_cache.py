"""A shared cache that anybody may have written to never fails a build."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from blake3 import blake3
from checkouts import Checkout, restored
from fsspec.implementations.memory import MemoryFileSystem
from tiny_project import EXPORT, MODEL

from buildsys.store import record_file
from buildsys.store.object_store import Store

RESULT = "m/export/export.json"
OUTPUT = ["d" * 64, 5]
Clone = Callable[[str], Path]


def forge(shared: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the record of the export, with a matching checksum."""
    for path in shared.glob("actions/*/*.json"):
        stored = json.loads(path.read_bytes().partition(b"\n")[2])
        if stored["target"] == EXPORT:
            body = change(stored) or json.dumps(stored).encode()
            path.write_bytes(blake3(body).hexdigest().encode() + b"\n" + body)


def output(name: str, value: Any = None) -> Callable[[dict[str, Any]], Any]:
    return lambda stored: stored["outputs"].update({name: value})


def field(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda stored: stored.update({name: value})


# test_record_file.py has the other ones
FORGERIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a file of another target": output("m/engine/e/engine.bin", OUTPUT),
    "an undeclared file": output("m/export/other.onnx", OUTPUT),
    "a required output without file": output(MODEL),
    "a result without file": output(RESULT),
    "no time": field("started", "yesterday\x1b[31m"),
    "an unavailable target": field("status", "unavailable"),
    "a newer schema": field("schema", 99),
    "an unknown field": field("\x1b]0;new\x07", 1),
    "a large record": lambda stored: b'{"schema": 1, "log": "' + b"x" * (9 << 20) + b'"}',
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_strange_record_counts_as_absent(clone: Clone, shared: Path, name: str) -> None:
    Checkout(clone("one"), shared).build(EXPORT)
    forge(shared, FORGERIES[name])
    root = clone("two")
    two = Checkout(root, shared, mode="read-only")
    assert restored(two.build(EXPORT)) == []
    assert two.pool.ran == [EXPORT]
    (warning,) = two.warnings
    assert warning.endswith("; ignored")
    assert warning.isprintable()
    assert len(warning) < 500
    (record,) = Store(root / ".buildsys/store").actions()
    assert record.record.origin == ""  # nothing of the strange one was stored
    assert list((root / ".buildsys/store").glob("quarantine/*")) == []


def test_additional_outputs_are_not_shared(clone: Clone, shared: Path) -> None:
    root = clone("one")
    (root / f"do-{EXPORT}").write_text("profile")
    Checkout(root, shared).build(EXPORT)
    assert (root / "build/m/export/a-profile.txt").exists()
    two, other = clone("two"), Checkout(clone("two-b"), shared)
    checkout = Checkout(two, shared)
    assert restored(checkout.build(EXPORT)) == [EXPORT]
    assert not (two / "build/m/export/a-profile.txt").exists()
    assert checkout.warnings == other.warnings == []


class Hostile(MemoryFileSystem):
    """A file system in memory with lies about its objects."""

    protocol = "hostile"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    honest = True
    claimed: int | None = None
    content: Callable[[int], bytes] = staticmethod(lambda size: b"x" * size)
    records = False  # lies about records as well
    served = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("hostile://", "memory://")))

    def _lies(self, path: str) -> bool:
        if self.honest:
            return False
        return "/objects/" in path or (self.records and "/actions/" in path)

    def info(self, path: str, **options: Any) -> Any:
        found = super().info(path, **options)
        return {**found, "size": self.claimed} if self._lies(path) else found

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode != "rb" or not self._lies(path):
            return super()._open(path, mode, **options)
        return Endless()


class Endless:
    """A stream without an end."""

    def read(self, size: int = -1) -> bytes:
        assert size >= 0, "the whole stream is requested"
        content = Hostile.content(size)
        Hostile.served += len(content)
        assert Hostile.served < 64 << 20, "it is read without a limit"
        return content

    def __enter__(self) -> Endless:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def hostile(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a cache that has a record and begins to lie."""
    fsspec.register_implementation("hostile", Hostile, clobber=True)
    Hostile.store.clear()
    one = Checkout(clone("one"), "hostile://cache")
    one.build(EXPORT)
    assert one.warnings == []
    monkeypatch.setattr(Hostile, "served", 0)
    monkeypatch.setattr(Hostile, "honest", False)
    yield "hostile://cache"
    Hostile.store.clear()


def attacked(clone: Clone, url: str) -> Checkout:
    two = Checkout(clone("two"), url, mode="read-only", timeout_s=60.0)
    two.build(EXPORT)
    assert two.pool.ran == [EXPORT]
    assert len(two.warnings) == 1
    return two


@pytest.mark.parametrize("claimed", [40 << 30, 1, 0])
def test_an_object_of_another_size_is_not_read(
    clone: Clone,
    hostile: str,
    monkeypatch: pytest.MonkeyPatch,
    claimed: int,
) -> None:
    monkeypatch.setattr(Hostile, "claimed", claimed)
    attacked(clone, hostile)
    assert Hostile.served == 0


def test_an_endless_record_is_read_up_to_a_limit(
    clone: Clone, hostile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hostile, "records", True)
    assert "is larger than 8 MiB" in attacked(clone, hostile).warnings[0]
    assert Hostile.served == record_file.MAX_SHARED_BYTES + 1


def test_a_record_without_a_required_output_is_not_current(clone: Clone, shared: Path) -> None:
    """Neither in the ledger nor in the local store."""
    root = clone("one")
    Checkout(root, shared).build(EXPORT)
    with sqlite3.connect(root / ".buildsys/state.db") as db:
        ((text,),) = db.execute("SELECT outputs FROM records").fetchall()
        outputs = json.loads(text)
        outputs[MODEL] = None
        db.execute("UPDATE records SET outputs = ?", (json.dumps(outputs),))
    db.close()
    (root / "build" / MODEL).unlink()
    checkout = Checkout(root, shared)
    assert not checkout.executor.up_to_date_status(EXPORT)
    checkout.build(EXPORT)
    assert (root / "build" / MODEL).exists()
