"""Real TensorRT-RTX engines, with or without a GPU, and refusals."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import onnx
import pytest
from engine_jobs import engine_options, refused_nodes, request
from onnx import TensorProto, helper
from small_graphs import conv_bn, make_model, one_node, weights, write

from buildsys.backends.cuda_gpus import find_driver
from buildsys.backends.tensorrt import library
from buildsys.backends.tensorrt.library import log_of
from buildsys.backends.tensorrt_rtx.options import ComputeCapability, RtxFlag
from buildsys.errors import StageError, Unavailable

trt = pytest.importorskip("tensorrt_rtx")
from buildsys.backends.tensorrt_rtx import backend as tensorrt_rtx  # noqa: E402 - after the skip

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "backends"))
from trt_names import MODULES, PACKAGE, uses  # noqa: E402

LIBRARY = library.library_of(trt)
LOG = log_of(LIBRARY)
needs_no_gpu = pytest.mark.skipif(
    bool(find_driver().gpus), reason="checks what is said on a machine without a GPU"
)


def options(**fields: Any) -> dict[str, Any]:
    return engine_options("tensorrt_rtx", **fields)


def build(folder: Path, model: onnx.ModelProto, **fields: Any) -> dict[str, Any]:
    asked = request(write(folder, model), folder, options(**fields))
    tensorrt_rtx.prepare(asked.options)
    return tensorrt_rtx.build(asked)


def test_an_engine_is_built_with_one_profile_from_dims(tmp_path: Path) -> None:
    facts = build(tmp_path, conv_bn())
    assert (tmp_path / "engine.engine").read_bytes()[:4] == b"vtrt"
    x = {"min": (1, 3, 8, 8), "opt": (2, 3, 8, 8), "max": (8, 3, 8, 8)}
    assert facts["profiles"] == [{"x": x}]
    assert facts["inputs"] == [
        {"name": "x", "dtype": "float32", "shape": ["batch", 3, 8, 8], "format": "linear"}
    ]
    assert facts["outputs"] == [
        {"name": "y", "dtype": "float32", "shape": ["?", 5], "format": "linear"}
    ]  # TensorRT names inputs' axes only
    assert facts["layers"]["convolution"] == 1
    assert facts["precision_of"] == "network"
    assert facts["precision_shares"]["layers"]["float32"] > 0.3
    assert facts["settings"]["compute_capabilities"] == ["8.6", "8.9", "12.0"]
    assert facts["settings"]["workspace"] > 0
    assert list(facts["phases"]) == ["start", "parse", "configure", "build"]
    assert json.loads(json.dumps(facts))["settings"] == facts["settings"]


def test_the_types_of_the_graph_are_those_of_the_engine(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="relu")
    port = (TensorProto.BFLOAT16, ["batch", 3, 8, 8])
    facts = build(tmp_path, make_model([node], {"x": port}, {"y": port}))
    assert facts["precision_shares"]["layers"] == {"bfloat16": 1.0}
    assert facts["inputs"][0]["dtype"] == "bfloat16"


def test_every_field_reaches_the_builder(tmp_path: Path) -> None:
    fields = {
        "compute_capabilities": ("12.0", "8.0"), "builder_optimization_level": 4,
        "workspace": 1 << 28,
        "tactic_shared_memory": 1 << 20, "tiling_optimization_level": "fast",
        "l2_limit_for_tiling": 1 << 16,
        "max_aux_streams": 2, "avg_timing_iterations": 3, "max_threads": 2,
        "profiling_verbosity": "detailed",
    }  # fmt: skip
    flags = {"strict_nans": True, "tf32": False}
    facts = hooked(tmp_path, "record", **fields, flags=flags)
    assert facts["outputs"][0]["name"] == "SM120-SM80-DETAILED-FAST"
    settings = facts["settings"]
    assert {name: settings[name] for name in fields} == {
        **fields,
        "compute_capabilities": ["12.0", "8.0"],
    }
    assert [name for name, is_on in settings["flags"].items() if is_on] == ["strict_nans"]


def test_the_flags_of_the_schema_are_those_of_the_backend() -> None:
    for enumeration, words in (("BuilderFlag", RtxFlag), ("ComputeCapability", ComputeCapability)):
        values = {library.find_value(LIBRARY, enumeration, word) for word in get_args(words)}
        assert None not in values
        assert len(values) == len(get_args(words))


def test_a_refused_setting_fails_instead_of_being_ignored(tmp_path: Path) -> None:
    with pytest.raises(
        StageError, match="kEXCLUDE_LEAN_RUNTIME can only be set if kVERSION_COMPATIBLE"
    ):
        build(tmp_path, one_node("Relu"), flags={"exclude_lean_runtime": True})


def test_all_refused_nodes_are_named_at_once(tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("my", 1)]
    nodes = [
        helper.make_node("First", ["x"], ["a"], name="one", domain="my"),
        helper.make_node("Relu", ["a"], ["b"], name="fine"),
        helper.make_node("Second", ["b"], ["y"], name="two", domain="my"),
    ]
    x = (TensorProto.FLOAT, ["batch", 3, 8, 8])
    model = make_model(nodes, {"x": x}, {"y": x}, opsets=opsets)
    with pytest.raises(StageError) as caught:
        build(tmp_path, model)
    text = str(caught.value)
    assert text.startswith(
        "model m: TensorRT-RTX cannot take node 0 'one' (First): Plugin not found"
    )
    assert "node 2 'two' (Second)" in text
    assert "fine" not in text
    assert "\n" not in text
    refused = refused_nodes(tensorrt_rtx, request(tmp_path / "model.onnx", tmp_path, options()))
    assert [(node.index, node.name, node.operator) for node in refused] == [
        (0, "one", "First"),
        (2, "two", "Second"),
    ]


def test_a_refused_node_in_a_local_function_names_the_function(tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    inner = helper.make_node("Inner", ["a"], ["b"], name="inner", domain="my")
    function = helper.make_function("my", "Fn", ["a"], ["b"], [inner], opsets)
    x = (TensorProto.FLOAT, ["batch", 3, 8, 8])
    call = helper.make_node("Fn", ["x"], ["y"], name="call", domain="my")
    model = make_model([call], {"x": x}, {"y": x}, opsets=opsets[1:], functions=[function])
    (refused,) = refused_nodes(tensorrt_rtx, request(write(tmp_path, model), tmp_path, options()))
    assert refused.operator == "Inner"
    assert any("Fn" in function for function in refused.functions)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import this\n", r"cannot read model\.onnx: Failed to parse the ONNX model"),
        ("hello", "the graph has no input x, only none"),  # it is parsed as an empty one
    ],
)
def test_an_invalid_onnx_file_is_reported(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "model.onnx").write_text(text)
    with pytest.raises(StageError, match=expected):
        tensorrt_rtx.build(request(tmp_path / "model.onnx", tmp_path, options()))


def test_a_failed_build_gives_its_reason_and_writes_nothing(tmp_path: Path) -> None:
    model = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")],
        {"x": (TensorProto.FLOAT, ["batch", 3, 8, 8])},
        {"y": (TensorProto.FLOAT, ["batch", 3, 8, 4])},
        {"w": weights(8, 4)},
    )
    with pytest.raises(StageError) as caught:
        build(tmp_path, model, compute_capabilities=("7.5",))
    assert "'mm' for Turing (SM75)" in str(caught.value)
    assert "_src" not in str(caught.value)
    assert not (tmp_path / "engine.engine").exists()


HOOKS = """\
def tweak(network, config):
    network.get_output(0).name = "renamed"
    config.avg_timing_iterations = 3

