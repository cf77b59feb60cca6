"""Random changes of cache records and ledger rows.

They never fail a build, and never make wrong content count as up to date.
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from checkouts import Checkout
from document_mutations import STRANGE, damaged, mutated, seeds
from tiny_project import ALL, ENGINE, EXPORT, make_checker, make_executor

from buildsys.execution.provenance import ProvenanceSigner
from buildsys.store.ledger import Ledger
from buildsys.store.signatures import NO_POLICY, SigningKey, TrustPolicy, generate_key
from buildsys.store.state_db import ReadOnlyStateDb

Clone = Callable[[str], Path]
TARGETS = [EXPORT, ENGINE]
CONTENTS = {
    "m/export/model.onnx": "opset 17: width = 1 ",
    "m/engine/e/engine.bin": "engine of opset 17: width = 1 ",
}
COLUMNS = {
    "records": [
        "key",
        "parts",
        "outputs",
        "status",
        "started",
        "seconds",
        "reason",
        "hint",
        "figures",
        "log",
    ],
    "history": ["key", "status", "started", "seconds", "reason", "why"],
}


def contents(root: Path) -> dict[str, str]:
    found = {name: root / "build" / name for name in CONTENTS}
    return {name: path.read_text() for name, path in found.items() if path.exists()}


def fuzz_shared_records(
    clone: Clone, shared: Path, tmp_path: Path, draws: Iterator[random.Random]
) -> None:
    """Restore from a shared cache with changed records, with and without signatures."""
    key = tmp_path / "key.pem"
    trust = TrustPolicy([generate_key(key)])
    Checkout(clone("one"), shared, signer=ProvenanceSigner(SigningKey(key), print)).build(*TARGETS)
    expected = contents(tmp_path / "one")
    assert len(expected) == len(CONTENTS)
    records = {path: path.read_bytes() for path in shared.glob("actions/*/*.json")}
    two = clone("two")
    for number, draw in enumerate(draws):
        for path, content in records.items():
            if draw.random() < 0.2:
                path.write_bytes(damaged(content, draw))
                continue
            body = json.dumps(mutated(json.loads(content.split(b"\n")[1]), draw)).encode()
            path.write_bytes(blake3(body).hexdigest().encode() + b"\n" + body)
        signed = number % 2 == 0
        policy = trust if signed else NO_POLICY
        checkout = Checkout(two, shared, mode="read-only", trust=policy)
        outcomes = checkout.build(*TARGETS)
        assert {outcome.status for outcome in outcomes.values()} == {"passed"}
        assert all(warning.isprintable() for warning in checkout.warnings)
        assert len(checkout.warnings) <= len(TARGETS)
        found = contents(two)
        assert found.keys() == expected.keys()
        if signed:
            assert found == expected
        for folder in ("build", ".buildsys"):
            shutil.rmtree(two / folder)


def fuzz_ledger_rows(root: Path, draws: Iterator[random.Random]) -> None:
    """Check and build with changed rows, and sometimes a changed output."""
    state, build = root / ".buildsys", root / "build"
    executor, _ = make_executor(root)
    for target in ALL:
        executor.run(target)
    executor.close()
    expected = contents(root)
    shutil.copytree(root, whole := root.with_name("whole"))
    for draw in draws:
        with closing(sqlite3.connect(state / "state.db")) as db, db:
            (table,) = draw.choices(["records", "history"], [4, 1])
            for _ in range(draw.randint(1, 3)):
                column, target = draw.choice(COLUMNS[table]), draw.choice(ALL)
                db.execute(
                    f"UPDATE OR REPLACE {table} SET {column} = ? WHERE target = ?",
                    (changed_value(db, table, column, target, draw), target),
                )
        if draw.random() < 0.5:
            name = draw.choice(sorted(CONTENTS))
            draw.choice([lambda p: p.write_text("wrong"), lambda p: p.unlink()])(build / name)
        ledger = Ledger(ReadOnlyStateDb(state / "state.db"))
        checker = make_checker(root)
        executor, _ = make_executor(root)
        for target in ALL:
            ledger.records(target)
            ledger.history(target)
            assert all(str(reason) for reason in checker.examine(executor._actions[target]).reasons)
            if not executor.is_fresh(target):
                assert executor.run(target).status in ("passed", "unavailable")
        executor.close()
        assert contents(root) == expected
        shutil.rmtree(root)
        shutil.copytree(whole, root)


def changed_value(
    db: sqlite3.Connection, table: str, column: str, target: str, draw: random.Random
) -> Any:
    """Return another value for a column, valid for SQLite."""
    row = db.execute(f"SELECT {column} FROM {table} WHERE target = ?", (target,)).fetchone()
    value = row[0] if row else None
    if column in ("parts", "outputs", "figures", "why") and draw.random() < 0.8:
        try:
            return json.dumps(mutated(json.loads(value), draw))
        except (ValueError, TypeError):
            return ""
    value = draw.choice([one for one in STRANGE if not isinstance(one, (list, dict))])
    if isinstance(value, int):
        return max(min(value, 2**63 - 1), -(2**63))
    if isinstance(value, str):
        encoded = value.encode("utf-8", "surrogatepass")
        return encoded if draw.random() < 0.3 else encoded.decode("utf-8", "replace")
    return value


def test_changed_shared_records(clone: Clone, shared: Path, tmp_path: Path) -> None:
    fuzz_shared_records(clone, shared, tmp_path, seeds(0, 2.0))


def test_changed_ledger_rows(root: Path) -> None:
    fuzz_ledger_rows(root, seeds(0, 2.0))


@pytest.mark.fuzz
def test_changed_shared_records_for_longer(clone: Clone, shared: Path, tmp_path: Path) -> None:
    fuzz_shared_records(clone, shared, tmp_path, seeds(1000, 25.0))


@pytest.mark.fuzz
def test_changed_ledger_rows_for_longer(root: Path) -> None:
    fuzz_ledger_rows(root, seeds(1000, 25.0))
