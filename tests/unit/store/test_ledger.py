import calendar
import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from buildsys.store.ledger import (
    FAILED,
    KEEP_HISTORY,
    KEEP_RECORDS,
    ActionRecord,
    HistoryEntry,
    Ledger,
    OutputFile,
    utc_now,
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


@pytest.mark.parametrize("seconds", [float("inf"), -1, 1e300, "x", None])
def test_a_damaged_duration_counts_as_no_record(db: StateDb, seconds: object) -> None:
    ledger = Ledger(db)
    ledger.add(RECORD)
    for table in ("records", "history"):
        db.write([(f"UPDATE {table} SET seconds = ?", (seconds,))])
    assert ledger.lookup("export:m") is None
    assert ledger.history("export:m") == []


def test_the_reads_of_the_last_run_are_kept(db: StateDb) -> None:
    ledger = Ledger(db)
    reads = {"read:a.json": "net.py:3", "env:SCALE": "net.py:4"}
    ledger.add(RECORD, reads=reads)
    ledger.add(replace(RECORD, target="export:other"), reads={"read:b": "b.py:1"})
    assert ledger.reads("export:m") == reads
    assert ledger.reads("export:none") == {}
    ledger.add(RECORD)
    assert ledger.reads("export:m") == {}


@pytest.mark.parametrize(
    "text", [None, 5, "{", "[1]", '"a"', "[" * 100_000], ids=lambda text: str(text)[:5]
)
def test_damaged_reads_count_as_none(db: StateDb, text: object) -> None:
    ledger = Ledger(db)
    ledger.add(RECORD, reads={"read:a.json": "net.py:3"})
    db.write([("UPDATE source_imports SET imports = ? WHERE digest LIKE 'reads/%'", (text,))])
    assert ledger.reads("export:m") == {}


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


def test_texts_survive_the_process(db: StateDb) -> None:
    db.set("digest", "[]")
    assert StateDb(db.path).get("digest") == "[]"
    assert db.get("other") is None


def test_a_run_keeps_its_time_reasons_and_status(db: StateDb) -> None:
    ledger = Ledger(db)
    ledger.add(replace(RECORD, reason="slow"), why="[]")
    ledger.add(RECORD, restored=True)
    assert ledger.history("export:m") == [
        HistoryEntry("export:m", "k1", "restored", RECORD.started, 1.5, "", ""),
        HistoryEntry("export:m", "k1", "passed", RECORD.started, 1.5, "slow", "[]"),
    ]


def test_the_files_of_an_earlier_run_are_no_longer_owned(db: StateDb) -> None:
    ledger = Ledger(db)
    ledger.add(RECORD)
    ledger.add_run(HistoryEntry("export:m", "k", FAILED, "2026", 1.0, "broke"))
    assert ledger.owned("export:m") == {"m/export/model.onnx"}, "a run without files changes none"
    ledger.add(replace(RECORD, outputs={"m/export/other": OutputFile("d", 1)}))
    assert ledger.owned("export:m") == {"m/export/other"}


def test_a_target_is_forgotten_until_it_has_a_new_record(db: StateDb) -> None:
    ledger = Ledger(db)
    assert not ledger.is_forgotten("export:m")
    assert not ledger.has_records("export:m")
    ledger.add(RECORD)
    ledger.add(replace(RECORD, target="export:other"))
    assert ledger.has_records("export:m")
    ledger.forget("export:m")
    assert ledger.is_forgotten("export:m")
    assert not ledger.is_forgotten("export:other")
    assert not ledger.has_records("export:m")
    ledger.add_run(HistoryEntry("export:m", "k", FAILED, "2026", 1.0, "broke"))
    assert ledger.is_forgotten("export:m")
    ledger.add(RECORD)
    assert not ledger.is_forgotten("export:m")


def test_records_are_returned_newest_first_without_unreadable_ones(db: StateDb) -> None:
    ledger = Ledger(db)
    for key in ("k1", "k2", "k3"):
        ledger.add(replace(RECORD, key=key, hint=f"hint {key}", reason=f"reason {key}"))
    db.write([("UPDATE records SET figures = '{' WHERE key = 'k2'", ())])
    found = ledger.records("export:m")
    assert [(each.key, each.hint, each.reason) for each in found] == [
        ("k3", "hint k3", "reason k3"), ("k1", "hint k1", "reason k1"),
    ]  # fmt: skip
    assert [each.key for each in ledger.records("export:m", limit=1)] == ["k3"]
    assert ledger.records("export:m", "k2") == []
    db.write([("UPDATE records SET figures = '{' WHERE key = 'k3'", ())])
    assert ledger.lookup("export:m") is None, "no older record takes the place of the latest"
    assert ledger.outputs("export:m", "k4") is None


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "m/../../x", "m/..", "a\0b"])
def test_paths_outside_the_build_folder_are_not_used(db: StateDb, path: str) -> None:
    ledger = Ledger(db)
    ledger.add(RECORD)
    outputs = json.dumps({"m/fine": None, path: ["d", 1]})
    db.write([("UPDATE records SET outputs = ?", (outputs,))])
    assert ledger.lookup("export:m") is None
    assert ledger.outputs("export:m", "k1") is None
    ledger.claim("export:m", [path, "m/..x/y.."])
    assert ledger.owned("export:m") == {"m/export/model.onnx", "m/..x/y.."}


def test_the_present_time_is_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Etc/GMT+12")
        time.tzset()
        found = utc_now()
    time.tzset()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found)
    assert abs(time.time() - calendar.timegm(time.strptime(found, "%Y-%m-%dT%H:%M:%SZ"))) < 3600


@pytest.mark.parametrize("value", [None, "{", "[" * 100_000])
@pytest.mark.parametrize("column", ["parts", "figures"])
def test_a_record_with_unreadable_json_counts_as_absent(
    db: StateDb, column: str, value: str | None
) -> None:
    ledger = Ledger(db)
    ledger.add(RECORD)
    db.write([(f"UPDATE records SET {column} = ?", (value,))])
    assert ledger.lookup("export:m") is None


def test_a_damaged_cached_text_counts_as_absent(tmp_path: Path) -> None:
    db = StateDb(tmp_path / "state.db")
    db.set("name", '["a"]')
    for value in ("[[[", "", None, 5, '00000000["a"]'):
        db.write([("UPDATE source_imports SET imports = ?", (value,))])
        assert StateDb(tmp_path / "state.db").get("name") is None
    db.set("name", '["ü"]')
    assert StateDb(tmp_path / "state.db").get("name") == '["ü"]'
