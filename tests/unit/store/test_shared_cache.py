import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from checkouts import Checkout, files, restored
from tiny_project import BENCH, ENGINE, EXPORT, REPORT

from buildsys.store.shared_cache import READ_ONLY, SharedCache

ALL = [EXPORT, ENGINE, BENCH, REPORT]
SHARED = [EXPORT, ENGINE, REPORT]  # figures of another machine are not this one's


def test_another_machine_reuses_a_build(clone: Callable[[str], Path], shared: Path) -> None:
    one, two = Checkout(clone("one"), shared), Checkout(clone("two"), shared)
    assert restored(one.build()) == []
    found = two.build(EXPORT, ENGINE)
    assert restored(found) == [EXPORT, ENGINE]
    assert two.pool.ran == []
    assert one.warnings == two.warnings == []
    assert not list(shared.rglob("*.part"))


def test_benchmarks_stay_on_their_machine(clone: Callable[[str], Path], shared: Path) -> None:
    Checkout(clone("one"), shared).build()
    two = Checkout(clone("two"), shared)
    assert restored(two.build(EXPORT, ENGINE, BENCH)) == [EXPORT, ENGINE]
    assert two.pool.ran == [BENCH]


def test_a_read_only_cache_is_never_written(clone: Callable[[str], Path], shared: Path) -> None:
    shared.mkdir()
    Checkout(clone("one"), shared, READ_ONLY).build()
    assert files(shared) == []


@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "record", "path", "other key"])
def test_damage_is_detected_and_repaired(
    clone: Callable[[str], Path], shared: Path, damage: str
) -> None:
    one = clone("one")
    Checkout(one, shared).build(EXPORT)
    model = (one / "build/m/export/model.onnx").read_bytes()
    (record,) = shared.glob("actions/*/*.json")
    holding = next(path for path in shared.glob("objects/*/*") if path.read_bytes() == model)
    if damage == "gone":
        holding.unlink()
    elif damage in ("cut", "flip"):
        holding.write_bytes(model[:-1] + (b"" if damage == "cut" else b"?"))
    elif damage == "record":
        record.write_bytes(record.read_bytes()[:-9])
    else:
        rewrite(record, damage)
    two = Checkout(clone("two"), shared)
    two.build(EXPORT)
    assert two.pool.ran == [EXPORT]
    assert (len(two.warnings) == 1) == (damage != "gone")
    assert not (shared.parent / "outside").exists()
    three = Checkout(clone("three"), shared)  # what was rebuilt has replaced what was damaged
    assert restored(three.build(EXPORT)) == [EXPORT]
    assert three.warnings == []


def rewrite(file: Path, damage: str) -> None:
    """Forge a record with a matching checksum."""
    from blake3 import blake3

    stored = json.loads(file.read_bytes().partition(b"\n")[2])
    if damage == "path":
        name = next(name for name, output in stored["outputs"].items() if output)
        stored["outputs"]["../../outside"] = stored["outputs"].pop(name)
    else:
        stored["parts"]["config:export.opset"] = "99"
    body = json.dumps(stored).encode()
    file.write_bytes(blake3(body).hexdigest().encode() + b"\n" + body)


def test_an_unreachable_cache_costs_one_warning(
    clone: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "a-file").touch()
    one = Checkout(clone("one"), tmp_path / "a-file" / "below")
    one.build()
    assert one.pool.ran == ALL
    assert len(one.warnings) == 1
    assert "this run goes on without it" in one.warnings[0]


def test_a_slow_cache_costs_its_timeout_once(
    clone: Callable[[str], Path], shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = threading.Event()  # a server that does not answer
    monkeypatch.setattr(SharedCache, "_connect", lambda self: silent.wait(600))
    one = Checkout(clone("one"), shared, timeout_s=0.3)
    begun = time.monotonic()
    one.build()
    assert time.monotonic() - begun < 300
    silent.set()
    assert one.pool.ran == ALL
    assert one.warnings == [
        f"the shared cache {shared} did not look up export:m within 0.3 s; "
        "this run goes on without it"
    ]


def test_a_password_is_not_shown(clone: Callable[[str], Path]) -> None:
    one = Checkout(clone("one"), "nosuchprotocol://me:secret@host/path")
    one.build(EXPORT)
    assert "me:***@host" in one.warnings[0]
    assert "secret" not in one.warnings[0]
