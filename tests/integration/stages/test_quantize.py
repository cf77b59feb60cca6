"""Calibration and explicit quantizers in ONNX Runtime and TensorRT-RTX."""

import json
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import pytest
from onnx import helper
from PIL import Image
from quantize_jobs import FLOAT, Chain, initializers, uneven_net
from small_graphs import parse, weights

from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.errors import StageError
from buildsys.stages.calibrate.ranges import load_ranges
from buildsys.stages.convert.fields import QuantizedOperator

IMAGES = "(float[batch,3,8,8] x) => (float[batch,3,8,8] y)"


def save_images(folder: Path, count: int, size: tuple[int, int] = (12, 10)) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03}.png")
    return folder


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_a_network_is_calibrated_and_quantized(tmp_path: Path, precision: str) -> None:
    chain = Chain(tmp_path, precision=precision)
    result = chain.quantize(precision)
    assert result.status == "passed", result.reason
    figures = result.figures
    assert figures["quantized"] == ["/first", "/second", "/head"]
    assert figures["kept_reasons"] == {}
    json.dumps(figures, allow_nan=False)
    model = chain.quantized(precision)
    zeros = {name: values for name, values in initializers(model).items() if "zero_point" in name}
    assert len(zeros) == 6
    assert not any(np.asarray(values, np.float32).any() for values in zeros.values())
    head = next(node for node in model.graph.node if node.name == "/head")
    assert next(a.f for a in head.attribute if a.name == "beta") == 0.5
    # missing in the source graph; TensorRT 8.6 cannot infer it from weights with a quantizer
    attributes = [a for node in model.graph.node for a in node.attribute]
    assert [list(a.ints) for a in attributes if a.name == "kernel_shape"] == [[3, 3], [3, 3]]
    if precision == "fp8":  # in a graph of opset 17
        assert (figures["opset"], figures["initializers"]["float8e4m3fn"]) == (19, 6)
    assert all(values["y"]["relative"] > 1e-4 for values in figures["cases"].values())
    parse_by_tensorrt_rtx(chain, precision)


