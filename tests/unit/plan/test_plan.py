from __future__ import annotations

from typing import Any

import pytest
from planning import plan_of

from buildsys.plan.action import Action

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
    return plan_of({**MANIFEST, **changes})


def changed(**changes: Any) -> set[str]:
    """Return the targets with options or sources unlike the plain manifest's."""
    before, after = plan(), plan(**changes)
    return {
        target
        for target in before.keys() | after.keys()
        if target not in before
        or target not in after
        or (before[target].options, before[target].sources)
        != (after[target].options, after[target].sources)
    } - {"report:net"}


def test_targets_follow_their_inputs() -> None:
    seen: set[str] = set()
    for target, action in plan().items():
        assert seen.issuperset(action.after + action.order), target
        seen.add(target)


def test_every_input_is_an_output_of_an_earlier_target() -> None:
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
        ({"tags": ("nightly",), "owner": "vision team", "flaky": True}, set()),
        ({"timeout": {"export": "1min"}}, set()),
        (
            {
                "engines": [
                    {**MANIFEST["engines"][0], "intra_op_threads": 1},
                    MANIFEST["engines"][1],
                ]
            },
            {"engine:net:ort", "verify:net:ort", "bench:net:ort"},
        ),
        (
            {
                "engines": [
                    {**MANIFEST["engines"][0], "tolerance": {"rtol": 0.1}},
                    MANIFEST["engines"][1],
                ]
            },
            {"verify:net:ort"},
        ),
        (
            {
                "engines": [
                    MANIFEST["engines"][0],
                    {**MANIFEST["engines"][1], "tolerance": {"rtol": 0.1}},
                ]
            },
            {"verify:net:rtx16"},
        ),
        (
            {"engines": [MANIFEST["engines"][0]]},
            {"convert:net:fp16", "engine:net:rtx16", "verify:net:rtx16", "bench:net:rtx16"},
        ),
    ],
)
def test_a_field_reaches_exactly_the_stages_that_use_it(
    changes: dict[str, Any], targets: set[str]
) -> None:
    assert changed(**changes) == targets


@pytest.mark.parametrize("source", [{"torchvision": "resnet18"}, {"onnx": "net.onnx"}])
def test_preprocessing_and_labels_are_in_no_action(source: dict[str, Any]) -> None:
    given = {"source": source, "inputs": {"x": {"shape": ["batch", 3, 8, 8]}}, "outputs": {"y": {}}}
    labels = {"names": ["cat", "dog"], "activation": "sigmoid"}
    shown = {
        "inputs": {"x": {**given["inputs"]["x"], "preprocess": {"resize": 9}}},
        "outputs": {"y": {"labels": labels}},
    }
    assert plan(**given) == plan(**{**given, **shown})
    assert "preprocess" not in str(plan(**given))


def test_a_wider_range_does_not_touch_the_export() -> None:
    targets = changed(dims={"batch": {"min": 1, "opt": 8, "max": 16}})
    assert "export:net" not in targets
    assert {"reference:net", "validate:net", "engine:net:rtx16"} <= targets
    assert "engine:net:ort" in targets  # its record has the sizes that were verified


def test_another_usual_size_does_not_touch_engines_that_take_any() -> None:
    targets = changed(dims={"batch": {"min": 1, "opt": 2, "max": 8}})
    assert "engine:net:rtx16" in targets
    assert "engine:net:ort" not in targets


def test_user_files_are_sources_of_the_stages_that_load_them() -> None:
    actions = plan()
    assert actions["export:net"].sources == ("plugins/net.py", "data/x.npz")
    assert actions["reference:net"].sources == ("plugins/net.py", "data/x.npz")
    assert actions["simplify:net"].sources == ()
    with_weights = {
        target for target, action in actions.items() if action.weights == {"weights/net.pth": None}
    }
    assert with_weights == {"export:net", "reference:net", "bench:net:ort", "bench:net:rtx16"}


def test_a_half_precision_engine_is_built_from_the_converted_model() -> None:
    actions = plan()
    assert actions["engine:net:rtx16"].after == ("convert:net:fp16",)
    assert actions["engine:net:ort"].after == ("simplify:net",)


def test_a_conversion_is_checked_in_the_cases_of_verify() -> None:
    convert = plan(verify={"cases": ["min", "max"], "fp16": {"rtol": 0.5}})["convert:net:fp16"]
    assert convert.after == ("simplify:net", "reference:net")
    assert set(convert.options) == {"precision", "exclude", "tolerance", "cases"}
    assert convert.options["cases"] == {"min": {"batch": 1}, "max": {"batch": 8}}
    limits = convert.options["tolerance"]
    assert {name: limit for name, limit in limits.items() if limit is not None} == {"rtol": 0.5}
    assert set(convert.inputs) == {"model", "model.data", "assembled", "case.min", "case.max"}
    assert "onnxruntime" in convert.tools


