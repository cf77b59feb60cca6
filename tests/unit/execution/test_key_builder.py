import importlib
import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from blake3 import blake3
from python_environments import Environment
from tiny_project import ENGINE, EXPORT, actions

from buildsys.execution import action_key
from buildsys.execution.action_key import KeyBuilder
from buildsys.execution.key_parts import FILES
from buildsys.execution.up_to_date_models import action_in, environment_of
from buildsys.plan.action import Action, FileRef, Needs, ToolchainRef
from buildsys.store.file_digests import DigestCache
from buildsys.store.state_db import StateDb
from buildsys.system import versions


def parts(root: Path, db: StateDb, action: Action | None = None) -> Mapping[str, str]:
    action = action or actions()[EXPORT]
    keys = KeyBuilder(root, root / "build", DigestCache(db), db)
    return keys.build(action).parts


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


def test_every_shard_of_an_index_is_in_the_key(tmp_path: Path, db: StateDb) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    index, first, second = (
        folder / name for name in ("m.safetensors.index.json", "1.safetensors", "2.safetensors")
    )
    table = {"weight": "1.safetensors", "bias": "2.safetensors"}
    index.write_text(json.dumps({"weight_map": table}))
    first.write_text("first")
    digest = sha256(index.read_bytes() + b"first" + b"second").hexdigest()
    name = "weights/m.safetensors.index.json"
    action = replace(
        actions()[EXPORT],
        options={"source": {"weights": {"file": name, "sha256": digest}}},
        weights={name: digest},
        sources=(),
    )
    incomplete = parts(tmp_path, db, action)
    assert incomplete["weights:weights/2.safetensors"] == "absent"
    assert incomplete["config:source.weights.sha256"].endswith("which the file does not have")
    second.write_text("second")
    complete = parts(tmp_path, db, action)
    assert "config:source.weights.sha256" not in complete
    second.write_text("altered")
    altered = parts(tmp_path, db, action)
    changed = {label for label, value in altered.items() if complete.get(label) != value}
    assert changed == {"weights:weights/2.safetensors", "config:source.weights.sha256"}
    index.write_text(json.dumps({"weight_map": {"weight": "../../secret.safetensors"}}))
    assert not any("secret" in label for label in parts(tmp_path, db, action))


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


