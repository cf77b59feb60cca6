"""Plugins of TensorRT's own library, found for the operators of a model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trt_double import VERSIONS, RecordingTensorRt, planned

from buildsys.backends.interface import OperatorUse
from buildsys.backends.tensorrt.build import build_engine
from buildsys.backends.tensorrt.library import RTX, TRT_8, TRT_10, TRT_11
from buildsys.errors import StageError

NMS = "trt::EfficientNMS_TRT"


def build(folder: Path, generation: str, op: str = NMS) -> dict[str, Any]:
    """Build an engine with an operator by a TensorRT with one plugin."""
    made = RecordingTensorRt(generation)
    made.creators.append(
        SimpleNamespace(name="EfficientNMS_TRT", plugin_version="1", plugin_namespace="")
    )
    operators = (OperatorUse(op, "plugin", None), OperatorUse("a::other", "library", folder))
    return build_engine(
        made.library, made.request(folder, planned(generation), operators=operators)
    )


@pytest.mark.parametrize("generation", [TRT_8, TRT_10, TRT_11])
def test_an_engine_names_its_bundled_plugins(tmp_path: Path, generation: str) -> None:
    facts = build(tmp_path, generation)
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
    with pytest.raises(StageError) as caught:
        build(tmp_path, TRT_8, op)
    assert str(caught.value) == f"TensorRT 8.6.0 has {expected}"


def test_tensorrt_rtx_ships_none(tmp_path: Path) -> None:
    with pytest.raises(StageError) as caught:
        build(tmp_path, RTX)
    assert str(caught.value) == (
        f"TensorRT-RTX 1.7.1 ships no plugins, and {NMS} needs one; add function to its entry in"
        " ops, with use: {tensorrt: plugin}, or build this engine with backend: tensorrt"
    )
