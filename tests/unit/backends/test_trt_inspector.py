"""The precision of layers in real and other inspectors' answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from buildsys.backends.layer_figures import precision_problem
from buildsys.backends.tensorrt.inspector import layer_shares, precision_facts, read_layers

FOLDER = Path(__file__).parent / "trt_inspector"


def answer(name: str) -> str:
    """Return an inspector's answer of TensorRT 8.6.0 without a context."""
    return (FOLDER / f"tensorrt-8.6.0-{name}.json").read_bytes().decode()


def one_layer(*formats: str, kind: str = "CaskConvolution", **fields: Any) -> str:
    ports = [{"Name": "x", "Format/Datatype": text} for text in formats]
    layer = {"Name": "l", "LayerType": kind, "Inputs": ports[:1], "Outputs": ports[1:], **fields}
    return json.dumps({"Layers": [layer]})


def test_a_float32_engine_is_reported_with_its_share() -> None:
    shares = layer_shares(read_layers(answer("fp32"), "fp16"))
    assert shares == {"float32": 1.0}
    assert precision_problem("fp16", shares, 0.1) == (
        "the engine was requested in fp16, but none of its layers is in float16 (the minimum is"
        " 10 %): 100 % in float32"
    )
    assert precision_problem("fp32", shares, 0.1) == ""


def test_a_wider_type_at_the_ends_of_a_fused_part_does_not_count() -> None:
    full, half = "Row major linear FP32", "Row major linear FP16 format"
    fused, fused_half = (one_layer(full, output, kind="Myelin") for output in (full, half))
    for precision in ("fp32", "fp16", "int8"):
        assert layer_shares(read_layers(fused, precision)) == {}
    assert layer_shares(read_layers(fused_half, "fp16")) == {"float16": 1.0}
    assert layer_shares(read_layers(fused_half, "int8")) == {}  # which may be inside
    plain = one_layer(full, half, kind="CaskGemm")
    assert layer_shares(read_layers(plain, "int8")) == {"float16": 1.0}


@pytest.mark.parametrize(
    ("formats", "dtype"),
    [
        (("Row major linear FP32", "Row major linear FP32"), "float32"),
        (("Row major linear FP32", "Channel major FP16 format where channel % 8 == 0"), "float16"),
        (
            ("Thirty-two wide channel vectorized row major Int8 format", "Row major linear FP32"),
            "int8",
        ),
        (("Row major linear BF16", "Row major linear FP32"), "bfloat16"),
        (("Row major linear FP8", "Row major linear FP16"), "float8e4m3fn"),
        (("Half", "Float"), "float16"),
        (("Row major Int32", "Row major Int32"), None),
        (("Row major linear Bool", "N/A due to dynamic shapes"), None),
    ],
)
def test_the_words_of_formats(formats: tuple[str, str], dtype: str | None) -> None:
    assert [layer.dtype for layer in read_layers(one_layer(*formats), "fp16")] == [dtype]


@pytest.mark.parametrize(
    "fields", [{"kind": kind} for kind in ("Reformat", "NoOp", "Constant", "ShapeHostToDevice")]
    + [{"kind": "kgen", "Origin": "REFORMAT"}],
)  # fmt: skip
def test_layers_without_arithmetic_do_not_count(fields: dict[str, Any]) -> None:
    text = one_layer("Row major linear FP16", "Row major linear FP16", **fields)
    assert layer_shares(read_layers(text, "fp16")) == {}


def test_shares_of_layers_and_of_time() -> None:
    layers = read_layers(answer("fp16"), "fp16")
    times = {layer.name: 2.0 if layer.kind == "Reformat" else 1.0 for layer in layers}
    found = precision_facts(layers, times, "fp16")["precision_shares"]
    assert found == {"layers": {"float16": 1.0}, "time": {"float16": 0.5556, "other": 0.4444}}
    facts = precision_facts(layers, {}, "fp16")
    assert facts["precision_shares"] == {"layers": found["layers"]}
    assert facts["precision_of"] == "engine"
    assert "warnings" not in facts
    assert precision_facts([], {}, "fp16") == {"engine_layers": {}}


