"""Fifty faults planted into the reference backend, each reduced to the nodes behind it."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import backend_package
import numpy as np
import onnx
import pytest
from engine_jobs import engine_options
from small_graphs import conv_bn, parse, weights

from buildsys.backends.onnxruntime.session import OrtGraph, session_options
from buildsys.onnx_graphs.tensors import save_case, tensor_of
from buildsys.reduce import cut, stage
from buildsys.reduce.reproduction import is_reproduced, private_contents, write_reproduction
from buildsys.reduce.search import Reduced, reduce_failure
from buildsys.stages.common.node_patterns import named_nodes
from buildsys.workers.job import Job

PLANT = '''
import json, os

def _planted(model):
    """Yield the nodes with the fault: by operator, name, attribute, or the operator before it."""
    fault = json.loads(os.environ["REFERENCE_FAULT"])
    made = {name: node.op_type for node in model.graph.node for name in node.output}
    for node in list(model.graph.node):
        names = [attribute.name for attribute in node.attribute]
        if fault["operator"] not in ("", node.op_type) or fault["name"] not in ("", node.name):
            continue
        before = [made.get(name) for name in node.input]
        if fault["after"] in ("", *before) and fault["attribute"] in ("", *names):
            yield node

_build, _load = build, load

def build(request):
    model = onnx.load(request.onnx)
    for node in _planted(model):
        if json.loads(os.environ["REFERENCE_FAULT"])["kind"] == "refused":
            refused = UnsupportedNode(None, node.name, node.op_type, "planted")
            raise_refused(request, "the library", [refused])
    return _build(request)

def load(engine, options, operators=()):
    model = onnx.load(engine)
    for node in _planted(model):
        place = list(model.graph.node).index(node)
        result, node.output[0] = node.output[0], node.output[0] + "_planted"
        half = onnx.helper.make_node("Constant", [], [result + "_c"], value_float=1.5)
        wrong = onnx.helper.make_node("Mul", [node.output[0], result + "_c"], [result])
        del model.graph.node[place]
        for added in (wrong, half, node):
            model.graph.node.insert(place, added)
    return ReferenceSession(model, options["log_level"])
'''


def block(name: str, source: str, result: str) -> str:
    """Attention and a feed-forward network with two residuals, 22 nodes."""
    n = name
    return f"""
        [{n}_ln1] {n}l = LayerNormalization <axis = -1> ({source}, g, b)
        [{n}_q] {n}q = MatMul({n}l, w1)
        [{n}_k] {n}k = MatMul({n}l, w2)
        [{n}_v] {n}v = MatMul({n}l, w3)
        [{n}_rq] {n}rq = Reshape({n}q, heads)
        [{n}_rk] {n}rk = Reshape({n}k, heads)
        [{n}_rv] {n}rv = Reshape({n}v, heads)
        [{n}_tq] {n}tq = Transpose <perm = [0, 2, 1, 3]> ({n}rq)
        [{n}_tk] {n}tk = Transpose <perm = [0, 2, 3, 1]> ({n}rk)
        [{n}_tv] {n}tv = Transpose <perm = [0, 2, 1, 3]> ({n}rv)
        [{n}_scores] {n}s = MatMul({n}tq, {n}tk)
        [{n}_scale] {n}sc = Mul({n}s, half)
        [{n}_softmax] {n}sm = Softmax <axis = -1> ({n}sc)
        [{n}_mix] {n}m = MatMul({n}sm, {n}tv)
        [{n}_tm] {n}tm = Transpose <perm = [0, 2, 1, 3]> ({n}m)
        [{n}_rm] {n}rm = Reshape({n}tm, flat)
        [{n}_add1] {n}a = Add({n}rm, {source})
        [{n}_ln2] {n}l2 = LayerNormalization <axis = -1> ({n}a, g, b)
        [{n}_up] {n}u = MatMul({n}l2, w1)
        [{n}_erf] {n}e = Erf({n}u)
        [{n}_down] {n}d = MatMul({n}e, w2)
        [{n}_add2] {result} = Add({n}d, {n}a)"""


def transformer() -> onnx.ModelProto:
    stored: dict[str, Any] = {f"w{i}": weights(8, 8, seed=i) * 0.4 for i in (1, 2, 3)}
    stored |= {"g": 1 + 0.1 * weights(8), "b": weights(8), "half": np.float32(0.5)}
    stored |= {"heads": np.array([0, 4, 2, 4]), "flat": np.array([0, 4, 8])}
    body = block("a", "x", "h1") + block("b", "h1", "h2") + block("c", "h2", "y")
    return parse(f"(float[1,4,8] x) => (float[1,4,8] y) {{{body} }}", stored)


def residual() -> onnx.ModelProto:
    stored: dict[str, Any] = {"w0": weights(4, 3, 3, 3) * 0.2}
    lines = ["[stem] h0 = Conv <pads = [1, 1, 1, 1]> (x, w0)"]
    for i in range(1, 9):
        stored |= {f"w{i}": weights(4, 4, 3, 3, seed=i) * 0.1}
        strides = ", dilations = [2, 2]" if i % 3 == 0 else ""
        pads = "2, 2, 2, 2" if strides else "1, 1, 1, 1"
        lines += [
            f"[conv{i}] c{i} = Conv <pads = [{pads}]{strides}> (h{i - 1}, w{i})",
            f"[relu{i}] r{i} = {'LeakyRelu <alpha = 0.1>' if i % 4 == 0 else 'Relu'} (c{i})",
            f"[sum{i}] h{i} = Add(r{i}, h{i - 1})",
        ]
    lines += ["[pool] p = GlobalAveragePool(h8)", "[flat] f = Flatten(p)", "[out] y = Tanh(f)"]
    text = "\n".join(lines)
    return parse(f"(float[1,3,8,8] x) => (float[1,4] y) {{ {text} }}", stored)


Fault = Mapping[str, str]


def fault(kind: str = "wrong", **fields: str) -> Fault:
    return {"kind": kind, "operator": "", "name": "", "attribute": "", "after": "", **fields}


NAMED = {
    "transformer": "a_q a_rk a_tv a_softmax a_add1 a_erf b_ln1 b_tk b_scores b_mix b_ln2 b_up"
    " c_rq c_scale c_tm c_add1 c_down c_add2",
    "residual": "stem conv1 relu2 sum3 conv4 relu5 sum6 conv7 relu8 pool out",
    "conv_bn": "conv bn relu pool fc softmax",
}
OTHERS = [
    ("transformer", fault(operator="Softmax")),
    ("transformer", fault(operator="LayerNormalization")),
    ("transformer", fault(operator="Erf")),
    ("transformer", fault(operator="Mul", after="MatMul")),
    ("transformer", fault(operator="Softmax", after="Mul")),
    ("transformer", fault("refused", operator="Erf")),
    ("transformer", fault("refused", name="b_mix")),
    ("residual", fault(operator="LeakyRelu")),
    ("residual", fault(operator="Conv", attribute="dilations")),
    ("residual", fault(operator="Relu", after="Conv")),
    ("residual", fault("refused", operator="GlobalAveragePool")),
    ("residual", fault("refused", attribute="dilations")),
    ("residual", fault("refused", operator="LeakyRelu", after="Conv")),
    ("conv_bn", fault("refused", operator="Gemm")),
    ("conv_bn", fault(operator="Relu", after="Identity")),
]
FAULTS = [
    (graph, fault(name=name)) for graph, names in NAMED.items() for name in names.split()
] + OTHERS
GRAPHS = {"transformer": transformer, "residual": residual, "conv_bn": conv_bn}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The reference backend with faults, and graphs with a golden case."""
    folder = tmp_path_factory.mktemp("planted")
    site = folder / "site"
    site.mkdir()
    package = backend_package.install(site)
    with (package / "backend.py").open("a") as file:
        file.write(PLANT)
    sys.path.insert(0, str(site))
    for name, make in GRAPHS.items():
        save_graph(folder, name, make())
    with backend_package.registered(site):
        yield folder
    sys.path.remove(str(site))


