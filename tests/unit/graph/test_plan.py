from __future__ import annotations

from typing import Any

import pytest

from buildsys.graph.action import Action
from buildsys.graph.plan import plan_model
from buildsys.manifest.schema import ModelSpec

MANIFEST: dict[str, Any] = {
    "model": "net",
    "source": {"python": "plugins/net.py:make", "weights": {"file": "weights/net.pth"}},
    "inputs": {
        "x": {"shape": ["batch", 4], "data": {"npz": "data/x.npz"}},
        "ids": {"shape": ["batch"], "dtype": "int64"},
    },
    "outputs": {"y": {}},
    "dims": {"batch": {"min": 1, "opt": 4, "max": 8}},
    "engines": [
        {"backend": "onnxruntime", "name": "ort"},
        {"backend": "tensorrt_rtx", "name": "rtx16", "precision": "fp16"},
    ],
}


def plan(**changes: Any) -> dict[str, Action]:
    spec = ModelSpec.model_validate({**MANIFEST, **changes})
    return {action.target: action for action in plan_model(spec.model_dump(mode="json", by_alias=True))}


def changed(**changes: Any) -> set[str]:
    """Return the targets whose own options or sources differ from those of the plain manifest."""
    before, after = plan(), plan(**changes)
    return {
        target
        for target in before.keys() | after.keys()
        if target not in before
        or target not in after
        or (before[target].options, before[target].sources) != (after[target].options, after[target].sources)
    } - {"report:net"}


def test_targets_come_after_what_they_read() -> None:
    seen: set[str] = set()
    for target, action in plan().items():
        assert seen.issuperset(action.after + action.order), target
        seen.add(target)


def test_every_input_is_an_output_of_a_target_that_it_comes_after() -> None:
    actions = plan()
    for action in actions.values():
        written = {ref.path for target in action.after for ref in actions[target].outputs.values()}
        assert {ref.path for ref in action.inputs.values()} <= written, action.target


def test_no_two_targets_write_the_same_file() -> None:
    paths = [ref.path for action in plan().values() for ref in action.outputs.values()]
    assert len(paths) == len(set(paths))


@pytest.mark.parametrize(
    ("changes", "targets"),
    [
        ({"bench": {"duration": "1s"}}, {"bench:net:ort", "bench:net:rtx16"}),
        ({"export": {"opset": 18}}, {"export:net"}),
        ({"simplify": {"tool": "onnxslim"}}, {"simplify:net"}),
        ({"validate": {"rtol": 1e-3}}, {"validate:net"}),
        ({"verify": {"fp16": {"rtol": 0.5}}}, {"convert:net:fp16", "verify:net:rtx16"}),
        ({"verify": {"fp32": {"rtol": 0.5}}}, {"verify:net:ort"}),
        ({"description": "a net"}, set()),
        ({"timeout": {"export": "1min"}}, set()),
        (
            {"engines": [{**MANIFEST["engines"][0], "intra_op_threads": 1}, MANIFEST["engines"][1]]},
            {"engine:net:ort", "verify:net:ort", "bench:net:ort"},
        ),
        (
            {"engines": [{**MANIFEST["engines"][0], "tolerance": {"rtol": 0.1}}, MANIFEST["engines"][1]]},
            {"verify:net:ort"},
        ),
        (
            {"engines": [MANIFEST["engines"][0], {**MANIFEST["engines"][1], "tolerance": {"rtol": 0.1}}]},
            {"verify:net:rtx16"},
        ),
        (
            {"engines": [MANIFEST["engines"][0]]},
            {"convert:net:fp16", "engine:net:rtx16", "verify:net:rtx16", "bench:net:rtx16"},
        ),
    ],
)  # fmt: skip
def test_a_field_reaches_exactly_the_stages_that_use_it(changes: dict[str, Any], targets: set[str]) -> None:
    assert changed(**changes) == targets


def test_a_wider_range_does_not_touch_the_export() -> None:
    targets = changed(dims={"batch": {"min": 1, "opt": 8, "max": 16}})
    assert "export:net" not in targets
    assert {"reference:net", "validate:net", "engine:net:ort"} <= targets


def test_user_files_are_sources_of_the_stages_that_load_them() -> None:
    actions = plan()
    assert actions["export:net"].sources == ("plugins/net.py", "weights/net.pth")
    assert actions["reference:net"].sources == ("plugins/net.py", "weights/net.pth", "data/x.npz")
    assert actions["simplify:net"].sources == ()


def test_a_half_precision_engine_is_built_from_the_converted_model() -> None:
    actions = plan()
    assert actions["engine:net:rtx16"].after == ("convert:net:fp16",)
    assert actions["engine:net:ort"].after == ("simplify:net",)


def test_a_conversion_is_checked_in_the_cases_of_verify() -> None:
    convert = plan(verify={"cases": ["min", "max"], "fp16": {"rtol": 0.5}})["convert:net:fp16"]
    assert convert.after == ("simplify:net", "reference:net")
    assert set(convert.options) == {"precision", "tolerance", "cases"}
    assert convert.options["cases"] == {"min": {"batch": 1}, "max": {"batch": 8}}
    assert convert.options["tolerance"] == {"rtol": 0.5, "cosine": 0.999, "atol": None, "top1": None}
    assert set(convert.inputs) == {"model", "model.data", "case.min", "case.max"}
    assert "onnxruntime" in convert.tools
