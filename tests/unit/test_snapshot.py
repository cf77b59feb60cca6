from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tiny_project import EXPORT, actions

from buildsys.graph.action import Action
from buildsys.snapshot import Surveyor
from buildsys.store.digest import DigestMemo
from buildsys.store.ledger import ImportMemo
from buildsys.store.state import StateDb


@pytest.fixture
def db(tmp_path: Path) -> Iterator[StateDb]:
    found = StateDb(tmp_path / "state" / "state.db")
    (tmp_path / "state").mkdir()
    yield found
    found.close()


def parts(root: Path, db: StateDb, action: Action | None = None) -> Mapping[str, str]:
    action = action or actions()[EXPORT]
    surveyor = Surveyor(root, root / "build", DigestMemo(db), ImportMemo(db))
    return surveyor.snapshot(action).parts


def test_a_module_on_the_module_path_counts_with_its_sources(
    tmp_path: Path, db: StateDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "loose.py").write_text("import loose_unrelated\n")
    (library / "loose_unrelated.py").write_text("")
    (tmp_path / "net.py").write_text("import loose\n")
    monkeypatch.syspath_prepend(library)
    importlib.invalidate_caches()
    before = parts(tmp_path, db)
    assert {"source:net.py", "source:loose.py"} <= before.keys()
    (library / "loose.py").write_text("x = 1\n")
    after = parts(tmp_path, db)
    assert {label for label in before if before[label] != after[label]} == {"source:loose.py"}


def test_a_variable_that_user_code_reads_counts_and_is_not_kept(
    tmp_path: Path, db: StateDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.py").write_text("import os\ntoken = os.environ.get('SOME_TOKEN')\n")
    monkeypatch.delenv("SOME_TOKEN", raising=False)
    assert parts(tmp_path, db)["env:SOME_TOKEN"] == "unset"
    values = set()
    for token in ("", "secret-1", "secret-2", "\udcff"):
        monkeypatch.setenv("SOME_TOKEN", token)
        values.add(parts(tmp_path, db)["env:SOME_TOKEN"])
    assert len(values) == 4
    assert not any("secret" in value for value in values)


def test_a_library_that_user_code_imports_counts(tmp_path: Path, db: StateDb) -> None:
    (tmp_path / "net.py").write_text("import yaml, json, pytest\n")
    labels = {label for label in parts(tmp_path, db) if label.startswith("tool:")}
    assert {"tool:pyyaml", "tool:pytest", "tool:pluggy"} <= labels
    assert not {"tool:json", "tool:torch"} & labels


def test_a_weights_file_that_is_no_archive_counts_by_its_bytes(tmp_path: Path, db: StateDb) -> None:
    from dataclasses import replace

    action = replace(actions()[EXPORT], weights={"w.pth": None}, sources=())
    assert parts(tmp_path, db, action)["weights:w.pth"] == "absent"
    seen = set()
    for text in ("one", "two"):
        (tmp_path / "w.pth").write_text(text)
        seen.add(parts(tmp_path, db, action)["weights:w.pth"])
    assert len(seen) == 2
    assert not any(value.startswith("tensors:") for value in seen)


def test_a_sha256_is_in_the_key_only_where_the_file_has_another(tmp_path: Path, db: StateDb) -> None:
    from dataclasses import replace
    from hashlib import sha256

    (tmp_path / "w.pth").write_text("weights")

    def with_digest(digest: str | None) -> Mapping[str, str]:
        options = {"source": {"weights": {"file": "w.pth", "sha256": digest}}}
        return parts(tmp_path, db, replace(actions()[EXPORT], options=options, weights={"w.pth": digest}, sources=()))

    right, wrong = sha256(b"weights").hexdigest(), "a" * 64
    assert with_digest(None) == with_digest(right)
    assert with_digest(wrong)["config:source.weights.sha256"] == f"{wrong}, which the file does not have"
