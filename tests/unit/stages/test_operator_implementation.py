"""A backend's copy of a graph with custom operators."""

from pathlib import Path

import onnx
import pytest
from onnx import helper

from buildsys.backends.interface import OperatorUse
from buildsys.stages.operators.implementation import Implementation


def graph(folder: Path, *functions: str) -> Path:
    """Write a graph with local functions of the domain ``own``."""
    bodies = [helper.make_function("own", name, [], [], [], []) for name in functions]
    model = helper.make_model(helper.make_graph([], "g", [], []), functions=bodies)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


PLUGIN = Implementation("tensorrt", (OperatorUse("own::Nms", "plugin", None),))


def test_a_function_that_a_plugin_replaces_is_removed(tmp_path: Path) -> None:
    copy = PLUGIN.graph(graph(tmp_path, "Nms", "Other"), tmp_path / "copy")
    assert [function.name for function in onnx.load(copy).functions] == ["Other"]


@pytest.mark.parametrize("functions", [(), ("Other",)])
def test_a_graph_that_does_not_change_is_not_copied(
    tmp_path: Path, functions: tuple[str, ...]
) -> None:
    file = graph(tmp_path, *functions)
    assert PLUGIN.graph(file, tmp_path / "copy") == file
