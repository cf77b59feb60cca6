"""Loads of single models: other manifests are neither resolved nor checked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from manifest_files import NET, ProjectFolder

from buildsys.errors import ManifestErrors
from buildsys.manifest import project as loading
from buildsys.manifest.manifest_cache import Cache, Entry
from buildsys.manifest.project import load_project


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the manifests resolved by loads."""
    files: list[str] = []
    original = loading._Load._resolve

    def record(self: loading._Load, file: Path, cache: Cache) -> Entry | None:
        files.append(file.name)
        return original(self, file, cache)

    monkeypatch.setattr(loading._Load, "_resolve", record)
    return files


def load(project: ProjectFolder, *names: str) -> list[str]:
    """Return the models found by a load of single models."""
    return list(load_project(project.root, wanted=names).models)


def test_a_manifest_with_another_name_is_not_resolved(
    project: ProjectFolder, resolved: list[str]
) -> None:
    for name in ("a", "ab", "a-b", "b"):
        project.model(name=name)
    assert load(project, "ab") == ["ab"]
    assert resolved == ["project.yaml", "engines.yaml", "ab.yaml"]
    assert not (project.root / ".buildsys").exists()


@pytest.mark.parametrize(
    "declaration",
    [
        "model: net",
        "model: net  # 1-2 §",
        "# é\nmodel: net",
        "# licence\n\n---\nmodel: net",
        "\ufeffmodel: net",
        "model: net\r",
        'model: "net"',
        r'"model": "n\x65t"',
        "description: model\nmodel: net",
        "? model\n: net",
        "extends: ../base.yaml\nmodel: net",
        "description: &name net\nmodel: *name",
        "model: n{description}\ndescription: et",
        "# \u2028description: other\nmodel: net",
        "#" * 5000 + "\nmodel: net",
    ],
)
def test_every_spelling_of_a_name_is_found(project: ProjectFolder, declaration: str) -> None:
    project.write("configs/base.yaml", "model: base\n")
    text = NET.replace("model: net", declaration)
    project.write("configs/models/other.yaml", text.encode())
    project.model(name="unrelated")
    assert load(project, "net") == ["net"]


def test_a_matrix_and_placeholders_make_names(project: ProjectFolder, resolved: list[str]) -> None:
    project.write("configs/base.yaml", "matrix: {export.opset: [13, 17]}\n")
    project.model("extends: ../base.yaml\n", name="net")
    text = NET.replace("model: net", "model: op{export.opset}-net") + "export: {opset: 15}\n"
    project.write("configs/models/placeholder.yaml", text)
    project.model(name="network")
    assert load(project, "net-17") == ["net-13", "net-17"]
    assert load(project, "op15-net") == ["op15-net"]
    assert load(project, "net") == ["net-13", "net-17"]
    assert "network.yaml" not in resolved


def test_a_broken_manifest_fails_only_loads_of_its_models(project: ProjectFolder) -> None:
    project.model("exprot: {opset: 17}\n", name="a")
    project.model(name="b")
    project.write("configs/models/c.yaml", "model: [")
    os.mkfifo(project.root / "configs/models/d.yaml")
    assert load(project, "b") == ["b"]
    with pytest.raises(ManifestErrors, match=r"a\.yaml:6:1.*exprot"):
        load(project, "b", "a")
    assert {error.split(":")[0] for error in project.errors()} == {
        f"configs/models/{name}.yaml" for name in "acd"
    }


def test_broken_shared_files_fail_every_load(project: ProjectFolder) -> None:
    project.model(name="a")
    project.write("configs/engines.yaml", "ort: {backend: onnxrutime}\n")
    with pytest.raises(ManifestErrors, match="onnxrutime"):
        load(project, "a")


def test_a_name_declared_twice_is_reported(project: ProjectFolder) -> None:
    project.model(name="a")
    project.write("configs/models/b.yaml", NET.replace("model: net", "# copy\nmodel: a"))
    with pytest.raises(ManifestErrors, match='model "a" is already declared in'):
        load(project, "a")


def test_cached_manifests_are_not_resolved(project: ProjectFolder, resolved: list[str]) -> None:
    for name in "ab":
        project.model(name=name)
    project.settle()
    project.load()
    project.model("export: {opset: 13}\n", name="b")
    resolved.clear()
    models = load_project(project.root, wanted=["b"]).models
    assert models["b"].data["export"]["opset"] == 13
    assert resolved == ["b.yaml"]
    resolved.clear()
    assert load(project, "a") == ["a"]
    assert resolved == []
