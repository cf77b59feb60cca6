"""Plugins of TensorRT's own library, found for the nodes of a graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from trt_double import VERSIONS, RecordingTensorRt, planned

from buildsys.backends.interface import OperatorUse
from buildsys.backends.tensorrt.build import build_engine
from buildsys.backends.tensorrt.library import GENERATIONS, RTX, TRT_8, TRT_10, TRT_11
from buildsys.backends.tensorrt.plugin_loading import bundled_plugins
from buildsys.errors import StageError

NMS = "trt::EfficientNMS_TRT"


def tensorrt(generation: str) -> RecordingTensorRt:
    """Return a TensorRT with a plugin."""
    made = RecordingTensorRt(generation)
    made.creators.append(
        SimpleNamespace(name="EfficientNMS_TRT", plugin_version="1", plugin_namespace="")
    )
    return made


def request(
    made: RecordingTensorRt, folder: Path, *nodes: dict[str, Any], op: str = NMS, **fields: Any
) -> Any:
    """Return the request to build an engine of a graph with nodes of one operator."""
    domain, _, name = op.rpartition("::")
    ports = [
        helper.make_tensor_value_info(port, TensorProto.FLOAT, [1])
        for port in ("x", f"y{len(nodes) - 1}")
    ]
    made_nodes = [
        helper.make_node(name, ["x"], [f"y{number}"], domain=domain, **attributes)
        for number, attributes in enumerate(nodes)
    ]
    graph = helper.make_graph(made_nodes, "g", *[[port] for port in ports])
    onnx.save(helper.make_model(graph), folder / "model.onnx")
    operators = (OperatorUse(op, "plugin", None), OperatorUse("a::other", "library", folder))
    options = planned(made.generation, **fields)
    return made.request(folder, options, operators=operators)


@pytest.mark.parametrize("generation", [TRT_8, TRT_10, TRT_11])
def test_an_engine_names_its_bundled_plugins(tmp_path: Path, generation: str) -> None:
    made = tensorrt(generation)
    facts = build_engine(made.library, request(made, tmp_path, {"limit": 0.5}))
    assert facts["plugins"] == [
        {
            "operator": NMS,
            "name": "EfficientNMS_TRT",
            "version": "1",
            "namespace": "",
            "bundled": f"TensorRT {VERSIONS[generation]}",
        }
    ]
    assert facts["messages"] == []


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("trt::EficientNMS_TRT", "no plugin EficientNMS_TRT; nearest: EfficientNMS_TRT"),
        ("trt::Quux", "no plugin Quux; name it like its plugin"),
    ],
)
def test_a_plugin_that_the_library_does_not_have(tmp_path: Path, op: str, expected: str) -> None:
    made = tensorrt(TRT_8)
    with pytest.raises(StageError) as caught:
        build_engine(made.library, request(made, tmp_path, {}, op=op))
    assert str(caught.value) == f"TensorRT 8.6.0 has {expected}"


def test_tensorrt_rtx_ships_none(tmp_path: Path) -> None:
    made = tensorrt(RTX)
    with pytest.raises(StageError) as caught:
        build_engine(made.library, request(made, tmp_path, {}))
    assert str(caught.value) == (
        f"TensorRT-RTX 1.7.1 ships no plugins, and {NMS} needs one; add function to its entry in"
        " ops, with use: {tensorrt: plugin}, or build this engine with backend: tensorrt"
    )


@pytest.mark.parametrize("generation", GENERATIONS)
def test_other_engines_need_no_plugin(tmp_path: Path, generation: str) -> None:
    made = RecordingTensorRt(generation)
    plain = replace(request(made, tmp_path, {}), operators=())
    assert bundled_plugins(made.library, plain) == []