def test_batches_and_ranges_match_the_data(tmp_path: Path) -> None:
    values = np.random.default_rng(5).standard_normal((9, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "calib.npz", x=values)
    sizes = {"batches": 2, "batch_size": 4, "algorithm": "minmax"}
    chain = Chain(tmp_path, calibration={"data": {"x": {"npz": "calib.npz"}}, **sizes})
    figures = chain.run("calibrate:m").figures
    with np.load(chain.build / "m/calibrate/batches.npz") as archive:
        assert archive.files == ["0/x", "1/x"]
        assert np.array_equal(np.concatenate([archive["0/x"], archive["1/x"]]), values[:8])
    ranges = load_ranges(chain.build / "m/calibrate/ranges.json")
    assert list(ranges) == ["x", "c1", "r1", "c2", "p", "f", "y"]
    inputs = {"x": values[:8]}
    probe = onnx.ModelProto()
    probe.CopyFrom(chain.model)
    probe.graph.output.append(helper.make_tensor_value_info("c2", FLOAT, None))
    session = OrtGraph(probe.SerializeToString()).session
    inner = dict(zip(("y", "c2"), session.run(None, inputs), strict=True))
    for name, array in {**inputs, **inner}.items():
        assert ranges[name] == (float(np.abs(array).max()),) * 2
    assert figures["warnings"] == []


def test_images_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    folder = save_images(tmp_path / "images/cats", 5)
    (tmp_path / "images/notes.txt").write_text("no image")
    data = {"images": "images", "resize": 9, "mean": (0.5, 0.4, 0.3), "std": (0.2,), "color": "bgr"}
    chain = Chain(tmp_path, calibration={"data": {"x": data}, "batches": 2, "batch_size": 2})
    chain.run("calibrate:m")
    with np.load(chain.build / "m/calibrate/batches.npz") as archive:
        values = archive["1/x"][0]
    # 10.8 pixels wide, cut off as by torchvision
    image = Image.open(folder / "002.png").resize((10, 9), Image.Resampling.BILINEAR)
    image = image.crop((1, 0, 9, 8))
    pixels = np.asarray(image)[:, :, ::-1].astype(np.float32) / np.float32(255)
    expected = (pixels - np.float32([0.5, 0.4, 0.3])) / np.float32(0.2)
    assert np.array_equal(values, expected.transpose(2, 0, 1))


def test_excluded_nodes_stay_and_are_reported(tmp_path: Path) -> None:
    chain = Chain(tmp_path, quantize={"exclude": ("/head*",)})
    figures = chain.quantize().figures
    assert figures["quantized"] == ["/first", "/second"]
    assert figures["kept_reasons"] == {"/head": "excluded by /head*"}


def test_a_wrong_quantization_fails_with_the_layer_that_loses_most(tmp_path: Path) -> None:
    chain = Chain(tmp_path, uneven_net(), quantize={"per_channel": False})
    result = chain.quantize()
    assert result.status == "failed"
    assert "y differs in case min of the int8 graph" in result.reason
    assert "cosine 0." in result.reason
    assert "; set quantize.per_channel: true; " in result.hint
    assert "; the largest error arises at /second (" in result.hint
    assert 'quantize: {exclude: ["/second"' in result.changes[0]
    assert (chain.build / "m/convert/int8/failed/int8-min.npz").is_file()


def sigmoid_net(offset: float) -> onnx.ModelProto:
    """conv → relu → conv → sigmoid: a map of values around sigmoid(offset)."""
    text = """(float[batch,3,8,8] x) => (float[batch,1,8,8] y) {
        ["/first"] c1 = Conv <pads = [1, 1, 1, 1]> (x, w1) r1 = Relu(c1)
        ["/second"] c2 = Conv <pads = [1, 1, 1, 1]> (r1, w2, b2) y = Sigmoid(c2) }"""
    stored = {"w1": weights(8, 3, 3, 3), "w2": 0.005 * weights(1, 8, 3, 3, seed=2)}
    return parse(text, {**stored, "b2": np.array([offset], np.float32)})


@pytest.mark.parametrize(("precision", "offset"), [("int8", 0.0), ("fp8", 1.0)])
def test_an_offset_hides_no_wrong_calibration(
    tmp_path: Path, precision: str, offset: float
) -> None:
    dark = {"data": {"x": {"random": "uniform", "high": 0.02}}, "algorithm": "minmax"}
    chain = Chain(tmp_path, sigmoid_net(offset), precision=precision, calibration=dark)
    result = chain.quantize(precision)
    comparisons = [case["y"] for case in result.figures["cases"].values()]
    assert all(c["relative"] < 0.2 and c["cosine"] > 0.99 for c in comparisons)
    assert result.status == "failed"
    assert "over 17 samples: correlation 0." in result.reason
    assert "(at least 0.98)" in result.reason
    remedy = "the calibration data only 0.02: calibrate on similar data"
    assert remedy in result.hint
    assert result.figures["warnings"][0].endswith(remedy)
    agreement = result.figures["agreement"]["y"]
    assert agreement["samples"] == 17
    assert agreement["correlation"] < 0.9
    result = Chain(tmp_path, sigmoid_net(offset), precision=precision).quantize(precision)
    assert result.status == "passed", result.reason


@pytest.mark.parametrize(("precision", "outputs"), [("int8", True), ("fp8", False)])
def test_products_of_activations_and_nodes_without_names_are_quantized(
    tmp_path: Path, precision: str, outputs: bool
) -> None:
    text = "{ h = MatMul(x, w) t = Transpose <perm = [0, 1, 3, 2]> (h) y = MatMul(h, t) }"
    model = parse(IMAGES + text, {"w": weights(8, 6)})
    data = {"batches": 16, "batch_size": 8}
    chain = Chain(
        tmp_path, model, precision=precision, quantize={"outputs": outputs}, calibration=data
    )
    result = chain.quantize(precision)
    assert result.status == "passed", result.reason
    assert [name for name in result.figures["quantized"] if name.startswith("MatMul")] == [
        "MatMul_h",
        "MatMul_y",
    ]
    axes = {
        a.i for n in chain.quantized(precision).graph.node for a in n.attribute if a.name == "axis"
    }
    assert axes == {1}  # the columns of w


@pytest.mark.parametrize("outputs", [False, True])
def test_every_operator_that_can_be_named_is_quantized(tmp_path: Path, outputs: bool) -> None:
    text = """(float[batch,3,8,8] x) => (float[batch,5] y) {
        ["/up"] a = ConvTranspose <kernel_shape = [2, 2], strides = [2, 2]> (x, wt)
        ["/average"] b = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (a)
        ["/conv"] c = Conv(b, w)
        ["/scale"] d = Mul(c, scale)
        ["/residual"] e = Add(d, b)
        ["/max"] f = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (e)
        ["/global"] g = GlobalAveragePool(f)
        h = Flatten(g)
        ["/gemm"] i = Gemm(h, k)
        ["/matmul"] y = MatMul(i, m) }"""
    stored = {
        "wt": weights(3, 4, 2, 2), "w": weights(4, 4, 1, 1, seed=1),
        "scale": 1 + 0.1 * weights(4, 1, 1, seed=2), "k": weights(4, 6, seed=3),
        "m": weights(6, 5, seed=4),
    }  # fmt: skip
    model = parse(text, stored)
    quantize = {"operators": get_args(QuantizedOperator), "outputs": outputs}
    sizes = {"batches": 16, "batch_size": 8}
    chain = Chain(tmp_path, model, quantize=quantize, calibration=sizes)
    result = chain.quantize()
    assert result.status == "passed", result.reason
    named = {node.name for node in model.graph.node if node.op_type in quantize["operators"]}
    assert named <= set(result.figures["quantized"])
    assert result.figures["kept_reasons"] == {}
    graph = chain.quantized().graph
    residual = next(node for node in graph.node if node.name == "/residual")
    assert residual.input[1].startswith("b_dequantized")  # as TensorRT expects in int8
    parse_by_tensorrt_rtx(chain, "int8")


def test_without_modelopt_the_error_has_the_command_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "modelopt", None)  # also where it is installed
    chain = Chain(tmp_path, quantize={"tool": "modelopt"})
    chain.run("calibrate:m")
    with pytest.raises(StageError, match=r"ModelOpt is not .*; pip install 'buildsys\[quantize\]'"):
        chain.run("convert:m:int8")
    with pytest.raises(StageError, match="ModelOpt is not installed"):
        Chain(tmp_path / "half", precision="fp16", convert={"tool": "autocast"}).run(
            "convert:m:fp16"
        )