def fail(network, config):
    return network.get_layer(0).no_such

def wrong(network, config):
    config.builder_optimization_level = -1

def record(network, config):
    numbers = range(config.num_compute_capabilities)
    values = [*map(config.get_compute_capability, numbers), config.profiling_verbosity,
              config.tiling_optimization_level]
    network.get_output(0).name = "-".join(value.name for value in values)
"""


def hooked(folder: Path, name: str, **fields: Any) -> dict[str, Any]:
    (folder / "hooks.py").write_text(HOOKS)
    chosen = options(network=f"hooks.py:{name}", **fields)
    asked = request(write(folder, one_node("Relu")), folder, chosen, project=folder)
    return tensorrt_rtx.build(asked)


def test_a_network_hook_changes_network_and_configuration(tmp_path: Path) -> None:
    facts = hooked(tmp_path, "tweak")
    assert facts["outputs"][0]["name"] == "renamed"
    assert facts["settings"]["avg_timing_iterations"] == 3
    assert facts["settings"]["network"] == "hooks.py:tweak"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fail", "hooks.py:fail failed: AttributeError: 'tensorrt_rtx_bindings.tensorrt_rtx."),
        ("wrong", "hooks.py:wrong did what TensorRT refuses: "),
    ],
)
def test_a_wrong_network_hook(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(StageError) as caught:
        hooked(tmp_path, name)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
    if name == "fail":
        assert "(hooks.py:6)" in str(caught.value)


def test_formats_of_tensors_reach_the_network(tmp_path: Path) -> None:
    io = {"x": {"format": "hwc8", "dtype": "float16"}, "y": {"format": "linear"}}
    shape = (TensorProto.FLOAT16, ["batch", 3, 8, 8])
    node = helper.make_node("Relu", ["x"], ["y"], name="relu")
    facts = build(tmp_path, make_model([node], {"x": shape}, {"y": shape}), io=io)
    assert facts["settings"]["io"]["x"] == {"format": "hwc8", "dtype": "float16"}


@pytest.mark.parametrize(
    ("io", "said"),
    [
        (
            {"xx": {"format": "hwc8"}},
            "io.xx: the graph has no input or output of this name; it has x, y",
        ),
        (
            {"x": {"dtype": "float16"}},
            "io.x.dtype: a strongly typed engine keeps the types of its graph; cast it",
        ),
        (
            {"x": {"dtype": "float64"}},
            "TensorRT-RTX 1.7.1 has no DataType float64",
        ),
    ],
)
def test_unsupported_formats(tmp_path: Path, io: dict[str, Any], said: str) -> None:
    with pytest.raises(StageError) as caught:
        build(tmp_path, one_node("Relu"), io=io)
    assert str(caught.value).startswith(said)


def test_a_graph_without_the_requested_precision_fails_with_the_share(tmp_path: Path) -> None:
    with pytest.raises(StageError) as caught:
        build(tmp_path, conv_bn(), precision="fp16")
    assert str(caught.value).startswith(
        "model m: the engine was requested in fp16, but none of its layers is in float16: "
    )
    assert not (tmp_path / "engine.engine").exists()
    facts = build(tmp_path, conv_bn(), precision="fp16", precision_share=0)
    assert "float16" not in facts["precision_shares"]["layers"]


def test_weights_in_external_data_are_found(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(
        conv_bn(), path, save_as_external_data=True, location="model.onnx.data", size_threshold=0
    )
    assert (tmp_path / "model.onnx.data").stat().st_size > 400
    tensorrt_rtx.build(request(path, tmp_path / "out", options()))
    assert (tmp_path / "out" / "engine.engine").stat().st_size > 1000


def test_progress_is_reported(tmp_path: Path) -> None:
    phases: list[str] = []
    steps: list[tuple[int, int, str]] = []
    model = write(tmp_path, conv_bn())
    asked = request(model, tmp_path, options(), progress=phases.append)
    tensorrt_rtx.build(replace(asked, count=lambda *step: steps.append(step)))
    assert phases
    assert all(0 < done <= total for done, total, _ in steps)
    assert {unit.removeprefix("steps of ") for _, _, unit in steps} <= set(phases)


@needs_no_gpu
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        (
            {"flags": {"refit": True, "strip_plan": True}},
            "the builder flag refit and the builder flag strip_plan",
        ),
        ({"compute_capabilities": ("current",)}, "the compute capability 'current'"),
    ],
)
def test_fields_for_a_gpu_are_unavailable_without_one(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(Unavailable) as caught:
        tensorrt_rtx.prepare(options(**fields))
    assert caught.value.problem.startswith(
        f"{named} can only be used on a machine with an NVIDIA GPU"
    )
    assert caught.value.hint


def test_the_installed_library_has_the_names_too() -> None:
    used = {
        (use.owner, use.name)
        for module in MODULES
        for use in uses((PACKAGE / module).read_text(), module)
        if library.RTX in use.generations
    }
    assert [
        name for owner, name in used if not hasattr(getattr(trt, owner) if owner else trt, name)
    ] == []
