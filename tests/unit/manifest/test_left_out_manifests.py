"""Loading a project without its broken manifests."""

import pytest
from manifest_files import ProjectFolder

from buildsys.cli.session import BuildSession
from buildsys.errors import ManifestErrors
from buildsys.project.load import broken_manifests, load_project


@pytest.mark.parametrize(
    "text", ["modle: bad\n", "model: [\n", "", "\0", "model: bad\nextends: missing.yaml\n"]
)
def test_a_broken_manifest_is_left_out_with_its_errors(project: ProjectFolder, text: str) -> None:
    project.model()
    project.write("configs/models/bad.yaml", text)
    loaded = load_project(project.root)
    assert list(loaded.models) == ["net"]
    assert list(loaded.broken) == ["configs/models/bad.yaml"]
    errors = [str(error) for error in loaded.broken["configs/models/bad.yaml"]]
    assert errors == project.errors()


def test_a_broken_base_leaves_out_every_manifest_that_extends_it(project: ProjectFolder) -> None:
    project.write("configs/models/_base.yaml", "exprot: {opset: 17}\n")
    project.model("extends: _base.yaml", name="a")
    project.model("extends: _base.yaml", name="b")
    project.model()
    loaded = load_project(project.root)
    assert list(loaded.models) == ["net"]
    assert list(loaded.broken) == ["configs/models/a.yaml", "configs/models/b.yaml"]


def test_neither_of_two_models_of_one_name_is_built(project: ProjectFolder) -> None:
    project.model()
    project.model(name="other")
    project.write("configs/models/z.yaml", (project.root / "configs/models/net.yaml").read_bytes())
    loaded = load_project(project.root)
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
        load_project(project.root)


def test_a_wrong_default_leaves_out_every_manifest(project: ProjectFolder) -> None:
    project.model()
    project.settle()
    load_project(project.root)  # into the cache
    project.write("configs/project.yaml", "defaults: {exprot: {}}\n")
    loaded = load_project(project.root)
    assert (loaded.models, list(loaded.broken)) == ({}, ["configs/models/net.yaml"])


@pytest.mark.parametrize(
    ("names", "is_left_out"),
    [
        ([], True), (["build"], True), (["verify"], True), (["*"], True), (["ver*"], True),
        (["*:ort"], True), (["b*"], True), (["verify:b*"], True),
        (["a"], False), (["verify:a"], False), (["verify:a*"], False), (["a:ort", "a*"], False),
    ],
)  # fmt: skip
def test_a_question_about_other_models_has_no_errors(
    project: ProjectFolder,
    names: list[str],
    is_left_out: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    project.model(name="a")
    project.model("exprot: {opset: 17}\n", name="b")
    session = BuildSession.read_only(project.root, names)
    assert session.exit_code == (3 if is_left_out else 0)
    errors = capsys.readouterr().err
    assert errors.startswith("ERROR: configs/models/b.yaml:") == is_left_out
    assert session.targets_of("export:a")
    for name in ("b", "export:b", "b:ort", "b:*"):
        with pytest.raises(ManifestErrors, match="exprot"):
            session.targets_of(name)
    assert session.targets_of("bb") == []
    assert not (project.root / ".buildsys").exists()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("model: net\nexprot: {}", ["net", "file"]),
        ("exprot: {}\nmodel:  'net'  # mine\r\nx: [", ["net", "file"]),
        ('model: "n-{export.opset}-x"\nexprot: {}', ["n-17-x", "file"]),
        ("model: net\nmatrix: {export.opset: [17, 18]}\nexprot: {}", ["net-17", "file"]),
        ("\0", ["file"]),
    ],
)
def test_a_broken_manifest_is_found_by_its_model(
    project: ProjectFolder, text: str, names: list[str]
) -> None:
    project.write("configs/models/file.yaml", text)
    loaded = load_project(project.root)
    for name in names:
        assert [*broken_manifests(loaded, name)] == ["configs/models/file.yaml"], name
    assert broken_manifests(loaded, "ne") == broken_manifests(loaded, "other") == {}
