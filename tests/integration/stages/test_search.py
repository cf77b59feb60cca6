"""Engines with ``precision: auto``, from the search to their check."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper
from quantize_jobs import Chain, images_net, overflowing_net, replace_weights, uneven_net
from small_graphs import parse, weights

from buildsys.backends.openvino.options import OpenVinoEngine
from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import load_model


def listed(chain: Chain, variant: str) -> dict[str, Any]:
    text = (chain.build / f"m/search/{variant}/nodes.json").read_text()
    return dict(json.loads(text))


def test_an_overflowing_layer_stays_in_fp32_and_the_rest_does_not(tmp_path: Path) -> None:
    chain = Chain(tmp_path, overflowing_net(), precision="auto-fp16")
    figures = chain.run("search:m:auto-fp16").figures
    assert figures["nodes"] == [["Mul_b", "Mul"], ["Div_d", "Div"]]
    assert figures["without"] == {**figures["without"], "passed": False}
    assert figures["with"]["passed"] is True
    assert (figures["is_smallest"], figures["is_fp32"]) == (True, False)
    assert figures["macs_low"] == 1.0
    assert figures["limits"]["rtol"] == pytest.approx(0.8 * 2e-2)
    assert figures["limits"]["cosine"] == pytest.approx(1 - 0.8 * 1e-3)
    json.dumps(figures, allow_nan=False)
    assert listed(chain, "auto-fp16")["results"] == {"Mul_b": ["b"], "Div_d": ["d"]}
    converted = chain.run("convert:m:auto-fp16")
    assert converted.status == "passed"
    assert converted.figures["kept_reasons"]["Mul_b"] == "the search keeps it for the limits"
    assert chain.run("engine:m:e").status == "passed"
    verified = chain.run("verify:m:e")
    assert verified.status == "passed", verified.reason


def test_a_network_within_the_limits_keeps_nothing_after_one_check(tmp_path: Path) -> None:
    chain = Chain(tmp_path, precision="auto-fp16")
    figures = chain.run("search:m:auto-fp16").figures
    assert (figures["nodes"], figures["trials"], figures["is_fp32"]) == ([], 0, False)
    assert figures["with"] == figures["without"]
    assert listed(chain, "auto-fp16") == {"names": [], "all": False, "results": {}}
    assert chain.run("convert:m:auto-fp16").figures["kept_reasons"] == {}


def test_limits_that_no_choice_meets_leave_fp32_which_is_no_error(tmp_path: Path) -> None:
    chain = Chain(tmp_path, precision="auto-fp16", verify={"fp16": {"rtol": 1e-6}})
    figures = chain.run("search:m:auto-fp16").figures
    assert figures["is_fp32"] is True
    assert figures["macs_low"] == 0.0
    assert figures["with"]["passed"] is True
    assert len(figures["nodes"]) == figures["candidates"]
    result = chain.run("convert:m:auto-fp16")
    assert result.status == "passed"
    assert result.figures["warnings"] == [
        "all nodes stay in fp32: no choice of nodes in fp16 is within the limits"
    ]
    graph = load_model(chain.build / "m/convert/auto-fp16/model.onnx")
    assert [node.op_type for node in graph.graph.node] == [
        node.op_type for node in images_net().graph.node
    ]
    chain.run("engine:m:e")
    assert chain.run("verify:m:e").status == "passed"


def test_builders_of_the_float32_graph_also_keep_what_every_conversion_keeps(
    tmp_path: Path,
) -> None:
    """Weights beyond the range become infinite in a builder as well."""
    model = overflowing_net()
    small = helper.make_node("Mul", ["x", "small"], ["s"], name="/small")
    model.graph.node.insert(0, small)
    model.graph.node[1].input[0] = "s"
    replace_weights(model, w1=1e5 * weights(4, 3, 3, 3))
    model.graph.initializer.append(numpy_helper.from_array(np.float32([1e-5]), "small"))
    chain = Chain(tmp_path, model, precision="auto-fp16")
    names = [name for name, _ in chain.run("search:m:auto-fp16").figures["nodes"]]
    assert "/first" not in names
    listed_nodes = listed(chain, "auto-fp16")
    assert "/first" in {*listed_nodes["results"]} - {*listed_nodes["names"]}


def test_the_number_of_trials_is_bounded_and_what_was_found_passes(tmp_path: Path) -> None:
    chain = Chain(tmp_path, overflowing_net(), precision="auto-fp16", search={"trials": 1})
    figures = chain.run("search:m:auto-fp16").figures
    assert (figures["is_smallest"], figures["trials"]) == (False, 1)
    assert figures["with"]["passed"] is True


def test_the_layer_that_int8_destroys_stays_in_fp32(tmp_path: Path) -> None:
    chain = Chain(tmp_path, uneven_net(), precision="auto-int8", quantize={"per_channel": False})
    chain.run("calibrate:m")
    figures = chain.run("search:m:auto-int8").figures
    assert ["/second", "Conv"] in figures["nodes"]
    assert 0 < figures["macs_low"] < 1.0
    result = chain.run("convert:m:auto-int8")
    assert result.status == "passed", result.reason
    assert result.figures["quantized"]
    assert result.figures["kept_reasons"]["/second"] == "the search keeps it for the limits"
    assert "m/convert/int8" not in str(chain.action("engine:m:e").inputs)
    chain.run("engine:m:e")
    assert chain.run("verify:m:e").status == "passed"
    pytest.importorskip("openvino", reason="pip install 'buildsys[openvino]'")
    engine = chain.resolved["engines"][0]
    shared = {name: engine[name] for name in ("name", "precision")}
    spec = OpenVinoEngine.model_validate({**shared, "backend": "openvino", "threads": 1})
    chain.resolved["engines"] = [spec.model_dump(mode="json")]
    built = chain.run("engine:m:e")
    assert built.status == "passed", built.reason
    assert built.figures["precision_shares"]["layers"]["int8"] > 0
    assert chain.run("verify:m:e").status == "passed"


def test_a_graph_without_anything_to_convert_is_an_error(tmp_path: Path) -> None:
    ports = "(float[batch,3,8,8] x) => (float[batch,8,8] y)"
    model = parse(ports + '{ ["/norm"] y = ReduceL2 <axes = [1], keepdims = 0> (x) }')
    chain = Chain(tmp_path, model, precision="auto-fp16")
    with pytest.raises(StageError, match="no expensive operator can compute in float16"):
        chain.run("search:m:auto-fp16")


def test_a_search_within_a_time_needs_no_manifest(tmp_path: Path) -> None:
    chain = Chain(tmp_path, overflowing_net(), precision="fp16")
    figures = chain.run("convert:m:fp16", "search", limit_s=600.0).figures
    assert (figures["without"]["passed"], figures["with"]["passed"]) == (False, True)
    assert figures["nodes"] == [["Mul_b", "Mul"], ["Div_d", "Div"]]
    assert figures["is_smallest"] is True
    figures = chain.run("convert:m:fp16", "search", limit_s=0.0).figures
    assert figures["is_smallest"] is False
    assert figures["is_fp32"] or figures["with"]["passed"]
