from __future__ import annotations

from pathlib import Path

import pytest

from buildsys.store.line_checksums import LineMemo, first_changed_line
from buildsys.store.state_db import StateDb


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("a\nb\nc\n", "a\nB\nc\n", 2),
        ("a\nb\n", "x\na\nb\n", 1),
        ("a\nb\n", "a\nb\nc\n", 3),
        ("a\nb\nc\n", "a\nb\n", 3),
        ("a\nb", "a\nb\n", 3),
        ("a", "", 1),
        ("a\nb", "a", 1),
        ("", "a", 1),
        ("a\nb\n", "a\nb\n", None),
    ],
)
def test_the_first_line_that_differs_is_told(
    tmp_path: Path, old: str, new: str, line: int | None
) -> None:
    file, db = tmp_path / "a.py", StateDb(tmp_path / "state.db")
    file.write_text(old)
    LineMemo(db).keep("digest", file)
    file.write_text(new)
    assert LineMemo(db).first_change("digest", file) == line
    (tmp_path / "old").write_text(old)
    assert first_changed_line(tmp_path / "old", file) == line


@pytest.mark.parametrize("content", [b"a\0b", b"a\n" * 30_000, b"x" * (2 << 20)])
def test_of_data_no_lines_are_kept(tmp_path: Path, content: bytes) -> None:
    file, db = tmp_path / "weights.bin", StateDb(tmp_path / "state.db")
    file.write_bytes(content)
    LineMemo(db).keep("digest", file)
    assert db.read("SELECT count(*) FROM source_lines") == [(0,)]
    assert LineMemo(db).first_change("digest", file) is None


def test_a_file_that_is_gone_or_never_kept_has_no_line(tmp_path: Path) -> None:
    file, db = tmp_path / "a.py", StateDb(tmp_path / "state.db")
    file.write_text("a")
    LineMemo(db).keep("digest", file)
    file.unlink()
    assert LineMemo(db).first_change("digest", file) is None
    assert LineMemo(db).first_change("other", file) is None
    LineMemo(db).keep("absent", file)


def test_the_same_content_is_kept_once_and_small(tmp_path: Path) -> None:
    file, db = tmp_path / "a.py", StateDb(tmp_path / "state.db")
    file.write_text("x = 1\n" * 200)
    for _ in range(3):
        LineMemo(db).keep("digest", file)
    assert db.read("SELECT count(*), sum(length(lines)) FROM source_lines") == [(1, 201 * 4)]


def test_the_oldest_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buildsys.store.line_checksums._KEPT_FILES", 5)
    file, db = tmp_path / "a.py", StateDb(tmp_path / "state.db")
    file.write_text("x")
    memo = LineMemo(db)
    for number in range(12):
        memo.keep(str(number), file)
    assert [row[0] for row in db.read("SELECT digest FROM source_lines ORDER BY seq")] == [
        "7",
        "8",
        "9",
        "10",
        "11",
    ]


def test_a_damaged_row_has_no_line(tmp_path: Path) -> None:
    file, db = tmp_path / "a.py", StateDb(tmp_path / "state.db")
    file.write_text("a\nb")
    for number, lines in enumerate((None, "text", b"", b"abc")):
        db.write([("INSERT INTO source_lines (digest, lines) VALUES (?, ?)", (str(number), lines))])
        assert LineMemo(db).first_change(str(number), file) in (None, 1)
