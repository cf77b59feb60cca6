"""Graphs, inputs, shape cases and golden files of the stages with surgery."""

from typing import Any

import pytest
from planning import plan_of

from buildsys.plan.action import Action
from buildsys.project.model import model_fields
from buildsys.project.plan import plan_model

MANIFEST: dict[str, Any] = {
    "model": "net",
    "source": {"python": "plugins/net.py:make"},
    "inputs": {"x": {"shape": ["batch", 4]}},
    "outputs": {"y": {}},
    "dims": {"batch": {"min": 1, "opt": 4, "max": 8}},
    "engines": [
        {"backend": "onnxruntime", "name": "ort"},
        {"backend": "tensorrt_rtx", "name": "rtx", "precision": "fp16"},
    ],
}
HOOK = {"function": "plugins/hooks/a.py:f"}
LATER = {"when": "after_simplify"}


def plan(*steps: dict[str, Any], **changes: Any) -> dict[str, Action]:
    return plan_of({**MANIFEST, "surgery": list(steps), **changes})


def test_an_empty_surgery_changes_nothing() -> None:
    spec = model_fields(MANIFEST)
    without = {section: value for section, value in spec.items() if section != "surgery"}
    assert plan_model(spec) == plan_model(without)
    assert not [target for target in plan() if target.startswith("surgery")]


@pytest.mark.parametrize(
    "steps",
    [[HOOK], [HOOK, {**HOOK, **LATER}], [{"cast": {"x": "int8"}}, {"rename": {"x": "z"}, **LATER}]],
)
def test_targets_with_surgery_follow_their_inputs(steps: list[dict[str, Any]]) -> None:
    actions, seen = plan(*steps), set[str]()
    for target, action in actions.items():
        assert seen.issuperset(action.after + action.order), target
        seen.add(target)
        written = {ref.path for other in action.after for ref in actions[other].outputs.values()}
        assert {ref.path for ref in action.inputs.values()} <= written, target
    paths = [ref.path for action in actions.values() for ref in action.outputs.values()]
    assert len(paths) == len(set(paths))


def test_golden_cases_follow_a_rename_and_validate_uses_those_of_each_graph() -> None:
    actions = plan({"rename": {"x": "image"}, **LATER})
    validate = actions["validate:net"]
    assert validate.inputs["case.min"].path == "net/reference/min.npz"
    assert validate.inputs["simplified.case.min"].path == "net/surgery/after_simplify/min.npz"
    assert list(validate.options["simplified_cases"]) == ["min", "opt", "max", "odd"]
    for target in ("verify:net:ort", "bench:net:ort", "convert:net:fp16"):
        assert actions[target].inputs["case.opt"].path == "net/surgery/after_simplify/opt.npz"
    assert list(actions["engine:net:rtx"].options["inputs"]) == ["image"]
    assert list(actions["simplify:net"].options["inputs"]) == ["x"]


FREED = {
    "function": "a.py:free", "inputs": {"x": {"shape": ["batch", 4]}}, "changes": "numbers",
    "reference": {"python": "a.py:truth"},
}  # fmt: skip


def test_a_freed_dimension_adds_cases() -> None:
    actions = plan(FREED, inputs={"x": {"shape": [1, 4]}})
    assert actions["reference:net"].options["cases"] == {"opt": {}}
    surgery = actions["surgery:net:after_export"]
    assert surgery.options["cases"]["max"] == {"dims": {"batch": 8}, "golden": "opt"}
    assert set(surgery.inputs) == {"model", "model.data", "case.opt"}
    assert {role for role in surgery.outputs if role.startswith("case")} == {
        "case.min",
        "case.opt",
        "case.max",
        "case.odd",
    }
    assert actions["engine:net:rtx"].options["dims"] == {"batch": {"min": 1, "opt": 4, "max": 8}}
    assert actions["export:net"].options["example"] == {}
    assert "network" not in actions["bench:net:ort"].options


def test_a_cut_graph_has_the_dimensions_of_its_inputs() -> None:
    dims = {**MANIFEST["dims"], "rows": {"min": 2, "opt": 8, "max": 16}}
    cut = {"cut": {"inputs": {"feat": {"shape": ["rows", 3]}}, "outputs": ["y"]}}
    actions = plan(cut, dims=dims)
    assert actions["reference:net"].options["cases"]["max"] == {"batch": 8}
    assert actions["verify:net:ort"].options["cases"]["max"] == {"rows": 16}
    assert (
        "network" not in actions["bench:net:ort"].options
    )  # PyTorch would be timed with the part that was cut off
    assert actions["engine:net:rtx"].options["inputs"] == {
        "feat": {"shape": ["rows", 3], "dtype": "float32"}
    }


def test_files_of_steps_are_sources_of_their_target() -> None:
    steps = [
        {"function": "plugins/ops/gelu.py:gelu"},
        {**HOOK, "changes": "numbers", "reference": {"npz": "data/truth.npz"}, **LATER},
        {
            "function": "plugins/hooks/b.py:f",
            "graph": "graphsurgeon",
            "changes": "numbers",
            "reference": {"python": "plugins/hooks/truth.py:t"},
            "inputs": {"x": {"shape": ["batch"], "data": {"python": "plugins/data/x.py:x"}}},
            **LATER,
        },
    ]
    actions = plan(*steps)
    assert actions["surgery:net:after_export"].sources == ("plugins/ops/gelu.py",)
    assert set(actions["surgery:net:after_simplify"].sources) == {
        "plugins/hooks/a.py",
        "data/truth.npz",
        "plugins/hooks/b.py",
        "plugins/hooks/truth.py",
        "plugins/data/x.py",
    }
    assert "onnx-graphsurgeon" in actions["surgery:net:after_simplify"].tools
    assert "onnx-graphsurgeon" not in actions["surgery:net:after_export"].tools
    others = [
        action
        for action in actions.values()
        if action.stage not in ("surgery", "export", "reference", "bench")
    ]
    assert not [action.target for action in others if action.sources]