def reduce(
    work: Path, graph: Path, engine: Mapping[str, Any], file: str
) -> tuple[Reduced, list[tuple[str, str]]]:
    """Reduce a graph with a golden case next to it, in this process."""

    def attempt(case: str, nodes: Sequence[int] | None, random: Sequence[str]) -> Any:
        options = {
            "engine": engine, "tolerance": dict.fromkeys(("rtol", "atol", "cosine", "top1")),
            "nodes": nodes, "random": random, "file": file,
        }  # fmt: skip
        inputs = {"model": graph, "case": graph.with_suffix(".npz")}
        outputs = {"result": work / "result.json"}
        job = Job("reduce:m:e", "", "m", "e", options, inputs, outputs, work)
        cut.run(job)
        return stage.run(job).figures

    reduced = reduce_failure([""], attempt)
    return reduced, [tuple(node) for node in reduced.last["nodes"]]


def save_graph(folder: Path, name: str, model: onnx.ModelProto) -> Path:
    """Write a graph and its golden case."""
    named_nodes(model)
    onnx.save(model, folder / f"{name}.onnx")
    shape = [dim.dim_value or 1 for dim in model.graph.input[0].type.tensor_type.shape.dim]
    inputs = {"x": tensor_of(weights(*shape, seed=9))}
    graph = OrtGraph(folder / f"{name}.onnx", session_options(optimization="disable"))
    save_case(folder / f"{name}.npz", inputs, graph.run(inputs))
    return folder / f"{name}.onnx"


