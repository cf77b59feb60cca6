"""Sources that are ONNX files."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from export_jobs import IMAGE
from onnx import TensorProto, helper
from small_graphs import conv_bn, make_model, parse
from stage_jobs import manifest, stage_job

from buildsys.backends.onnxruntime import file_versions
from buildsys.backends.onnxruntime.file_versions import newest_ir_version, newest_opset
from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import load_case
from buildsys.stages.export import stage as export
from buildsys.stages.reference import stage as reference
from buildsys.stages.reference.unconverted_file import compare_unconverted
from buildsys.workers.job import Job, StageResult


def given(
    project: Path, model: onnx.ModelProto, inputs: Any = IMAGE, **sections: Any
) -> StageResult:
    onnx.save(model, project / "given.onnx")
    resolved = manifest(source={"onnx": "given.onnx"}, inputs=inputs, **sections)
    return export.run(stage_job("export", resolved, project / "build", project))


def test_a_ready_file_is_checked_and_copied(tmp_path: Path) -> None:
    figures = given(tmp_path, conv_bn(opset=15), outputs={"y": {"shape": ["batch", 5]}}).figures
    assert (figures["exporter"], figures["opset"], figures["operators"]["Conv"]) == ("none", 15, 1)
    assert (tmp_path / "build/m/export/model.onnx").is_file()


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({"image": {"shape": ["batch", 3, 8, 8]}}, {},
         "its inputs are x, the manifest declares image"),
        (IMAGE, {"scores": {}}, "its outputs are y, the manifest declares scores"),
        ({"x": {"shape": [1, 3, 8, 9]}}, {},
         "input x: axis 3 is 8 in the file, the manifest declares 9"),
        ({"x": {"shape": ["batch", 3, 8]}}, {},
         "input x has the shape ['batch', 3, 8, 8], the manifest declares ['batch', 3, 8]"),
        ({"x": {"shape": ["batch", 3, 8, 8], "dtype": "float16"}}, {},
         "input x is float32, the manifest declares float16"),
    ],
)  # fmt: skip
def test_a_ready_file_that_is_not_as_declared(
    tmp_path: Path, inputs: Any, outputs: Any, message: str
) -> None:
    dims = {"batch": {"min": 1, "opt": 2, "max": 3}}
    with pytest.raises(StageError) as error:
        given(tmp_path, conv_bn(), inputs, outputs=outputs, dims=dims)
    assert message in str(error.value)


def test_a_ready_file_with_a_rare_dropout_is_refused_unless_allowed(tmp_path: Path) -> None:
    rare = {"ratio": np.array(1e-6, np.float32), "training": np.array(True)}
    text = "(float[batch,3,8,8] x) => (float[batch,3,8,8] y) { y = Dropout (x, ratio, training) }"
    with pytest.raises(StageError, match=r"in training mode: Dropout \(y\)"):
        given(tmp_path, parse(text, rare))
    allowed = {"random": ["Dropout"]}
    assert given(tmp_path, parse(text, rare), export=allowed).status == "passed"


def test_a_file_without_shapes_gets_the_declared_or_inferred_ones(tmp_path: Path) -> None:
    model = conv_bn(opset=15)
    for port in (*model.graph.input, *model.graph.output):
        port.type.tensor_type.ClearField("shape")
    figures = given(tmp_path, model).figures
    assert [port["shape"] for port in figures["inputs"]] == [["batch", 3, 8, 8]]
    assert [port["shape"] for port in figures["outputs"]] == [["batch", 5]]
    model.graph.node[-1].domain = "unknown"
    model.opset_import.append(helper.make_opsetid("unknown", 1))
    declared = {"y": {"shape": ["batch", None]}}
    figures = given(tmp_path, model, outputs=declared).figures
    assert [port["shape"] for port in figures["outputs"]] == [["batch", None]]
    with pytest.raises(StageError) as error:
        given(tmp_path, model)
    assert str(error.value) == (
        "the file given.onnx has no shape for y, and none can be inferred; declare it, with null"
        " for unknown sizes: outputs: {y: {shape: [batch, null]}}"
    )


def test_a_ready_file_gets_versions_that_onnx_runtime_reads(tmp_path: Path) -> None:
    model = conv_bn(opset=onnx.defs.onnx_opset_version())
    model.ir_version = onnx.IR_VERSION
    figures = given(tmp_path, model).figures
    assert (figures["ir_version"], figures["opset"]) == (newest_ir_version(), newest_opset())
    OrtGraph(tmp_path / "build/m/export/model.onnx")
    lowered = {
        f"given.onnx: {what} {old} is lowered to {new}, which the installed ONNX Runtime reads and"
        " computes"
        for what, old, new in (
            ("IR version", onnx.IR_VERSION, newest_ir_version()),
            ("opset", onnx.defs.onnx_opset_version(), newest_opset()),
        )
        if old > new
    }
    assert set(figures["warnings"]) == lowered
    golden = manifest(source={"onnx": "given.onnx"}, inputs=IMAGE)
    assert reference.run(stage_job("reference", golden, tmp_path, tmp_path)).status == "passed"


def old_file(operator: str) -> onnx.ModelProto:
    """Make a file of 2017: parameters are inputs as well."""
    text = f"(float[n,3,3] x, float[3] w) => (float[n,3,3] y) {{ y = {operator} (x, w) }}"
    model = parse(text, {"w": np.float32([0.5, -2, 3])}, opset=6)
    model.ir_version = 3
    return model


def test_a_file_older_than_onnx_runtime_reads_is_raised_and_compared(tmp_path: Path) -> None:
    inputs = {"x": {"shape": ["batch", 3, 3]}}
    figures = given(tmp_path, old_file("Mul <broadcast=1>"), inputs).figures
    assert (figures["ir_version"], figures["opset"]) == (8, 17)
    assert [warning.split(",")[0] for warning in figures["warnings"]] == [
        "given.onnx: IR version 3 is raised to 8",
        "given.onnx: opset 6 is raised to 17",
    ]
    written = onnx.load(tmp_path / "build/m/export/model.onnx").graph
    assert [port.name for port in written.input] == ["x"]
    golden = manifest(source={"onnx": "given.onnx"}, inputs=inputs)
    job = stage_job("reference", golden, tmp_path, tmp_path)
    assert reference.run(job).figures["warnings"] == [
        "given.onnx: the file of opset 6 gives the same outputs in onnx's reference evaluator as"
        " the converted one"
    ]
    onnx.save(old_file("PRelu"), tmp_path / "given.onnx")
    (warning,) = reference.run(job).figures["warnings"]
    assert "runs nowhere, so its conversion is not compared" in warning
    case = load_case(job.outputs["case.opt"])
    x, slopes = case.inputs["x"].array, np.float32([0.5, -2, 3])[:, None]
    np.testing.assert_allclose(case.outputs["y"].array, np.where(x > 0, x, x * slopes))
    case.outputs["y"].array[:] = x * slopes[:, 0]
    case.outputs["y"].array[1, 2, 0] += 1
    with pytest.raises(StageError, match=r"given: the file of opset 6 .*y changed: at \[1, 2, 0\]"):
        compare_unconverted(old_file("Mul <broadcast=1>"), case, "given")


def test_an_operator_without_a_kernel_in_a_new_opset_is_lowered(tmp_path: Path) -> None:
    text = "(float[2,3,8,8] x) => (float[2,3,1,1] y) { y = RoiAlign (x, boxes, batch) }"
    boxes = np.float32([[0, 0, 4, 4], [1, 1, 3, 5]])
    model = parse(text, {"boxes": boxes, "batch": np.int64([0, 1])}, opset=22)
    inputs = {"x": {"shape": [2, 3, 8, 8]}}
    assert given(tmp_path, model, inputs).figures["opset"] == 21
    golden = manifest(source={"onnx": "given.onnx"}, inputs=inputs)
    (warning,) = reference.run(stage_job("reference", golden, tmp_path, tmp_path)).figures[
        "warnings"
    ]
    assert "gives the same outputs in onnx's reference evaluator" in warning


def test_an_opset_that_cannot_be_lowered_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_versions, "newest_opset", lambda: 17)
    function = helper.make_function(
        "mine", "f", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])],
        [helper.make_opsetid("", 18)],
    )  # fmt: skip
    port = (TensorProto.FLOAT, ["batch", 3, 8, 8])
    node = helper.make_node("f", ["x"], ["y"], domain="mine")
    model = make_model(
        [node], {"x": port}, {"y": port}, opset=18, functions=[function],
        opsets=[helper.make_opsetid("mine", 1)],
    )  # fmt: skip
    with pytest.raises(StageError, match=r"has opset 18, .* it cannot be converted to 17: onnx"):
        given(tmp_path, model)


def test_unsorted_nodes_are_sorted(tmp_path: Path) -> None:
    model = parse("""(float[n,4] x, bool c) => (float[n,4] y) {
        y = If (c) < then_branch = t () => (float[n,4] p) { p = Neg (o) o = Relu (b) },
                     else_branch = e () => (float[n,4] q) { q = Abs (x) } >
        b = Neg (a)
        a = Relu (x) }""")
    inputs = {"x": {"shape": ["batch", 4]}, "c": {"shape": [], "dtype": "bool"}}
    assert given(tmp_path, model, inputs).status == "passed"
    written = onnx.load(tmp_path / "build/m/export/model.onnx").graph
    assert [node.op_type for node in written.node] == ["Relu", "Neg", "If"]
    model.graph.node[2].input[0] = "b"  # a cycle
    with pytest.raises(StageError, match="topologically sorted"):
        given(tmp_path, model, inputs)


@pytest.mark.parametrize(
    "text",
    [
        "(float[n,4] x) => (seq(float[n,1]) y) { y = SplitToSequence <axis=1> (x) }",
        "(seq(float[n,2]) y) => (float[n,4] x) { x = ConcatFromSequence <axis=1> (y) }",
    ],
)
def test_sequences_are_no_inputs_or_outputs(tmp_path: Path, text: str) -> None:
    inputs = {("x" if "=> (seq" in text else "y"): {"shape": ["batch", 4]}}
    for message, stage in (
        (r"y of given.onnx is of the kind sequence, and only", export),
        (r"y is a seq\(tensor\(float\)\), and only", reference),
    ):
        onnx.save(parse(text), tmp_path / "given.onnx")
        resolved = manifest(source={"onnx": "given.onnx"}, inputs=inputs)
        name = stage.__name__.split(".")[-2]
        with pytest.raises(StageError, match=message):
            stage.run(stage_job(name, resolved, tmp_path / "build", tmp_path))


def test_a_ready_file_that_the_checker_rejects(tmp_path: Path) -> None:
    node = helper.make_node("Gelu", ["x"], ["y"])
    port = (TensorProto.FLOAT, ["batch", 3, 8, 8])
    with pytest.raises(StageError, match="does not have the operator Gelu used in the file;"):
        given(tmp_path, make_model([node], {"x": port}, {"y": port}))


def test_a_ready_file_keeps_its_external_data_in_one_file(tmp_path: Path) -> None:
    model = conv_bn()
    onnx.save(
        model,
        tmp_path / "given.onnx",
        save_as_external_data=True,
        location="somewhere.bin",
        size_threshold=0,
    )
    resolved = manifest(source={"onnx": "given.onnx"}, inputs=IMAGE, export={"external_data": True})
    export.run(stage_job("export", resolved, tmp_path / "build", tmp_path))
    copied = onnx.load(tmp_path / "build/m/export/model.onnx")
    assert [tensor.name for tensor in copied.graph.initializer] == [
        tensor.name for tensor in conv_bn().graph.initializer
    ]
    assert not (tmp_path / "build/m/export/somewhere.bin").exists()


@pytest.mark.parametrize(
    ("content", "message"), [(None, "does not exist"), (b"not onnx", "given.onnx")]
)
def test_an_unreadable_onnx_file(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content:
        (tmp_path / "given.onnx").write_bytes(content)
    resolved = manifest(source={"onnx": "given.onnx"}, inputs=IMAGE)
    with pytest.raises(StageError, match=message):
        export.run(stage_job("export", resolved, tmp_path / "build", tmp_path))


GRAPH = """
import numpy as np
from onnx import helper, numpy_helper

