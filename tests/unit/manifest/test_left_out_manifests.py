"""Loading a project without its broken manifests."""

import pytest
from manifest_files import ProjectFolder

from buildsys.cli.session import BuildSession
from buildsys.errors import ManifestErrors
from buildsys.project.load import Project, load_project


def load(project: ProjectFolder) -> Project:
    return load_project(project.root, leave_out=True)


@pytest.mark.parametrize(
    "text", ["modle: bad\n", "model: [\n", "", "\0", "model: bad\nextends: missing.yaml\n"]
)
def test_a_broken_manifest_is_left_out_with_its_errors(project: ProjectFolder, text: str) -> None:
    project.model()
    project.write("configs/models/bad.yaml", text)
    loaded = load(project)
    assert list(loaded.models) == ["net"]
    assert list(loaded.broken) == ["configs/models/bad.yaml"]
    errors = [str(error) for error in loaded.broken["configs/models/bad.yaml"]]
    assert errors == project.errors()


def test_a_broken_base_leaves_out_every_manifest_that_extends_it(project: ProjectFolder) -> None:
    project.write("configs/models/_base.yaml", "exprot: {opset: 17}\n")
    project.model("extends: _base.yaml", name="a")
    project.model("extends: _base.yaml", name="b")
    project.model()
    loaded = load(project)
    assert list(loaded.models) == ["net"]
    assert list(loaded.broken) == ["configs/models/a.yaml", "configs/models/b.yaml"]


def test_neither_of_two_models_of_one_name_is_built(project: ProjectFolder) -> None:
    project.model()
    project.model(name="other")
    project.write("configs/models/z.yaml", (project.root / "configs/models/net.yaml").read_bytes())
    loaded = load(project)
    assert list(loaded.models) == ["other"]
    assert sorted(loaded.broken) == ["configs/models/net.yaml", "configs/models/z.yaml"]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("project.yaml", "defautls: {}\n"),
        ("engines.yaml", "ort: {backend: onnxruntime, precison: fp32}\n"),
        ("engines.yaml", "[\n"),
    ],
)
def test_errors_of_shared_files_leave_nothing_to_build(
    project: ProjectFolder, file: str, text: str
) -> None:
    project.model()
    project.write(f"configs/{file}", text)
    with pytest.raises(ManifestErrors, match=f"configs/{file}"):
        load(project)


def test_a_wrong_default_leaves_out_every_manifest(project: ProjectFolder) -> None:
    project.model()
    project.settle()
    load(project)  # into the cache
    project.write("configs/project.yaml", "defaults: {exprot: {}}\n")
    loaded = load(project)
    assert (loaded.models, list(loaded.broken)) == ({}, ["configs/models/net.yaml"])


def test_a_query_of_one_model_needs_no_other_manifest(project: ProjectFolder) -> None:
    project.model(name="a")
    project.model("exprot: {opset: 17}\n", name="b")
    assert BuildSession.read_only(project.root, ["export:a"]).targets_of("export:a")
    with pytest.raises(ManifestErrors, match="exprot"):
        BuildSession.read_only(project.root, ["export:a", "export:b"])
    with pytest.raises(ManifestErrors, match="exprot"):
        BuildSession.read_only(project.root)
    assert not (project.root / ".buildsys").exists()
