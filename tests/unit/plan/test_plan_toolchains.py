"""Dependencies of engines with a toolchain."""

from typing import Any

import pytest
from planning import plan_engines, plan_of

from buildsys.plan.action import Action, ToolchainRef
from buildsys.plan.engine_typing import VersionOf, unknown_version

TRT86 = ToolchainRef(
    "trt86", "/opt/trt86/bin/python", (("A", "1"), ("LD_LIBRARY_PATH", "/opt/lib"))
)
WRITTEN = {
    "trt86": {"python": "/opt/trt86/bin/python", "env": {"LD_LIBRARY_PATH": "/opt/lib", "A": "1"}}
}


def plan(version_of: VersionOf = unknown_version, **engine: Any) -> dict[str, Action]:
    model = {
        "model": "net",
        "source": {"torchvision": "resnet18"},
        "inputs": {"x": {"shape": [1, 3, 32, 32]}},
        "engines": [
            {"backend": "onnxruntime", "name": "ort"},
            {"backend": "tensorrt", "name": "trt", **engine},
        ],
    }
    toolchains = WRITTEN if engine.get("toolchain") else None
    return plan_of(model, version_of=version_of, toolchains=toolchains)


def test_engine_and_verify_run_in_the_toolchain_and_bench_uses_it_as_a_peer() -> None:
    actions = plan(toolchain="trt86")
    for stage in ("engine", "verify"):
        action = actions[f"{stage}:net:trt"]
        assert action.runs_in == action.toolchain == TRT86
        assert {"python", "numpy", "cuda-bindings", "tensorrt"} <= set(action.tools)
        assert not action.peer_tools
        assert action.options["engine"]["toolchain"] == "trt86"
    bench = actions["bench:net:trt"]
    assert bench.toolchain == TRT86
    assert bench.runs_in is None
    assert set(bench.peer_tools) == {"python", "numpy", "cuda-bindings", "tensorrt"}
    assert "torch" in bench.tools
    assert "tensorrt" not in bench.tools


def test_other_targets_do_not_depend_on_the_toolchain() -> None:
    with_it, without = plan(toolchain="trt86"), plan()
    assert with_it.keys() == without.keys()
    for target, action in without.items():
        assert action.toolchain is None
        assert not action.peer_tools
        assert "toolchain" not in action.options.get("engine", {})
        if not target.endswith(":trt") and target != "report:net":
            assert with_it[target] == action


@pytest.mark.parametrize(
    ("version", "graph"), [("8.6.0", "simplify"), ("10.16.1", "simplify"), ("11.4.0", "convert")]
)
def test_typing_is_decided_by_the_tensorrt_of_the_toolchain(version: str, graph: str) -> None:
    asked: list[ToolchainRef | None] = []

    def version_of(toolchain: ToolchainRef | None) -> str:
        asked.append(toolchain)
        return version if toolchain else "1.0"

    engine = plan(version_of, toolchain="trt86", precision="fp16")["engine:net:trt"]
    assert engine.inputs["model"].path.split("/")[1] == graph
    assert set(asked) == {TRT86}


DYNAMO = {"export": {"exporter": "dynamo", "opset": 18}}


@pytest.mark.parametrize(
    ("version", "engine", "sections", "source"),
    [
        ("8.6.1.post1", {}, DYNAMO, "simplify:m"),
        ("8.6.1.post1", {}, {"source": {"onnx": "m.onnx"}}, "simplify:m"),  # of any opset
        ("8.6.1.post1", {}, {"surgery": [{"function": "hook.py:edit"}]}, "simplify:m"),
        ("8.6.1.post1", {"precision": "fp16"}, DYNAMO, "simplify:m"),
        (
            "8.6.1.post1",
            {"precision": "int8", "quantization": "explicit"},
            {**DYNAMO, "calibration": {"data": {"x": {"random": "normal"}}}},
            "convert:m:int8",
        ),
        ("8.6.1.post1", {}, {}, ""),
        ("10.16.1", {}, DYNAMO, ""),
        ("", {}, DYNAMO, ""),
        ("8.6.1.post1", {"backend": "onnxruntime"}, DYNAMO, ""),
    ],
)
def test_a_graph_newer_than_the_library_reads_is_lowered(
    version: str, engine: dict[str, Any], sections: dict[str, Any], source: str
) -> None:
    actions = plan_engines({"backend": "tensorrt", **engine}, version=version, **sections)
    lowered = [action for action in actions.values() if "lowered" in action.options]
    if not source:
        assert not lowered
        return
    (action,) = lowered
    assert action.after[0] == source
    assert action.options["lowered"] == {"opset": 17, "ir_version": 8}
    assert actions["engine:m:e0"].after[0] == action.target
    assert actions["engine:m:e0"].inputs["model"] == action.outputs["model"]