@pytest.mark.parametrize(
    ("share", "least", "said"),
    [
        (
            0.04,
            0.1,
            "only 4.0 % of its layers are in int8 (the minimum is 10 %):"
            " 96 % in float32, 4 % in int8",
        ),
        (0.1, 0.1, ""),
        (0.01, 0.0, ""),
        (0.0, 0.0, "none of its layers is in int8: 100 % in float32, 0 % in int8"),
    ],
)
def test_too_small_a_share(share: float, least: float, said: str) -> None:
    found = precision_problem("int8", {"float32": 1 - share, "int8": share}, least)
    assert found == (f"the engine was requested in int8, but {said}" if said else "")


def test_names_alone_have_no_types() -> None:
    layers = read_layers(
        '{"Layers": ["/conv0 + /relu0", "Reformatting CopyNode"], "Bindings": ["x"]}', "fp16"
    )
    assert [layer.name for layer in layers] == ["/conv0 + /relu0", "Reformatting CopyNode"]
    assert layer_shares(layers) == {}


def test_an_int8_transformer_of_one_part_has_one_known_type() -> None:
    """swin_t with quantizers: TensorRT 8.6.0 fuses all but one convolution."""
    layers = read_layers(answer("swin-int8"), "int8")
    assert precision_facts(layers, {}, "fp16")["engine_layers"] == {
        "Reformat": 3,
        "CaskConvolution": 1,
        "Myelin": 1,
    }
    assert layer_shares(layers) == {"int8": 1.0}
    times = {layer.name: 97.0 if layer.is_fused else 1.0 for layer in layers}
    facts = precision_facts(layers, times, "int8")
    assert facts["precision_shares"]["time"] == {"int8": 0.0099, "other": 0.0297, "unknown": 0.9604}
    assert facts["warnings"] == [facts["precision_unknown"]]
    assert facts["warnings"][0].startswith(
        "96 % of the engine is in parts of unknown types, so the share of int8 is unknown: "
    )


@pytest.mark.parametrize(("precision", "warns"), [("fp16", True), ("fp32", False)])
def test_an_engine_of_unknown_types_has_a_warning(precision: str, *, warns: bool) -> None:
    facts = precision_facts(read_layers(answer("attention"), precision), {}, precision)
    assert facts["precision_unknown"].startswith("100 % of the engine is in parts of unknown types")
    assert ("warnings" in facts) is warns
    assert "precision_of" not in facts


def test_every_layer_names_the_nodes_that_it_computes() -> None:
    layers = read_layers(answer("fp16"), "fp16")
    facts = precision_facts(layers, {"/conv1 + /relu1": 3.0, "/conv0 + /relu0": 1.0}, "fp16")
    slowest, *_ = facts["slowest_layers"]
    assert (slowest["name"], slowest["time_ms"]) == ("/conv1 + /relu1", 3.0)
    copy, first, second, *_ = facts["layer_nodes"]
    assert (copy["kind"], copy["nodes"]) == ("Reformat", [])
    assert (first["nodes"], first["precision"]) == (["/conv0", "/relu0"], "float16")
    assert (second["time_ms"], second["share"]) == (3.0, 0.75)
    assert len(facts["layer_nodes"]) == len(layers)
    assert "time_ms" not in copy


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("/conv + /relu", ("/conv", "/relu")),
        ("PWN(PWN(/a/Sigmoid), /a/Mul)", ("/a/Sigmoid", "/a/Mul")),
        ("weight + (Unnamed Layer* 3) [Shuffle] + /MatMul", ("weight", "/MatMul")),
        ("Reformatting CopyNode for Input Tensor 0 to /conv + /relu", ()),
        ("{ForeignNode[a...b]}", ()),
    ],
)
def test_the_nodes_of_a_layer_without_metadata(name: str, nodes: tuple[str, ...]) -> None:
    (layer,) = read_layers(json.dumps({"Layers": [name]}), "fp16")
    assert layer.nodes == nodes
    (layer,) = read_layers(json.dumps({"Layers": [{"Name": name, "Metadata": ""}]}), "fp16")
    assert layer.nodes == nodes
