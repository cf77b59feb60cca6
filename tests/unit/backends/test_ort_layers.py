"""Layers of ONNX Runtime engines: their times and their source nodes."""

import json
from pathlib import Path
from typing import Any

import pytest
from onnx import GraphProto, NodeProto, TensorProto, helper

from buildsys.backends.onnxruntime.graphs import read_layers, source_nodes


def event(name: str, ts: int, dur: int, operator: str = "", **types: Any) -> dict[str, Any]:
    return {"name": name, "ts": ts, "dur": dur, "args": {"op_name": operator, **types}}


def profile(folder: Path, *events: dict[str, Any]) -> Path:
    path = folder / "profile.json"
    path.write_text(json.dumps(events))
    return path


def test_layers_have_the_mean_of_all_runs_but_the_first(tmp_path: Path) -> None:
    runs = [event("model_run", 1000 * n, 900) for n in range(4)]
    floats = {"input_type_shape": [{"float": [1]}], "output_type_shape": [{"float": [1]}]}
    slow = [
        event("a_kernel_time", 1000 * n, t, "Conv", **floats)
        for n, t in enumerate((800, 30, 10, 20))
    ]
    fast = [event("b_kernel_time", 1000 * n + 50, 5, "Add", **floats) for n in range(4)]
    first, second = read_layers(profile(tmp_path, *runs, *slow, *fast))
    assert first == {
        "name": "a", "kind": "Conv", "precision": "float32", "time_ms": 0.02, "share": 0.8,
    }  # fmt: skip
    assert (second["name"], second["share"]) == ("b", 0.2)


def test_layers_of_several_providers_name_them(tmp_path: Path) -> None:
    titles = ("OpenVINOExecutionProvider", "OpenVINOExecutionProvider", "CPUExecutionProvider")
    events = [
        event(f"n{index}_kernel_time", index, 10, "Conv", provider=title)
        for index, title in enumerate(titles)
    ]
    layers = read_layers(profile(tmp_path, event("model_run", 0, 90), *events), with_providers=True)
    assert [(layer["provider"], layer["provider_share"]) for layer in layers] == [
        ("openvino", 0.6667), ("openvino", 0.6667), ("cpu", 0.3333),
    ]  # fmt: skip


def test_a_loop_counts_by_the_nodes_of_its_body(tmp_path: Path) -> None:
    run = event("model_run", 0, 900)
    inner = [event("in_kernel_time", n, 10, "Mul") for n in range(3)]
    (layer,) = read_layers(profile(tmp_path, run, *inner, event("l_kernel_time", 0, 40, "Loop")))
    assert (layer["name"], layer["time_ms"]) == ("in", 0.03)


@pytest.mark.parametrize(
    ("inputs", "outputs", "precision"),
    [
        (["int8", "float"], ["float"], "int8"),
        (["float16"], ["float"], "float16"),
        (["int64"], ["int64"], "int64"),
        ([], [], None),
    ],
)
def test_a_layer_counts_by_its_narrowest_type(
    tmp_path: Path, inputs: list[str], outputs: list[str], precision: str | None
) -> None:
    types = {
        "input_type_shape": [{name: [1]} for name in inputs],
        "output_type_shape": [{name: [1]} for name in outputs],
    }
    events = (event("model_run", 0, 9), event("a_kernel_time", 1, 1, "Op", **types))
    assert read_layers(profile(tmp_path, *events))[0]["precision"] == precision


def node(operator: str, inputs: str, outputs: str, name: str = "", **more: Any) -> NodeProto:
    return helper.make_node(operator, inputs.split(), outputs.split(), name or outputs, **more)


def graph(*nodes: NodeProto) -> GraphProto:
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in ("x", "y")]
    return helper.make_graph(nodes, "g", ports[:1], ports[1:])


def test_a_fused_node_has_the_nodes_up_to_tensors_of_the_engine() -> None:
    source = graph(
        node("Div", "x c", "d"),
        node("Erf", "d", "e"),
        node("Mul", "x e", "m"),
        node("Relu", "m", "y"),
    )
    engine = graph(node("Gelu", "x", "m", "Gelu_1"), node("Relu", "m", "y"))
    assert source_nodes(source, engine) == {"Gelu_1": ["d", "e", "m"]}


def test_a_blocked_convolution_has_its_addition_and_activation() -> None:
    source = graph(
        node("Conv", "x w1", "c1"), node("Relu", "c1", "r1"), node("Conv", "r1 w2", "c2"),
        node("Add", "c2 r1", "a"), node("Relu", "a", "y"),
    )  # fmt: skip
    engine = graph(
        node("ReorderInput", "x", "t0", "ReorderInput"),
        node("Conv", "t0 w1", "t1", "r1_nchwc", activation="Relu"),
        node("Conv", "t1 w2 b t1", "t2", "c2_nchwc", activation="Relu"),
        node("ReorderOutput", "t2", "y", "ReorderOutput"),
    )
    assert source_nodes(source, engine) == {
        "ReorderInput": [],
        "r1_nchwc": ["c1", "r1"],
        "c2_nchwc": ["c2", "a", "y"],
        "ReorderOutput": [],
    }


def test_nodes_of_fp16_that_run_in_fp32_have_their_own() -> None:
    source = graph(
        node("Cast", "x", "h"), node("Gemm", "h w", "p"), node("Relu", "p", "q"),
        node("Gemm", "q v", "r"), node("Cast", "r", "y"),
    )  # fmt: skip
    copy = "InsertedPrecisionFreeCast_{}".format
    engine = graph(
        node("FusedGemm", "x w", copy("q"), "fused p"),
        node("Gemm", f"{copy('q')} v", copy("r"), "r"),
        node("Cast", copy("r"), "y"),
    )
    assert source_nodes(source, engine) == {"fused p": ["h", "p", "q"]}
