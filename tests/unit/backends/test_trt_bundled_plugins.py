"""Plugins of TensorRT's own library, found for the operators of a model."""

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


@pytest.mark.parametrize(("generation", "op"), [(TRT_8, "trt::EficientNMS_TRT"), (RTX, "a::Quux")])
def test_a_plugin_that_the_library_does_not_have(tmp_path: Path, generation: str, op: str) -> None:
    with pytest.raises(StageError, match=f"has no plugin {op.rpartition('::')[2]}; name the"):
        build(tmp_path, generation, op)