REFERENCE = {"backend": "reference", "precision": "fp32", "log_level": 0}
IS_LONG = os.environ.get("BUILDSYS_LONG_TESTS", "0") not in ("", "0")


def test_faults_are_located_to_the_planted_nodes(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BUILDSYS_LONG_TESTS=1 plants all fifty, else every fifth."""
    faults = FAULTS if IS_LONG else FAULTS[::5]
    assert len(FAULTS) == 50
    single, pairs = 0, 0
    for graph, fields in faults:
        monkeypatch.setenv("REFERENCE_FAULT", json.dumps(fields))
        graph_file = planted / f"{graph}.onnx"
        reduced, nodes = reduce(tmp_path, graph_file, REFERENCE, "engine.reference")
        guilty = [
            name
            for name, operator in nodes
            if fields["name"] in ("", name) and fields["operator"] in ("", operator)
        ]
        assert guilty, (graph, fields, nodes)
        assert len(nodes) <= (2 if fields["after"] else 1)
        single, pairs = single + (len(nodes) == 1), pairs + (len(nodes) == 2)
        assert reduced.trials <= 30
        assert {*reduced.random} == {"weights", "inputs"}
    assert single >= 0.9 * len(faults)
    assert single + pairs == len(faults)


ANTIALIAS = """(float[1,3,64,64] x) => (float[1,4,16,16] y) {
    [stem] a = Conv <pads = [1, 1, 1, 1]> (x, w0)
    [act] b = Relu(a)
    [shrink] c = Resize <mode = "linear", antialias = 1> (b, , scales)
    [mix] d = Conv <pads = [1, 1, 1, 1]> (c, w1)
    [sum] y = Add(d, c) }"""
WIDE = """(float[1,16] x) => (int64[1,16] z, float[1,16] y) {
    [act] b = Relu(x)
    [scaled] s = Mul(b, big)
    [whole] i = Cast <to = 7> (s)
    [hash] z = Mul(i, prime)
    [out] y = MatMul(b, w1) }"""


@pytest.mark.parametrize(
    ("text", "stored", "expected"),
    [
        (
            ANTIALIAS,
            {
                "w0": weights(4, 3, 3, 3),
                "w1": weights(4, 4, 3, 3),
                "scales": np.array([1, 1, 0.25, 0.25], np.float32),
            },
            [("shrink", "Resize")],
        ),
        (
            WIDE,
            {"w1": weights(16, 16), "big": np.float32(1e5), "prime": np.int64(65537)},
            [("hash", "Mul")],
        ),
    ],
    ids=["ignored-antialias", "narrow-integers"],
)
def test_real_faults_of_openvino_get_a_script_that_shows_them(
    text: str, stored: Mapping[str, Any], expected: list[tuple[str, str]], tmp_path: Path
) -> None:
    pytest.importorskip("openvino", reason="pip install 'buildsys[openvino]'")
    graph = save_graph(tmp_path, "net", parse(text, stored, opset=18))
    engine = engine_options("openvino", precision="fp32")
    work = tmp_path / "work"
    work.mkdir()
    reduced, nodes = reduce(work, graph, engine, "engine.xml")
    assert nodes == expected
    hint = reduced.failure["hint"]
    assert ("computes int64 in 32 bits" in hint) is (expected == [("hash", "Mul")])
    versions = {"openvino": "0"}
    write_reproduction(work, "m:ov", engine, "engine.xml", reduced, versions, ["a cure"])
    assert is_reproduced(work, reduced.failure)
    readme = (work / "README.md").read_text()
    assert f"- {expected[0][1]} `{expected[0][0]}`" in readme
    assert private_contents(reduced) in readme
    for backend in ("onnxruntime", "tensorrt", "reference"):
        other = {**engine, "backend": backend}
        write_reproduction(work, "m:e", other, "engine", reduced, versions, [])
        compile((work / "repro.py").read_text(), "repro.py", "exec")
    (work / "repro.py").write_text("import sys\nsys.exit(0)\n")
    assert not is_reproduced(work, reduced.failure)
