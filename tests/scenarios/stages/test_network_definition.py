"""A network defined by hand: the example of its page, and what rebuilds its engine."""

import json
import shutil

import pytest
from example_pages import run_page
from project_folder import REPOSITORY, ProjectFolder

pytest.importorskip("tensorrt_rtx")
PAGE = REPOSITORY / "docs" / "network-definition.md"


def ran(project: ProjectFolder) -> list[str]:
    """Build the engine; return the targets that ran."""
    done = project.doit("engine:small:rtx")
    assert done.code == 0, done.out
    lines = [line.split() for line in done.out.splitlines()]
    return [words[1] for words in lines if words[:1] == ["done"]]


def test_the_example_of_the_page_works(empty_place: ProjectFolder) -> None:
    project = empty_place
    for name in ("dodo.py", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, project.root)
    assert run_page(project, PAGE)
    record = json.loads((project.root / "build/small/engine/rtx/engine.json").read_text())
    assert record["layers"] == {"activation": 1, "convolution": 1, "shuffle": 1}
    assert ran(project) == []
    network = project.root / "plugins/small_torch.py"
    network.write_text(network.read_text() + "\n# another line\n")
    assert ran(project) == ["reference:small"]  # its weights are the same
    defined = project.root / "plugins/small.py"
    defined.write_text(defined.read_text().replace('"relu"', '"activation"'))
    explained = project.buildsys("explain", "engine:small:rtx").out
    assert "plugins/small.py" in explained
    assert ran(project) == ["engine:small:rtx"]
    for command, sentence in (
        ("check", "small has no ONNX graph to compare"),
        ("inspect", "'small' is not the name of one graph; graphs of small: engine:rtx"),
    ):
        refused = project.buildsys(command, "small")
        assert (refused.code, sentence in refused.err) == (3, True), refused.err
    checked = project.buildsys("doctor", "small:rtx")  # no GPU, or not verified on it
    assert "verify:small:rtx" in checked.out, checked.out + checked.err
    assert "validate" not in checked.out
