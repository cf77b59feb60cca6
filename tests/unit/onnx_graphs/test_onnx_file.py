"""Files that would expand beyond any memory."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import load_model

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]


def nested(path: Path, calls: list[list[str]]) -> Path:
    """Write a graph that calls function F0; each function calls the listed ones in turn."""
    functions = []
    for number, names in enumerate(calls):
        nodes = [
            helper.make_node(name, [f"x{at}"], [f"x{at + 1}"], domain="f" if name[0] == "F" else "")
            for at, name in enumerate(names)
        ]
        ends = ["x0"], [f"x{len(names)}"]
        functions.append(helper.make_function("f", f"F{number}", *ends, nodes, OPSETS))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("F0", ["x"], ["y"], domain="f")], "g", [x], [y])
    model = helper.make_model(graph, functions=functions, opset_imports=OPSETS, ir_version=8)
    onnx.save(model, path)
    return path


def test_functions_that_expand_without_end_are_refused(tmp_path: Path) -> None:
    doubled = [[f"F{n + 1}"] * 2 for n in range(40)]
    for calls in (
        [*doubled, ["Relu"]],
        [["F1"], ["Relu", "F0"]],
        [*([f"F{n + 1}"] for n in range(3000)), ["Relu"]],
    ):
        with pytest.raises(StageError, match="have more than 200,000 nodes in all calls"):
            load_model(nested(tmp_path / "model.onnx", calls))
    model = load_model(nested(tmp_path / "model.onnx", [*doubled[:10], ["Relu"] * 100]))
    assert len(model.functions) == 11
