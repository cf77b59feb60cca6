"""Engines with ``precision: auto`` in the plan."""

from typing import Any

import pytest
from planning import plan_engines as plan

from buildsys.plan.action import Action

CALIBRATION = {"data": {"x": {"random": "normal"}}}


def targets(found: dict[str, Action], *stages: str) -> list[str]:
    return [target for target, action in found.items() if action.stage in stages]


def test_engines_of_several_backends_share_one_search_and_one_graph() -> None:
    found = plan(
        {"precision": "auto-fp16"},
        {"backend": "tensorrt_rtx", "precision": "auto"},
        {"precision": "fp16"},
    )
    assert targets(found, "search", "convert") == [
        "search:m:auto-fp16", "convert:m:auto-fp16", "convert:m:fp16",
    ]  # fmt: skip
    search, convert = found["search:m:auto-fp16"], found["convert:m:auto-fp16"]
    assert search.options["search"] == {"trials": 100, "margin": 0.2}
    assert {role: ref.path for role, ref in search.outputs.items()} == {
        "nodes": "m/search/auto-fp16/nodes.json", "result": "m/search/auto-fp16/search.json",
    }  # fmt: skip
    assert convert.options == found["convert:m:fp16"].options
    assert {k: v for k, v in search.options.items() if k != "search"} == convert.options
    assert convert.inputs["nodes"].path == "m/search/auto-fp16/nodes.json"
    assert "nodes" not in found["convert:m:fp16"].inputs
    assert "search:m:auto-fp16" in convert.after
    for name in ("e0", "e1"):
        engine = found[f"engine:m:{name}"]
        assert engine.inputs["model"].path == "m/convert/auto-fp16/model.onnx"
        assert "nodes" not in engine.inputs
        assert (engine.options["engine"]["precision"], engine.options["engine"]["auto"]) == (
            "fp16", True,
        )  # fmt: skip
    assert found["engine:m:e2"].inputs["model"].path == "m/convert/fp16/model.onnx"


def test_the_metric_of_a_half_is_the_limit_and_the_engine_is_evaluated_on_the_rest() -> None:
    engines = {"precision": "auto-int8"}, {"precision": "int8"}
    evaluate = {"data": {"npz": "val.npz"}, "metric": "top1", "drop": "1%"}
    sections = {"calibration": CALIBRATION, "evaluate": evaluate}
    before, found = (
        plan(*engines, **sections),
        plan(*engines, **sections, search={"limit": "metric"}),
    )
    changed = {target for target, action in found.items() if action != before[target]}
    assert changed == {
        "search:m:auto-int8", "convert:m:auto-int8", "verify:m:e0", "evaluate:m:e0",
        "evaluate:m:e1", "report:m",
    }  # fmt: skip
    search, *evaluations = (
        found[target] for target in ("search:m:auto-int8", "evaluate:m:e0", "evaluate:m:e1")
    )
    assert search.options["search"] == before[search.target].options["search"]
    assert search.options["drop"] == 0.01
    halves = [action.options["evaluate"]["half"] for action in (search, *evaluations)]
    assert halves == ["search", "rest", "rest"]  # comparable engines
    whole = before["evaluate:m:e1"].options["evaluate"]
    assert {**search.options["evaluate"], "half": ""} == whole
    assert search.inputs["original"] == evaluations[0].inputs["original"]
    assert {"predict:m", "calibrate:m"} <= {*search.after}
    assert "batches" in search.inputs  # it may have none of the samples
    assert "val.npz" in search.sources
    assert "buildsys.stages.search.by_metric" in search.code
    for target in ("search:m:auto-int8", "convert:m:auto-int8", "verify:m:e0"):
        assert found[target].options["limit"] == "metric"


def test_limits_of_an_engine_have_a_search_of_their_own() -> None:
    own = {"precision": "auto-fp16", "tolerance": {"rtol": 1e-3, "cosine": 0.99}}
    found = plan({"precision": "auto-fp16"}, own)
    assert targets(found, "search") == ["search:m:auto-fp16", "search:m:auto-fp16-e1"]
    limits = {
        target: found[target].options["tolerance"]["rtol"] for target in targets(found, "search")
    }
    assert limits == {"search:m:auto-fp16": None, "search:m:auto-fp16-e1": 1e-3}
    assert found["engine:m:e1"].inputs["model"].path == "m/convert/auto-fp16-e1/model.onnx"


@pytest.mark.parametrize(
    ("engine", "converted"),
    [
        ({"backend": "openvino", "precision": "auto"}, True),
        ({"backend": "openvino", "precision": "auto-fp16"}, True),
        ({"backend": "tensorrt", "precision": "auto", "typing": "weak"}, False),
        ({"backend": "tensorrt", "precision": "auto", "typing": "strong"}, True),
        ({"backend": "openvino", "precision": "auto-int8"}, True),
        ({"backend": "tensorrt", "precision": "auto-int8", "typing": "weak"}, True),
    ],
)
def test_builders_of_the_float32_graph_read_the_list(
    engine: dict[str, Any], converted: bool
) -> None:
    found = plan(engine, calibration=CALIBRATION)
    built, (search,) = found["engine:m:e0"], targets(found, "search")
    variant = search.rpartition(":")[2]
    assert ("nodes" in built.inputs) == (not converted)
    assert (search in built.after) == (not converted)
    graph = f"m/convert/{variant}/model.onnx" if converted else "m/simplify/model.onnx"
    assert built.inputs["model"].path == graph
    assert targets(found, "convert") == ([f"convert:m:{variant}"] if converted else [])
    assert "batches" not in built.inputs