def wide_net() -> onnx.ModelProto:
    """Two convolutions of 16 channels: ModelOpt leaves narrow ones alone."""
    text = """(float[batch,3,8,8] x) => (float[batch,32,8,8] y) {
        ["/in"] a = Conv <pads = [1, 1, 1, 1]> (x, w0) b = Relu(a)
        ["/one"] c = Conv <pads = [1, 1, 1, 1]> (b, w1) d = Relu(c)
        ["/two"] y = Conv <pads = [1, 1, 1, 1]> (d, w2) }"""
    inner = {f"w{seed}": weights(32, 32, 3, 3, seed=seed) for seed in (1, 2)}
    return parse(text, {"w0": weights(32, 3, 3, 3), **inner})


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_modelopt_quantizes(tmp_path: Path, precision: str) -> None:
    pytest.importorskip("modelopt")
    data = {"batches": 4, "batch_size": 8, "algorithm": "minmax"}
    chain = Chain(
        tmp_path, wide_net(), precision=precision, quantize={"tool": "modelopt"}, calibration=data
    )
    result = chain.quantize(precision)
    assert result.status == "passed", result.reason
    assert {"/one", "/two"} <= set(result.figures["quantized"])
    parse_by_tensorrt_rtx(chain, precision)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_autocast_converts(tmp_path: Path, precision: str) -> None:
    pytest.importorskip("modelopt")
    chain = Chain(tmp_path, precision=precision, convert={"tool": "autocast"})
    result = chain.run(f"convert:m:{precision}")
    assert result.status == "passed", result.reason


