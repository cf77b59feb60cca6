"""Inspection of real graphs: exported, simplified, with bodies, functions and external data."""

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from small_graphs import conv_bn, make_model, simplify_job, weights, write

from buildsys.errors import StageError
from buildsys.onnx_graphs.inspection.__main__ import answer, respond
from buildsys.onnx_graphs.onnx_file import load_model, save_model
from buildsys.stages.report import stage as report
from buildsys.stages.simplify import stage as simplify
from buildsys.workers.job import Job

BRANCHES = """
<ir_version: 8, opset_import: ["" : 17, "my.domain" : 1]>
g (float[b,4] x, bool c, int64 trips) => (float[b,4] z, float[b,4] r)
<float[4,4] w = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}>
{
  y = If (c) <then_branch = t () => (float[b,4] a) { h = MatMul(x, w)  a = Relu(h) },
              else_branch = e () => (float[b,4] a2) { a2 = Neg(x) }>
  r = my.domain.swish(y)
  cond = Constant <value = bool {1}> ()
  z = Loop (trips, cond, y) <body = l (int64 i, bool ci, float[b,4] v) => (bool co, float[b,4] vo)
      { co = Identity(ci) vo = MatMul(v, w) }>
}
<domain: "my.domain", opset_import: ["" : 17]>
swish (v) => (u) { s = Sigmoid(v) u = Mul(v, s) }
"""


def graph(path: Path) -> dict[str, str]:
    data = path.with_name(f"{path.name}.data")
    return {"file": str(path), "data": str(data) if data.exists() else ""}


def described(path: Path, **dims: int) -> dict[str, Any]:
    found = answer({"question": "describe", "graph": graph(path), "dims": dims})
    assert "error" not in found
    return found


def compared(first: Path, second: Path) -> dict[str, Any]:
    return answer({"question": "compare", "first": graph(first), "second": graph(second)})


