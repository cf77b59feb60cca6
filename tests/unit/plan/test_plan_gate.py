"""Plan of the gate stage."""

from __future__ import annotations

from typing import Any

from buildsys.manifest.schema.model import ModelSpec
from buildsys.plan.action import Action
from buildsys.plan.stage_table import plan_model

MANIFEST: dict[str, Any] = {
    "model": "net",
    "source": {"torchvision": "resnet18"},
    "inputs": {"x": {"shape": ["batch", 3, 8, 8]}},
    "dims": {"batch": {"min": 1, "opt": 4, "max": 8}},
    "engines": [
        {"backend": "onnxruntime", "name": "fast"},
        {"backend": "onnxruntime", "name": "ort"},
    ],
}


def plan(**sections: Any) -> dict[str, Action]:
    spec = ModelSpec.model_validate({**MANIFEST, **sections})
    return {
        action.target: action for action in plan_model(spec.model_dump(mode="json", by_alias=True))
    }


def test_without_gates_there_is_no_target() -> None:
    assert not any(target.startswith("gate:") for target in plan())


def test_gates_of_a_model_hold_for_every_engine_without_own_ones() -> None:
    own = [MANIFEST["engines"][0], {**MANIFEST["engines"][1], "gates": {"size": {"limit": "1MB"}}}]
    planned = plan(gates={"latency": {"tolerance": "5%"}}, engines=own)
    assert planned["gate:net:fast"].options["gates"] == {
        "latency": {"tolerance": 0.05, "limit": None}
    }
    assert planned["gate:net:ort"].options["gates"] == {
        "size": {"tolerance": None, "limit": 1_000_000}
    }
    assert "gate:net:ort" in planned["report:net"].after


def test_only_the_files_that_a_gate_needs_are_inputs() -> None:
    size = plan(gates={"size": {"tolerance": "2%"}})["gate:net:ort"]
    assert set(size.inputs) == {"engine", "engine.data"}
    assert size.order == ("verify:net:ort",)
    whole = plan(gates={name: {"tolerance": "5%"} for name in ("latency", "error", "build_time")})
    assert set(whole["gate:net:ort"].inputs) == {
        "engine", "engine.data", "case.opt", "built", "verified",
    }  # fmt: skip
    assert "verify:net:ort" in whole["gate:net:ort"].after


def test_the_last_build_is_searched_and_another_engine_is_an_input() -> None:
    last = plan(gates={"size": {"tolerance": "2%"}})["gate:net:ort"].baseline
    assert last is not None
    assert (last.engine, last.target) == ("net/engine/ort/engine.onnx", "engine:net:ort")
    planned = plan(gates={"engine": "fast", "size": {"tolerance": "2%"}})
    assert planned["gate:net:ort"].baseline is None
    assert planned["gate:net:ort"].inputs["baseline.engine"].path == "net/engine/fast/engine.onnx"
    assert "engine:net:fast" in planned["gate:net:ort"].after
    assert "gate:net:fast" not in planned  # it is the baseline


def test_gates_change_the_key_of_no_other_stage() -> None:
    before, after = plan(), plan(gates={"latency": {"tolerance": "5%"}})
    for target, action in before.items():
        if not target.startswith("report:"):
            assert after[target] == action
