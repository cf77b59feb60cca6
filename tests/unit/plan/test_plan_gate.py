"""Plan of the gate stage."""

from typing import Any

import pytest
from planning import plan_of

from buildsys.plan.action import Action, BaselineRef, FileRef

ENGINES = [{"backend": "onnxruntime", "name": name} for name in ("fast", "ort")]
TIMED = {"latency": {"tolerance": "5%"}}


def plan(toolchains: dict[str, Any] | None = None, **sections: Any) -> dict[str, Action]:
    manifest = {"model": "net", "source": {"torchvision": "resnet18"}, "engines": ENGINES}
    manifest |= {"inputs": {"x": {"shape": [4, 3, 8, 8]}}, **sections}
    return plan_of(manifest, toolchains=toolchains)


def test_without_gates_there_is_no_target() -> None:
    assert not any(target.startswith("gate:") for target in plan())


def test_gates_of_a_model_hold_for_every_engine_without_own_ones() -> None:
    own = [ENGINES[0], {**ENGINES[1], "gates": {"size": {"limit": "1MB"}}}]
    planned = plan(gates={"latency": {"tolerance": "5%"}}, engines=own)
    assert planned["gate:net:fast"].options["gates"] == {
        "latency": {"tolerance": 0.05, "limit": None}
    }
    assert planned["gate:net:ort"].options["gates"] == {
        "size": {"tolerance": None, "limit": 1_000_000}
    }
    assert "gate:net:ort" in planned["report:net"].after


def test_the_last_build_is_searched_and_another_engine_is_an_input() -> None:
    last = plan(gates={"size": {"tolerance": "2%"}})["gate:net:ort"].baseline
    assert last == BaselineRef("net/engine/ort/engine.onnx", "engine:net:ort")
    planned = plan(gates={"engine": "fast", "size": {"tolerance": "2%"}})
    assert planned["gate:net:ort"].baseline is None
    assert planned["gate:net:ort"].inputs["baseline.engine"].path == "net/engine/fast/engine.onnx"
    assert "engine:net:fast" in planned["gate:net:ort"].after
    assert "gate:net:fast" not in planned  # it is the baseline


@pytest.mark.parametrize(
    "engine",
    [
        {"backend": "onnxruntime"},
        {"backend": "onnxruntime", "providers": ["cuda"]},
        {"backend": "tensorrt_rtx"},
        {"backend": "tensorrt", "toolchain": "old"},
    ],
    ids=lambda engine: " ".join(map(str, engine.values())),
)
def test_a_gate_runs_the_engine_where_and_how_its_benchmark_does(engine: dict[str, Any]) -> None:
    planned = plan(
        toolchains={"old": {"python": "/opt/old/bin/python", "env": {}}},
        engines=[{"name": "e", **engine}],
        ops=[{"op": "a::b", "function": "b.py:f", "plugin": {"python": "plugins/b.py"}}],
        bench={"baselines": [], "warmup": "7ms", "cases": ["max", "opt"]},
        gates={**TIMED, "rounds": 9, "duration": "30ms", "required": True},
    )
    gate, bench = planned["gate:net:e"], planned["bench:net:e"]
    for field in (
        "sources", "packages", "tools", "toolchain", "peer_tools", "devices", "environment",
        "measures", "exclusive", "alone_on_gpu",
    ):  # fmt: skip
        assert getattr(gate, field) == getattr(bench, field), field
    assert gate.tools[:2] == ("python", "numpy")
    assert gate.code == ("buildsys.stages.gate.stage", *bench.code[1:])
    assert gate.required
    assert gate.after == ("engine:net:e", "reference:net")
    assert gate.outputs == {"result": FileRef("net/gate/e.json")}
    expected = {
        "gates": {"latency": {"tolerance": 0.05, "limit": None}},
        "engine": bench.options["engine"],
        "rounds": 9,
        "duration": 0.03,
        "warmup": bench.options["bench"]["warmup"],
        "case": "opt",
    }
    expected |= {name: bench.options[name] for name in ("operators",) if name in bench.options}
    if "gpu" in bench.options["bench"]:
        expected["gpu"] = bench.options["bench"]["gpu"]
    assert gate.options == expected


def test_a_gate_of_accuracy_reads_the_evaluations() -> None:
    sections = {"evaluate": {"data": {"npz": "val.npz"}, "metric": "top1"}}
    planned = plan(gates={"engine": "fast", "accuracy": {"drop": "0.5%"}}, **sections)
    action = planned["gate:net:ort"]
    assert action.options["gates"] == {"accuracy": {"drop": 0.005}}
    for role, name in (("evaluated", "ort"), ("baseline.evaluated", "fast")):
        assert action.inputs[role].path == f"net/evaluate/{name}.json"
        assert f"evaluate:net:{name}" in action.after