def test_the_description_of_a_graph_is_complete(tmp_path: Path) -> None:
    found = described(write(tmp_path, conv_bn()), batch=4)
    assert found["opsets"] == {"ai.onnx": 17}
    assert found["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["batch", 3, 8, 8]}]
    assert found["operators"]["Conv"] == 1
    assert found["initializers"]["count"] == 6
    assert found["initializers"]["bytes"] == 4 * found["parameters"] == 4 * (108 + 16 + 20)
    conv = 4 * 64 * 27
    assert found["macs"]["total"] == 4 * (conv + 20)
    assert found["macs"]["operators"] == {
        "Conv": {"macs": 4 * conv, "nodes": 1},
        "Gemm": {"macs": 80, "nodes": 1},
    }
    node = next(node for node in found["nodes"] if node["name"] == "conv")
    assert (node["attributes"], node["macs"]) == ({"pads": "[1, 1, 1, 1]"}, 4 * conv)
    tensor = found["tensors"]["conv"]
    assert (tensor["producer"], tensor["consumers"]) == ("conv", ["bn"])
    assert tensor["shape"] == ["batch", 4, 8, 8]


def test_constants_are_described_by_their_values(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[3] x) => (float[3] y) {
        scale = Constant <value_floats = [1.5, 0.0, -2.0]> ()
        shape = Constant <value = int64[1] {3}> ()
        z = Mul(x, scale) w = Add(z, weight) y = Reshape(w, shape) }"""
    model = parser.parse_model(text)
    weight = np.array([np.nan, np.inf, 0.25], np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "weight"))
    for external in (False, True):
        path = tmp_path / "model.onnx"
        options = {"save_as_external_data": True, "size_threshold": 0} if external else {}
        onnx.save(model, path, location="model.onnx.data", **options)
        request = {"question": "describe", "graph": graph(path), "dims": {}, "values": "*"}
        values = json.loads(respond(request))["values"]
        assert values["weight"] == {
            "count": 3, "zeros": 0, "not_finite": 2,
            "min": 0.25, "max": 0.25, "mean": 0.25, "std": 0.0, "first": ["nan", "inf", 0.25],
        }  # fmt: skip
        assert (values["scale"]["first"], values["scale"]["zeros"]) == ([1.5, 0.0, -2.0], 1)
        assert values["shape"]["first"] == [3]
    request["values"] = "sc*"
    assert list(json.loads(respond(request))["values"]) == ["scale"]


def test_bodies_functions_and_custom_domains_are_described(tmp_path: Path) -> None:
    found = described(write(tmp_path, parser.parse_model(BRANCHES)), b=2)
    assert found["operators"]["my.domain::swish"] == 1
    (function,) = found["functions"]
    assert (function["name"], function["operators"]) == (
        "my.domain::swish",
        {"Sigmoid": 1, "Mul": 1},
    )
    inside = {node["operator"]: node["inside"] for node in found["nodes"]}
    assert (inside["Relu"], inside["Identity"]) == ("y.then_branch", "z.body")
    assert found["tensors"]["h"]["inside"] == "y.then_branch"
    assert found["tensors"]["x"]["consumers"] == ["y"]
    macs = found["macs"]
    assert (macs["total"], macs["loops_counted_once"], macs["not_counted"]) == (
        2 * 2 * 16,
        1,
        {},
    )
    picture = answer(
        {
            "question": "draw",
            "graph": graph(tmp_path / "model.onnx"),
            "title": "t",
            "from": "",
            "to": "",
            "depth": None,
        }
    )
    assert picture["nodes"] == 3
    assert all(word in picture["svg"] for word in ("If", "Loop", "my.domain::swish"))


def test_external_data_is_not_read(tmp_path: Path) -> None:
    model = conv_bn()
    large = model.graph.initializer.add(name="large", data_type=TensorProto.FLOAT, dims=[2**31])
    outside(large, "model.onnx.data", "0", str(2**33))
    path = write(tmp_path, model)
    largest = described(path, batch=1)["initializers"]["largest"][0]
    assert (largest["name"], largest["bytes"]) == ("large", 2**33)


@pytest.mark.parametrize("inline_limit", [2**30, 0])
def test_inline_and_external_weights_are_compared_by_content(
    tmp_path: Path, inline_limit: int
) -> None:
    def written(name: str, seed: int) -> Path:
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["t"]),
            helper.make_node("Add", ["t", "b"], ["y"]),
        ]
        stored = {"w": weights(32, 32, seed=seed), "b": weights(512, 32)}
        ends = ({"x": (TensorProto.FLOAT, [512, 32])}, {"y": (TensorProto.FLOAT, [512, 32])})
        path = tmp_path / name / "model.onnx"
        path.parent.mkdir()
        save_model(make_model(nodes, *ends, stored), path, inline_limit=inline_limit)
        return path

    first, same, other = (
        written(name, seed) for name, seed in (("first", 1), ("same", 1), ("other", 2))
    )
    assert compared(first, same)["is_equal"]
    found = compared(first, other)
    assert [stored["name"] for stored in found["initializers"]["changed"]] == ["w"]
    assert [change["operator"] for change in found["changed"]] == ["MatMul"]


@pytest.mark.parametrize("content", [b"\xff" * 100, b"\x3a\xff\xff\xff\xff\x7fx", b"\x0a" * 999])
def test_a_file_of_another_format_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    found = answer({"question": "describe", "graph": graph(path), "dims": {}})
    assert "cannot be read as ONNX" in found["error"]


def test_a_damaged_graph_is_one_sentence(tmp_path: Path) -> None:
    path = write(tmp_path, conv_bn())
    content, choice = path.read_bytes(), random.Random(5)
    errors = []
    for _ in range(30):
        damaged = bytearray(content)
        for _ in range(choice.randint(1, 8)):
            damaged[choice.randrange(len(damaged))] = choice.randrange(256)
        path.write_bytes(damaged)
        asked = {"title": "t", "from": "", "to": "", "depth": None}
        for request in (
            {"question": "describe", "graph": graph(path), "dims": {}},
            {"question": "compare", "first": graph(path), "second": graph(path)},
            {"question": "draw", "graph": graph(path), **asked},
        ):
            found = json.loads(respond(request))
            errors += [found["error"]] if "error" in found else []
    assert errors
    assert all(error and "\n" not in error and len(error) < 400 for error in errors)


def outside(tensor: TensorProto, location: str, offset: str, length: str) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=value)


def test_external_data_outside_the_folder_is_not_copied(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(100_000))
    model = conv_bn()
    for tensor in model.graph.initializer:
        outside(tensor, "../secret", "0", str(math.prod(tensor.dims) * 4))
    (tmp_path / "graph").mkdir()
    source = write(tmp_path / "graph", model)
    with pytest.raises(
        StageError, match=r"are in '\.\./secret', which is not a file in the folder"
    ):
        save_model(model, tmp_path / "graph/copy.onnx", weights_of=source)
    with pytest.raises(StageError, match="cannot be read as ONNX"):
        load_model(source)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "model.onnx is empty; copy or download it again"),
        (b"version https://git-lfs.github.com/spec/v1", "model.onnx is a Git LFS pointer"),
        (b"<html>", "model.onnx is a web page; download the file itself"),
    ],
)
def test_a_file_that_is_no_graph_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(StageError) as error:
        load_model(tmp_path / "model.onnx")
    assert str(error.value).startswith(message)


def test_the_report_counts_the_graphs_of_the_chain(tmp_path: Path) -> None:
    job = simplify_job(tmp_path, conv_bn())
    simplify.run(job)
    options = {"manifest": {"model": "m", "dims": {"batch": {"min": 1, "opt": 4, "max": 8}}}}
    graphs = {"graph:export:m": job.inputs["model"], "graph:simplify:m": job.outputs["model"]}
    outputs = {"result": tmp_path / "report.json"}
    result = report.run(Job("report:m", "report", "m", "", options, graphs, outputs, tmp_path))
    rows = result.figures["graph_tables"][0]["rows"]
    macs = f"{4 * (64 * 4 * 27 + 20) / 1000:.1f} k"
    assert [(row[0], row[-1]) for row in rows] == [("export", macs), ("simplify", macs)]
    assert rows[1][2] == str(onnx_elements(job.outputs["model"]))


def onnx_elements(path: Path) -> int:
    return sum(int(np.prod(tensor.dims)) for tensor in onnx.load(path).graph.initializer)
