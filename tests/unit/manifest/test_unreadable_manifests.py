"""Files that cannot be read as manifests."""

import pytest
from test_manifest_errors import NET


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "1:1: the file is empty"),
        (
            b"model: net\ndescription: caf\xe9\n",
            "2:17: byte 0xe9 at offset 27 is not UTF-8; save the file as UTF-8",
        ),
        (b"x" * 10_000_000, "it has 9 MiB, more than 1 MiB"),
    ],
)
def test_an_unreadable_file(yaml_errors, content, expected):
    (error,) = yaml_errors(content)
    assert error.startswith(NET)
    assert expected in error


def test_a_billion_laughs_is_refused(yaml_errors):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    [error] = yaml_errors("\n".join(lines))  # the expansion of all aliases would never end
    assert "the aliases expand to more than 50000 values" in error


@pytest.mark.parametrize(
    "file", ["models/odd.yaml", "models/_base.yaml", "project.yaml", "engines.yaml"]
)
def test_a_manifest_that_links_out_of_the_project(project, tmp_path_factory, file):
    outside = tmp_path_factory.mktemp("outside") / "secret.yaml"
    outside.write_text("secret: value\n")
    path = project.root / "configs" / file
    path.unlink(missing_ok=True)
    path.symlink_to(outside)
    project.model("extends: _base.yaml\n" if "_base" in file else "")
    (error,) = project.errors()
    assert "leaves the project" in error
    assert "secret" not in error
    inside = project.write("other/inside.yaml", "{}" if "_base" in file else outside.read_bytes())
    path.unlink()
    path.symlink_to(inside)
    if "_base" in file:
        assert list(project.load().models) == ["net"]
    else:
        assert "leaves the project" not in str(project.errors())


def test_a_project_without_models_folder(project):
    (project.root / "configs/models/.keep").unlink()
    (project.root / "configs/models").rmdir()
    assert project.errors() == [
        "configs/models: cannot read the folder: no such file or directory; put one YAML file "
        "per model there"
    ]
