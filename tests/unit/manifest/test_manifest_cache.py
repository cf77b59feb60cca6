"""A cached load returns the same models and never a stale one."""

import subprocess
import sys

import pytest
from manifest_files import NET, same_state

LAZY = """
import sys
from pathlib import Path
from buildsys.project.load import load_project
names = sorted(load_project(Path(sys.argv[1])).models)
print(*names, *({"pydantic", "yaml"} & sys.modules.keys()))
"""


def _warm(project, resolved):
    project.settle()
    project.load()
    resolved.clear()


def test_a_warm_load_imports_neither_pydantic_nor_yaml(project):
    for number in range(2):
        project.model("engines: [ort-cpu, rtx-fp16]", name=f"net{number:02}")
    project.settle()
    cold = project.load()
    output = subprocess.run(
        [sys.executable, "-c", LAZY, project.root], capture_output=True, text=True, check=True
    ).stdout.split()
    assert output == sorted(cold.models)


def test_a_warm_load_gives_the_same_models(project, resolved):
    project.model("matrix: {export.opset: [13, 17]}\ndescription: -1\n".replace("-1", "x"))
    project.write(
        "configs/models/inf.yaml",
        NET.replace("net", "inf").replace("32]}", "32], data: {constant: -.inf}}"),
    )
    project.settle()
    cold = project.load()
    resolved.clear()
    warm = project.load()
    assert resolved == []
    assert warm.models == cold.models
    assert list(warm.models) == list(cold.models)
    assert warm.models["net-13"].origins["export.opset"] == "configs/models/net.yaml:6"


def test_only_the_changed_manifest_is_resolved(project, resolved):
    for name in "abc":
        project.model(name=name)
    _warm(project, resolved)
    project.model("export: {opset: 13}", name="b")
    assert project.load().models["b"].data["export"]["opset"] == 13
    assert resolved == ["b.yaml"]
    (project.root / "configs/models/a.yaml").unlink()
    project.model(name="d")
    project.settle()
    assert list(project.load().models) == ["b", "c", "d"]
    assert {"a.yaml", "c.yaml"}.isdisjoint(resolved)


def test_a_change_with_equal_size_and_mtime_is_noticed(project, resolved):
    file = project.model("export: {opset: 13}")
    _warm(project, resolved)
    same_state(file, file.read_bytes().replace(b"13", b"14"))
    assert project.load().models["net"].data["export"]["opset"] == 14


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("configs/project.yaml", "defaults: {export: {opset: 13}}"),
        ("configs/models/_base.yaml", "export: {opset: 13}"),
        ("configs/engines.yaml", "ort-cpu: {backend: onnxruntime, intra_op_threads: 3}"),
    ],
)
def test_a_new_or_changed_shared_file_is_noticed(project, resolved, path, text):
    project.write("configs/models/_base.yaml", "bench: {min_samples: 4}")
    project.model("extends: _base.yaml\nengines: [ort-cpu]")
    before = project.load().models["net"].data
    _warm(project, resolved)
    project.write(path, text)
    after = project.load().models["net"].data
    assert after != before
    assert "net.yaml" in resolved


def test_errors_are_repeated_and_valid_files_stay_cached(project, resolved):
    project.model(name="good")
    project.model("export: {opset: 99}", name="bad")
    project.settle()
    first = project.errors()
    resolved.clear()
    assert project.errors() == first
    assert resolved == ["bad.yaml"]


@pytest.mark.parametrize("damage", [b"", b"garbage", b'{"written_by": 1}', b"\xff\xfe", b"[]"])
def test_a_broken_cache_is_replaced(project, resolved, damage):
    project.model()
    _warm(project, resolved)
    file = project.root / ".buildsys/manifests.json"
    file.write_bytes(damage)
    assert project.load().models["net"].data["source"]["torchvision"] == "resnet18"
    assert resolved
    resolved.clear()
    project.load()
    assert resolved == []


def test_the_cache_of_other_code_is_not_used(project, resolved, monkeypatch):
    project.model()
    _warm(project, resolved)
    monkeypatch.setattr("buildsys.manifest.manifest_cache.SCHEMA", "another")
    project.load()
    assert "net.yaml" in resolved


def test_folders_moved_by_the_environment(project, monkeypatch, tmp_path):
    project.model()
    other = tmp_path / "other"
    (other / "models").mkdir(parents=True)
    (other / "models/b.yml").write_text(NET.replace("net", "b"))
    monkeypatch.setenv("BUILDSYS_CONFIGS", "other")
    monkeypatch.setenv("BUILDSYS_BUILD", str(tmp_path / "out"))
    loaded = project.load()
    assert list(loaded.models) == ["b"]
    assert (loaded.configs, loaded.build) == (other, tmp_path / "out")
    monkeypatch.delenv("BUILDSYS_CONFIGS")
    assert list(project.load().models) == ["net"]
