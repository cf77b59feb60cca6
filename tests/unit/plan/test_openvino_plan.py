"""Fields of OpenVINO engines, and what they change in the plan; without the library."""

from typing import Any

import pytest
from planning import plan_engines

from buildsys.plan.action import Action

CALIBRATION = {"data": {"x": {"npz": "data/calibration.npz"}}}


def plan(**fields: Any) -> dict[str, Action]:
    engine = {"backend": "openvino", "name": "e", **fields}
    return plan_engines(engine, calibration=CALIBRATION)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
def test_every_precision_is_built_from_the_simplified_graph(precision: str) -> None:
    found = plan(precision=precision)
    engine = found["engine:m:e"]
    assert engine.inputs["model"].path == "m/simplify/model.onnx"
    assert not any(target.startswith("convert") for target in found)
    assert engine.options["dims"] == {"batch": {"min": 1, "opt": 4, "max": 8}}
    assert engine.devices[0] == "cpu"


def test_int8_depends_on_the_batches_and_on_nncf() -> None:
    quantized, plain = plan(precision="int8")["engine:m:e"], plan()["engine:m:e"]
    assert quantized.inputs["batches"].path == "m/calibrate/batches.npz"
    assert "calibrate:m" in quantized.after
    assert (quantized.tools, plain.tools) == (("openvino", "nncf"), ("openvino",))
    assert "batches" not in plain.inputs


def test_the_number_of_cores_counts_only_if_it_decides_the_threads() -> None:
    assert plan()["engine:m:e"].devices == ("cpu", "cores")
    assert plan(threads=2)["engine:m:e"].devices == ("cpu",)
