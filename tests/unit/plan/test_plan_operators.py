"""Custom operators in the plan, and plans without any."""

from typing import Any

from planning import plan_of

from buildsys.plan.action import Action

FUNCTION = "plugins/ops/swish.py:swish"
LIBRARY = {"sources": ["plugins/ops/swish.c"], "flags": ["-lm"]}
PLUGIN = {"python": "plugins/ops/swish_plugin.py"}
MANIFEST: dict[str, Any] = {
    "model": "net",
    "source": {"python": "plugins/net.py:make"},
    "inputs": {"x": {"shape": [2, 4]}},
    "engines": [
        {"backend": "onnxruntime", "name": "ort"},
        {"backend": "tensorrt_rtx", "name": "rtx"},
        {"backend": "tensorrt_rtx", "name": "half", "precision": "fp16"},
    ],
}


def plan(*ops: dict[str, Any], **changes: Any) -> dict[str, Action]:
    return plan_of({**MANIFEST, **changes, "ops": ops})


def entries(actions: dict[str, Action], target: str) -> Any:
    return actions[target].options.get("operators")


def test_a_model_without_operators_has_no_operator_targets() -> None:
    for action in plan().values():
        assert action.stage != "operators"
        assert "operators" not in action.options
        assert not [
            role
            for role in (*action.inputs, *action.outputs)
            if "library" in role or "functions" in role
        ]


def test_a_common_function_affects_the_export_only() -> None:
    actions = plan({"op": "a::b", "function": FUNCTION})
    assert set(actions["operators:net"].outputs) == {"functions", "result"}
    assert actions["export:net"].inputs.keys() == {"functions"}
    assert not any("operators" in action.options for action in actions.values())


def test_a_library_is_for_onnx_runtime_and_copied_next_to_its_engine() -> None:
    actions = plan(
        {"op": "a::b", "function": FUNCTION, "library": LIBRARY, "use": {"onnxruntime": "library"}}
    )
    for target in ("simplify:net", "validate:net", "convert:net:fp16", "engine:net:ort"):
        assert entries(actions, target) == [{"op": "a::b", "kind": "library", "library": "swish"}]
        assert actions[target].inputs["library.swish"].path == "net/operators/swish.so"
    assert actions["engine:net:ort"].outputs["library.swish"].path == "net/engine/ort/swish.so"
    for target in ("verify:net:ort", "bench:net:ort"):
        assert actions[target].inputs["library.swish"].path == "net/engine/ort/swish.so"
    for target in (
        "engine:net:rtx",
        "verify:net:rtx",
        "bench:net:half",
        "export:net",
        "reference:net",
    ):
        assert entries(actions, target) is None


def test_a_python_plugin_is_a_source_of_the_stages_that_load_it() -> None:
    actions = plan({"op": "a::b", "library": LIBRARY, "plugin": PLUGIN})
    for target in ("engine:net:rtx", "verify:net:rtx", "bench:net:half"):
        assert entries(actions, target) == [
            {"op": "a::b", "kind": "plugin", "python": PLUGIN["python"]}
        ]
        assert PLUGIN["python"] in actions[target].sources
    assert PLUGIN["python"] not in actions["engine:net:ort"].sources


def test_each_backend_may_have_a_different_function() -> None:
    actions = plan(
        {
            "op": "a::b",
            "function": {"onnxruntime": FUNCTION, "tensorrt_rtx": "plugins/ops/x.py:rtx"},
        }
    )
    assert set(actions["operators:net"].outputs) == {
        "functions",
        "functions.tensorrt_rtx",
        "result",
    }
    assert entries(actions, "engine:net:ort") is None
    assert entries(actions, "engine:net:rtx") == [{"op": "a::b", "kind": "function"}]
    assert (
        actions["engine:net:rtx"].inputs["functions"].path
        == "net/operators/functions.tensorrt_rtx.onnx"
    )
    assert entries(actions, "verify:net:rtx") is None
