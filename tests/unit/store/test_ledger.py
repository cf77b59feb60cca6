from __future__ import annotations

from dataclasses import replace

from buildsys.store.ledger import (
    FAILED,
    KEEP_HISTORY,
    KEEP_RECORDS,
    ActionRecord,
    HistoryEntry,
    Ledger,
    OutputFile,
)
from buildsys.store.state_db import StateDb

RECORD = ActionRecord(
    target="export:m",
    key="k1",
    parts={"config:export.opset": "17"},
    outputs={"m/export/model.onnx": OutputFile("d1", 12), "m/export/model.onnx.data": None},
    status="passed",
    started="2026-01-02T03:04:05Z",
    seconds=1.5,
    figures={"nodes": 3},
    log="build/m/export/export.log",
)


def test_a_record_survives_a_round_trip(db: StateDb) -> None:
    Ledger(db).add(RECORD)
    ledger = Ledger(StateDb(db.path))
    assert ledger.lookup("export:m", "k1") == RECORD
    assert ledger.lookup("export:m") == RECORD
    assert ledger.outputs("export:m", "k1") == ("passed", RECORD.outputs)
    assert ledger.owned("export:m") == {"m/export/model.onnx"}


def test_a_record_counts_for_its_target_and_key_only(db: StateDb) -> None:
    ledger = Ledger(db)
    ledger.add(RECORD)
    assert ledger.lookup("export:m", "k2") is None
    assert ledger.lookup("export:other", "k1") is None
    assert ledger.lookup("export:other") is None


def test_the_latest_is_the_one_written_last_even_under_an_old_key(db: StateDb) -> None:
    ledger = Ledger(db)
    for key in ("k1", "k2", "k1"):
        ledger.add(replace(RECORD, key=key))
    assert ledger.lookup("export:m").key == "k1"
    assert ledger.lookup("export:m", "k2").key == "k2"
    assert [run.key for run in ledger.history("export:m")] == ["k1", "k2", "k1"]


def test_forgetting_drops_records_but_not_ownership(db: StateDb) -> None:
    ledger = Ledger(db)
    ledger.add(RECORD)
    ledger.forget("export:m")
    assert ledger.lookup("export:m") is None
    assert ledger.owned("export:m") == {"m/export/model.onnx"}
    assert len(ledger.history("export:m")) == 1


def test_a_failure_is_in_the_history_without_a_record(db: StateDb) -> None:
    ledger = Ledger(db)
    ledger.add(RECORD)
    ledger.add_run(
        HistoryEntry("export:m", "k2", FAILED, "2026", 1.0, "numbers differ"),
        ["m/export/export.json"],
    )
    assert ledger.lookup("export:m", "k2") is None
    assert ledger.history("export:m", limit=1)[0].reason == "numbers differ"
    assert ledger.owned("export:m") == {"m/export/export.json"}


def test_a_file_has_one_owner(db: StateDb) -> None:
    ledger = Ledger(db)
    ledger.claim("a", ["x", "y"])
    ledger.claim("b", ["y"])
    assert (ledger.owned("a"), ledger.owned("b")) == ({"x"}, {"y"})


def test_old_records_and_history_are_pruned_per_target(db: StateDb) -> None:
    ledger = Ledger(db)
    ledger.add(replace(RECORD, target="export:other"))
    for number in range(KEEP_HISTORY + 5):
        ledger.add(replace(RECORD, key=f"k{number}"))
    newest = KEEP_HISTORY + 4
    assert ledger.lookup("export:m", f"k{newest - KEEP_RECORDS + 1}") is not None
    assert ledger.lookup("export:m", f"k{newest - KEEP_RECORDS}") is None
    assert len(ledger.history("export:m", limit=1000)) == KEEP_HISTORY
    assert ledger.lookup("export:other") is not None


def test_a_record_that_cannot_be_read_counts_as_absent(db: StateDb) -> None:
    ledger = Ledger(db)
    ledger.add(RECORD)
    db.write([("UPDATE records SET outputs = '[broken'", ())])
    assert ledger.lookup("export:m", "k1") is None
    assert ledger.outputs("export:m", "k1") is None


def test_texts_survive_the_process(db: StateDb) -> None:
    db.set("digest", "[]")
    assert StateDb(db.path).get("digest") == "[]"
    assert db.get("other") is None