def parse_by_tensorrt_rtx(chain: Chain, precision: str) -> None:
    trt = pytest.importorskip("tensorrt_rtx")
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    path = chain.build / f"m/convert/{precision}/model.onnx"
    assert parser.parse_from_file(str(path)), parser.get_error(0).desc()
    assert "QUANTIZE" in {
        str(network.get_layer(i).type).split(".")[1] for i in range(network.num_layers)
    }


GOOD = np.zeros((8, 3, 8, 8), np.float32)
BAD_DATA: dict[str, tuple[np.ndarray, str]] = {
    "few": (
        GOOD[:5],
        "calib.npz: x has the shape (5, 3, 8, 8); batches of the input x have (3, 3, 8, 8) and"
        " need 6 samples",
    ),
    "nan": (
        np.where(np.arange(8).reshape(8, 1, 1, 1) == 4, np.nan, GOOD).astype(np.float32),
        "the calibration data of the input x, batch 1, has 192 of 576 values NaN or infinite",
    ),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_calibration_data_is_one_sentence(tmp_path: Path, name: str) -> None:
    values, sentence = BAD_DATA[name]
    np.savez(tmp_path / "calib.npz", x=values)
    chain = Chain(tmp_path, calibration={"data": {"x": {"npz": "calib.npz"}}})
    with pytest.raises(StageError) as error:
        chain.run("calibrate:m")
    assert sentence in str(error.value)


def test_a_tensor_that_is_not_finite_is_named_with_its_node(tmp_path: Path) -> None:
    text = '{ ["/log"] l = Log(x) ["/mm"] y = MatMul(l, w) }'
    chain = Chain(tmp_path, parse(IMAGES + text, {"w": weights(8, 8)}))
    with pytest.raises(
        StageError, match=r"l, of Log \(node /log\), is NaN or infinite on the calibration data"
    ):
        chain.run("calibrate:m")


def test_a_mask_of_infinities_has_no_range(tmp_path: Path) -> None:
    text = '{ s = Where(masked, no, x) p = Softmax(s) ["/mm"] y = MatMul(p, w) }'
    stored = {"w": weights(8, 8), "masked": np.arange(8) > 3, "no": np.float32(-np.inf)}
    chain = Chain(tmp_path, parse(IMAGES + text, stored))
    chain.run("calibrate:m")
    ranges = load_ranges(chain.build / "m/calibrate/ranges.json")
    assert ranges.keys() == {"x", "p", "y"}
    chain.run("convert:m:int8")


def test_a_graph_without_quantizable_nodes_is_an_error(tmp_path: Path) -> None:
    chain = Chain(tmp_path, parse(IMAGES + "{ y = Relu(x) }"))
    chain.run("calibrate:m")
    with pytest.raises(StageError, match="no node of the graph can be quantized: its operators"):
        chain.run("convert:m:int8")


def test_an_fp8_engine_of_onnxruntime_equals_its_graph(tmp_path: Path) -> None:
    """Its optimizations beyond basic drop the Relu before a float8 quantizer."""
    chain = Chain(tmp_path, precision="fp8", calibration={"batches": 8, "batch_size": 8})
    for target in ("calibrate:m", "convert:m:fp8", "engine:m:e"):
        result = chain.run(target)
    assert result.figures["settings"]["graph_optimization_level"] == "basic"
    verified = chain.run("verify:m:e")
    assert verified.status == "passed", verified.reason