@pytest.mark.parametrize(
    ("changes", "target", "tools"),
    [
        ({"source": {"torchvision": "resnet18"}}, "export:net", {"torchvision", "torch"}),
        ({"source": {"torchvision": "resnet18"}}, "bench:net:ort", {"torchvision", "torch"}),
        (
            {"export": {"exporter": "dynamo", "opset": 18}},
            "export:net",
            {"onnxscript", "onnx-ir", "sympy"},
        ),
        ({"simplify": {"tool": "onnxslim"}}, "simplify:net", {"onnxslim", "sympy"}),
        ({"outputs": {"y": {"dtype": "float8e4m3fn"}}}, "reference:net", {"ml_dtypes"}),
        (
            {"engines": [{"backend": "onnxruntime", "name": "ort", "provider": "cuda"}]},
            "verify:net:ort",
            {"nvidia-cudnn-cu13", "nvidia-cublas"},
        ),
    ],
)
def test_each_option_adds_the_libraries_it_uses(
    changes: dict[str, Any], target: str, tools: set[str]
) -> None:
    assert tools <= set(plan(**changes)[target].tools)
    assert not tools <= set(plan()[target].tools)


def test_an_onnx_source_uses_neither_torch_nor_a_seed_nor_an_exporter() -> None:
    def given(**changes: Any) -> dict[str, Action]:
        return plan(**{"source": {"onnx": "net.onnx"}, **changes})

    # ONNX Runtime decides the newest IR version and opset of the copy
    assert not {"torch", "python"} & set(given()["export:net"].tools)
    for change in ({"source": {"onnx": "net.onnx", "seed": 1}}, {"export": {"opset": 18}}):
        assert given(**change)["export:net"] == given()["export:net"]
    assert given(bench={"baselines": []})["bench:net:ort"] == given()["bench:net:ort"]


def test_simplification_is_compared_in_the_smallest_and_the_odd_shape_only() -> None:
    assert plan()["simplify:net"].options["cases"] == {"min": {"batch": 1}, "odd": {"batch": 3}}
    equal = {"batch": {"min": 2, "opt": 2, "max": 8}}
    assert plan(dims=equal)["simplify:net"].options["cases"] == {
        "opt": {"batch": 2},
        "odd": {"batch": 3},
    }
    assert plan(simplify={"tool": "none"})["simplify:net"].options["cases"] == {}


@pytest.mark.parametrize(
    ("section", "exporter", "entry"),
    [
        ("symbolics", "torchscript", {"op": "aten::a", "function": "plugins/s.py:f"}),
        ("symbolics", "torchscript", {"module": "plugins/s.py"}),
        ("translations", "dynamo", {"op": "aten::a", "function": "plugins/s.py:f"}),
    ],
)
def test_registered_operators_affect_the_export_only(
    section: str, exporter: str, entry: Any
) -> None:
    export = {"exporter": exporter, "opset": 18}
    without, actions = plan(export=export), plan(export=export, **{section: [entry]})
    found = {t for t in actions if actions[t] != without[t]} - {"report:net"}
    assert found == {"export:net"}
    assert actions["export:net"].sources == (*without["export:net"].sources, "plugins/s.py")


def test_an_empty_list_of_registrations_changes_no_action() -> None:
    known = ("symbolics", "translations")
    for action in plan(symbolics=[], translations=[]).values():
        options = action.options.get("manifest", action.options)
        assert not [section for section in known if section in options], action.target


CLIP = {
    "op": "mydomain::Clip",
    "function": "plugins/ops/clip.py:Clip",
    "plugin": {"python": "plugins/ops/clip_plugin.py"},
    "use": {"tensorrt_rtx": "plugin"},
}


def test_the_file_of_a_plugin_is_a_source_where_it_is_loaded() -> None:
    loading = {"engine:net:rtx16", "verify:net:rtx16", "bench:net:rtx16"}
    with_plugin, by_function = plan(ops=[CLIP]), plan(ops=[{**CLIP, "use": {}}])
    file = "plugins/ops/clip_plugin.py"
    assert {target for target, action in with_plugin.items() if file in action.sources} == loading
    assert {target for target, action in with_plugin.items() if "python" in action.tools} >= loading
    assert not any(file in action.sources for action in by_function.values())
    assert "python" not in by_function["engine:net:rtx16"].tools


def test_a_plugin_library_counts_by_its_content_where_it_is_loaded() -> None:
    library = {**CLIP, "plugin": {"library": "plugins/ops/libclip.so"}}
    actions = plan(ops=[library])
    assert "plugins/ops/libclip.so" in actions["operators:net"].sources
    built = actions["operators:net"].outputs["library.libclip"]
    assert actions["engine:net:rtx16"].inputs["library.libclip"] == built
    copied = actions["engine:net:rtx16"].outputs["library.libclip"]
    readers = {target for target, action in actions.items() if copied in action.inputs.values()}
    assert readers == {"verify:net:rtx16", "bench:net:rtx16"}
    assert built not in actions["engine:net:ort"].inputs.values()