def make(size=4):
    weight = numpy_helper.from_array(np.random.randn(size).astype("float32"), "w")
    ports = [helper.make_tensor_value_info(name, 1, ["batch", size]) for name in "xy"]
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", ports[:1], ports[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

def text():
    return "graph"

def fails():
    return helper.make_node()
"""


def test_a_callable_makes_the_same_model_in_every_stage(tmp_path: Path) -> None:
    (tmp_path / "graph.py").write_text(GRAPH)
    source = {"onnx": "graph.py:make", "kwargs": {"size": 3}}
    resolved = manifest(source=source, inputs={"x": {"shape": ["batch", 3]}})
    figures = export.run(stage_job("export", resolved, tmp_path / "build", tmp_path)).figures
    assert figures["weights"] == "from graph.py:make"
    job = stage_job("reference", resolved, tmp_path / "build", tmp_path)
    reference.run(job)
    golden = load_case(job.outputs["case.opt"])
    found = OrtGraph(tmp_path / "build/m/export/model.onnx").run(golden.inputs)
    assert (found["y"].array == golden.outputs["y"].array).all()


def test_a_callable_that_leaves_its_weights_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph.py").write_text(
        "import onnx\ndef make():\n    return onnx.load('g.onnx', load_external_data=False)\n"
    )
    options = {"save_as_external_data": True, "location": "g.bin", "size_threshold": 0}
    onnx.save(conv_bn(), tmp_path / "g.onnx", **options)
    resolved = manifest(source={"onnx": "graph.py:make"}, inputs=IMAGE)
    for stage, module in (("export", export), ("reference", reference)):
        with pytest.raises(StageError, match="returned a model without its external data, such as"):
            module.run(stage_job(stage, resolved, tmp_path / "build", tmp_path))


GOLDEN_INPUTS = {"x": {"shape": ["batch", 4]}}
SQUARE = "(float[batch,4] x) => (float[batch,4] y) { y = Mul(x, x) }"
ONES = np.ones((2, 4), np.float32)


def golden_job(project: Path, **arrays: Any) -> Job:
    onnx.save(parse(SQUARE), project / "net.onnx")
    np.savez(project / "tf.npz", **arrays)
    resolved = manifest(
        source={"onnx": "net.onnx"}, inputs=GOLDEN_INPUTS, reference={"npz": "tf.npz"}
    )
    return stage_job("reference", resolved, project / "build", project)


def test_outputs_of_another_framework_are_golden(tmp_path: Path) -> None:
    job = golden_job(tmp_path, x=2 * ONES, y=5 * ONES)
    figures = reference.run(job).figures
    case = load_case(job.outputs["case.golden-tf"])
    assert case.inputs["x"].array.tolist() == (2 * ONES).tolist()
    assert case.outputs["y"].array.tolist() == (5 * ONES).tolist()
    assert figures["cases"]["golden-tf"]["dims"] == {"batch": 2}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": ONES}, "tf.npz has no array x; it has y"),
        ({"x": ONES}, "tf.npz has no array y; it has x"),
        ({"x": ONES, "y": ONES, "yy": ONES},
         "tf.npz: yy is neither an input nor an output; did you mean y?"),
        ({"x": ONES, "y": ONES.astype(np.float64)},
         "tf.npz: y is float64, output y is float32; save it as float32"),
        ({"x": ONES, "y": ONES[0]},
         "tf.npz: y has the shape [4], the source computes [2, 4]; save it in this shape"),
        ({"x": ONES[:, :3], "y": ONES}, "tf.npz: x has the shape [2, 3], input x has [batch, 4] ("
         "batch 1 to 8); widen dims, or save other arrays"),
        ({"x": np.ones((9, 4), np.float32), "y": ONES}, "tf.npz: x has the shape [9, 4], input x"),
        ({"x": ONES, "y": np.full((2, 4), np.nan, np.float32)},
         "tf.npz: output y has 8 of 8 values NaN; the source computes finite ones"),
    ],
)  # fmt: skip
def test_a_file_of_golden_outputs_with_a_mistake(tmp_path: Path, arrays: Any, message: str) -> None:
    with pytest.raises(StageError) as error:
        reference.run(golden_job(tmp_path, **arrays))
    assert str(error.value).startswith(message)