def test_a_stage_in_a_toolchain_depends_on_its_libraries(
    tmp_path: Path, db: StateDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRT_SETTING", "3")
    found = parts(tmp_path, db, _in_toolchain(tmp_path))
    assert {label: value for label, value in found.items() if label.startswith("tool:")} == {
        "tool:tensorrt": "8.6.1",
        "tool:onnx": "absent",
        "tool:plugged": "2.0",
    }
    assert (found["env:NVIDIA_TF32_OVERRIDE"], found["env:TRT_SETTING"]) == ("0", "3")
    assert found["env:A_SETTING"].startswith(
        "set, digest"
    )  # read by the user's file, which counts more


def test_a_stage_with_a_peer_toolchain_depends_on_both(tmp_path: Path, db: StateDb) -> None:
    action = _in_toolchain(
        tmp_path, tools=("python", "numpy"), peer_tools=("python", "numpy", "tensorrt"), sources=()
    )
    found = parts(tmp_path, db, action)
    own = versions.tool_versions(("python", "numpy"))
    assert found["tool:numpy (files)"] == found["tool:trt/numpy (files)"]  # the same wheel
    tools = {label: value for label, value in found.items() if label.startswith("tool:")}
    assert {label: value for label, value in tools.items() if not label.endswith(FILES)} == {
        "tool:python": own["python"],
        "tool:numpy": own["numpy"],
        "tool:tensorrt": "8.6.1",
        "tool:trt/python": own["python"],
        "tool:trt/numpy": own["numpy"],
    }
    assert found["env:trt/NVIDIA_TF32_OVERRIDE"] == "0"
    assert "env:NVIDIA_TF32_OVERRIDE" not in found
    assert action_in(environment_of(action))[0].toolchain == action.toolchain


def builder(root: Path, db: StateDb) -> KeyBuilder:
    return KeyBuilder(root, root / "build", DigestCache(db), db)


def test_an_input_counts_with_its_digest_and_a_required_one_can_be_missing(
    tmp_path: Path, db: StateDb
) -> None:
    action = replace(actions()[ENGINE], target="engine:m:x")
    keys = builder(tmp_path, db)
    before = keys.build(action)
    assert before.target == "engine:m:x"
    assert before.missing == ("m/export/model.onnx",), "the external data is optional"
    labels = {"input:m/export/model.onnx", "input:m/export/model.onnx.data"}
    assert {before.parts[label] for label in labels} == {"absent"}
    assert {label: before.files[label] for label in labels} == dict.fromkeys(labels)
    file = tmp_path / "build/m/export/model.onnx"
    file.parent.mkdir(parents=True)
    file.write_text("graph")
    now = keys.build(action)
    assert now.missing == ()
    found = now.files["input:m/export/model.onnx"]
    assert found is not None
    assert now.parts["input:m/export/model.onnx"] == found.digest == blake3(b"graph").hexdigest()
    assert now.parts["input:m/export/model.onnx.data"] == "absent"


def test_the_changed_file_is_named(tmp_path: Path, db: StateDb) -> None:
    (tmp_path / "net.py").write_text("import blocks\n")
    (tmp_path / "blocks.py").write_text("x = 1\n")
    action = replace(actions()[EXPORT], inputs={"model": FileRef("a:b")}, weights={"w.pth": None})
    keys = builder(tmp_path, db)
    before = keys.build(action)
    assert keys.changed_file(action, before, keys.build(action)) == ""
    (tmp_path / "blocks.py").write_text("x = 2\n")
    now = keys.build(action)
    assert keys.changed_file(action, before, now) == "blocks.py"
    assert keys.changed_file(action, now, before) == "blocks.py"
    (tmp_path / "w.pth").write_text("w")
    assert keys.changed_file(action, now, keys.build(action)) == "w.pth"
    (tmp_path / "build").mkdir()
    (tmp_path / "build/a:b").write_text("x")
    appeared = keys.build(action)
    assert keys.changed_file(action, now, appeared) == "a:b"
    assert keys.changed_file(action, appeared, now) == "a:b"


def test_own_code_counts_with_its_imports(
    tmp_path: Path, db: StateDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "code/buildsys"
    (package / "stages/export").mkdir(parents=True)
    for name in ("__init__.py", "unused.py", "helper.py", "plain.py"):
        (package / name).write_text("")
    (package / "stages/export/__init__.py").write_text("from buildsys import helper\n")
    monkeypatch.setattr(action_key, "_CODE_ROOT", str(tmp_path / "code"))
    names = ("buildsys.stages.export", "buildsys.plain", "json.decoder")
    action = replace(actions()[EXPORT], code=names, sources=())
    keys = builder(tmp_path, db)
    before = keys.build(action)
    code = {label: value for label, value in before.parts.items() if label.startswith("code:")}
    expected = {"stages.export.__init__", "helper", "plain", "__init__"}
    assert set(code) == {f"code:buildsys.{name}" for name in expected}
    text = (package / "stages/export/__init__.py").read_bytes()
    assert code["code:buildsys.stages.export.__init__"] == blake3(text).hexdigest()
    assert keys.changed_file(action, before, before) == ""
    (package / "helper.py").write_text("x = 1\n")
    assert keys.build(action).parts == before.parts, "read once, before any worker starts"
    assert keys.changed_file(action, before, before) == "buildsys.helper"
    after = builder(tmp_path, db).build(action).parts
    assert {label for label in code if after[label] != code[label]} == {"code:buildsys.helper"}


def test_actions_of_one_builder_have_their_own_tools(tmp_path: Path, db: StateDb) -> None:
    keys = builder(tmp_path, db)
    plain = replace(actions()[EXPORT], sources=())
    for tools in (("numpy",), ("onnx",), ("numpy", "onnx")):
        found = keys.build(replace(plain, tools=tools)).parts
        labels = {label for label in found if label.startswith("tool:")}
        expected = {f"tool:{t}" for t in tools}
        assert expected <= labels <= expected | {f"{label}{FILES}" for label in expected}
    assert "device:cpu.model" in keys.build(replace(plain, devices=("cpu",))).parts
    assert "device:cpu.model" not in keys.build(plain).parts


def test_variables_of_the_project_and_of_modules_outside_count(
    tmp_path: Path, db: StateDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "library"
    (library / "outer").mkdir(parents=True)
    (library / "outer/__init__.py").write_text("")
    (library / "outer/inner.py").write_text("import os\nos.environ.get('OUTSIDE')\n")
    (tmp_path / "net.py").write_text("import os\nimport outer.inner\nos.environ.get('INSIDE')\n")
    monkeypatch.syspath_prepend(library)
    importlib.invalidate_caches()
    for name in ("INSIDE", "OUTSIDE"):
        monkeypatch.delenv(name, raising=False)
    key = builder(tmp_path, db).build(actions()[EXPORT])
    assert key.parts["env:INSIDE"] == key.parts["env:OUTSIDE"] == "unset"
    files = {"source:net.py", "source:outer/__init__.py", "source:outer/inner.py"}
    assert files <= key.parts.keys()
    assert files <= key.files.keys()
    (library / "outer/inner.py").write_text("import os\nos.environ.get('OUTSIDE')\nx = 1\n")
    after = parts(tmp_path, db, actions()[EXPORT])
    changed = {label for label in after if after[label] != key.parts.get(label)}
    assert changed == {"source:outer/inner.py"}


def test_a_package_elsewhere_and_the_projects_of_one_name_have_their_own_labels(
    tmp_path: Path, db: StateDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "project/twin/net.py": "import twin.blocks",
        "elsewhere/twin/__init__.py": "from twin import net",
        "elsewhere/twin/net.py": "x = 1",
        "elsewhere/twin/blocks.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    importlib.invalidate_caches()
    action = replace(actions()[EXPORT], sources=("twin/net.py",))
    found = parts(tmp_path / "project", db, action)
    names = ("twin/net.py", "…/twin/__init__.py", "…/twin/blocks.py", "…/twin/net.py")
    assert {f"source:{name}" for name in names} <= found.keys()
    assert found["source:twin/net.py"] != found["source:…/twin/net.py"]


def test_only_needs_that_are_not_met_are_in_the_key(
    tmp_path: Path, db: StateDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = replace(actions()[EXPORT], sources=())
    action = replace(plain, needs=Needs(labels=("lab",)))
    monkeypatch.delenv("BUILDSYS_LABELS", raising=False)
    assert parts(tmp_path, db, action)["needs:machine"] == "the label lab"
    remembered, _ = action_in(environment_of(action))
    assert remembered.needs == action.needs
    monkeypatch.setenv("BUILDSYS_LABELS", "lab")
    assert parts(tmp_path, db, action) == parts(tmp_path, db, plain)


def test_libraries_and_files_that_a_run_has_read_count(tmp_path: Path, db: StateDb) -> None:
    (tmp_path / "data.txt").write_text("1")
    keys, plain = builder(tmp_path, db), replace(actions()[EXPORT], sources=())
    key = keys.build(plain)
    assert keys.with_reads(plain, key, {}) is key
    reads = {"tool:pyyaml": "net.py:1", "read:data.txt": "net.py:2"}
    whole = keys.with_reads(plain, key, reads)
    assert key.parts.items() < whole.parts.items()
    assert whole.parts["tool:pyyaml"] == versions.tool_versions(("pyyaml",))["pyyaml"]
    assert whole.parts["read:data.txt"] == f"{blake3(b'1').hexdigest()} net.py:2"
    assert whole.reads == {**reads, f"tool:pyyaml{FILES}": ""}
    again = keys.with_reads(plain, whole, {})
    assert (again.parts, again.reads) == (key.parts, {})


def test_libraries_that_a_run_in_a_toolchain_has_read_are_its_own(
    tmp_path: Path, db: StateDb
) -> None:
    action = _in_toolchain(tmp_path, sources=())
    keys = builder(tmp_path, db)
    whole = keys.with_reads(action, keys.build(action), {"tool:plugged": "", "tool:numpy": ""})
    assert whole.parts["tool:plugged"] == "2.0"
    (tmp_path / "plugin.py").write_text("import numpy\n")
    sources = keys.build(replace(action, sources=("plugin.py",), tools=())).parts
    assert f"tool:numpy{FILES}" in sources
    assert sources["tool:numpy"] == whole.parts["tool:numpy"]
