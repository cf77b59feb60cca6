from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from python_environments import Environment
from tiny_project import EXPORT, actions

from buildsys.execution import action_key
from buildsys.execution.action_key import KeyBuilder
from buildsys.execution.up_to_date_models import action_in, environment_of
from buildsys.plan.action import Action, ToolchainRef
from buildsys.store.file_digests import DigestCache
from buildsys.store.state_db import StateDb
from buildsys.system import versions


@pytest.fixture
def db(tmp_path: Path) -> Iterator[StateDb]:
    found = StateDb(tmp_path / "state" / "state.db")
    (tmp_path / "state").mkdir()
    yield found
    found.close()


def parts(root: Path, db: StateDb, action: Action | None = None) -> Mapping[str, str]:
    action = action or actions()[EXPORT]
    keys = KeyBuilder(root, root / "build", DigestCache(db), db)
    return keys.build(action).parts


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


def test_a_weights_file_is_identified_by_its_bytes(tmp_path: Path, db: StateDb) -> None:
    action = replace(actions()[EXPORT], weights={"w.pth": None}, sources=())
    assert parts(tmp_path, db, action)["weights:w.pth"] == "absent"
    seen = set()
    for text in ("one", "two"):
        (tmp_path / "w.pth").write_text(text)
        seen.add(parts(tmp_path, db, action)["weights:w.pth"])
    assert len(seen) == 2


def test_a_sha256_is_in_the_key_only_if_the_file_differs(tmp_path: Path, db: StateDb) -> None:
    (tmp_path / "w.pth").write_text("weights")

    def with_digest(digest: str | None) -> Mapping[str, str]:
        options = {"source": {"weights": {"file": "w.pth", "sha256": digest}}}
        return parts(
            tmp_path,
            db,
            replace(actions()[EXPORT], options=options, weights={"w.pth": digest}, sources=()),
        )

    right, wrong = sha256(b"weights").hexdigest(), "a" * 64
    assert with_digest(None) == with_digest(right)
    assert (
        with_digest(wrong)["config:source.weights.sha256"]
        == f"{wrong}, which the file does not have"
    )


def test_a_weights_file_written_while_it_is_digested_has_no_sha256(
    tmp_path: Path, db: StateDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "w.pth"
    file.write_text("first")
    first = sha256(b"first").hexdigest()
    options = {"source": {"weights": {"file": "w.pth", "sha256": first}}}
    fields = {"options": options, "weights": {"w.pth": first}, "sources": ()}
    action = replace(actions()[EXPORT], **fields)  # type: ignore[arg-type]

    def written_meanwhile(path: Path) -> str:
        path.write_text("second")
        return first

    label = "config:source.weights.sha256"
    with monkeypatch.context() as patch:
        patch.setattr(action_key, "sha256_of", written_meanwhile)
        assert parts(tmp_path, db, action)[label] == f"{first}, which the file does not have"
    assert parts(tmp_path, db, action)[label] == f"{first}, which the file does not have"
    file.write_text("first")
    assert label not in parts(tmp_path, db, action)


def _in_toolchain(tmp_path: Path, **changes: object) -> Action:
    environment = Environment(tmp_path / "env", "numpy")
    environment.write("tensorrt-8.6.1.dist-info/RECORD", "")
    environment.write("plugged-2.0.dist-info/METADATA", "Name: plugged\n")
    environment.write("plugged.py", "")
    (tmp_path / "plugin.py").write_text("import os\nimport plugged\nos.environ.get('A_SETTING')\n")
    named = ToolchainRef(
        "trt", "env/bin/python", (("A_SETTING", "{prefix}"), ("NVIDIA_TF32_OVERRIDE", "0"))
    )
    fields = {"tools": ("tensorrt", "onnx"), "environment": ("gpu",), "sources": ("plugin.py",)}
    action = Action("engine:m:e", "engine", "m", "e", {}, {}, {})
    return replace(action, toolchain=named, **{**fields, **changes})  # type: ignore[arg-type]


def test_a_stage_in_a_toolchain_depends_on_its_libraries(tmp_path: Path, db: StateDb) -> None:
    found = parts(tmp_path, db, _in_toolchain(tmp_path))
    assert {label: value for label, value in found.items() if label.startswith("tool:")} == {
        "tool:tensorrt": "8.6.1",
        "tool:onnx": "absent",
        "tool:plugged": "2.0",
    }
    assert found["env:NVIDIA_TF32_OVERRIDE"] == "0"
    assert found["env:A_SETTING"].startswith(
        "set, digest"
    )  # read by the user's file, which counts more


def test_a_stage_with_a_peer_toolchain_depends_on_both(tmp_path: Path, db: StateDb) -> None:
    action = _in_toolchain(
        tmp_path, tools=("python", "numpy"), peer_tools=("python", "numpy", "tensorrt"), sources=()
    )
    found = parts(tmp_path, db, action)
    own = versions.tool_versions(("python", "numpy"))
    assert {label: value for label, value in found.items() if label.startswith("tool:")} == {
        "tool:python": own["python"],
        "tool:numpy": own["numpy"],
        "tool:tensorrt": "8.6.1",
        "tool:trt/python": own["python"],
        "tool:trt/numpy": own["numpy"],
    }
    assert found["env:trt/NVIDIA_TF32_OVERRIDE"] == "0"
    assert "env:NVIDIA_TF32_OVERRIDE" not in found
    assert action_in(environment_of(action)).toolchain == action.toolchain
