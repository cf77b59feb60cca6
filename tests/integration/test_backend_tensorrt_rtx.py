"""Real TensorRT-RTX engines on a machine that may have no GPU, and everything that it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import onnx
import pytest
from engine_jobs import INPUTS, engine_options, request
from onnx import TensorProto, helper
from small_graphs import conv_bn, make_model, one_node, weights, write

from buildsys.backends import load_backend
from buildsys.backends.cuda_driver import find_driver
from buildsys.backends.trt import adapter, building, library, settings
from buildsys.backends.trt.messages import log_of
from buildsys.errors import StageError, Unavailable
from buildsys.manifest.schema import ComputeCapability, RtxFlag

trt = pytest.importorskip("tensorrt_rtx")
from buildsys.backends import tensorrt_rtx  # noqa: E402 - after the library is known to be there

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from trt_names import MODULES, PACKAGE, uses  # noqa: E402

ROOT = Path(__file__).parents[2]
LIBRARY = library.library_of(trt)
LOG = log_of(LIBRARY)
needs_no_gpu = pytest.mark.skipif(bool(find_driver().gpus), reason="checks what is said on a machine without a GPU")


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
    assert facts["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["batch", 3, 8, 8]}]
    assert facts["outputs"] == [
        {"name": "y", "dtype": "float32", "shape": ["?", 5]}
    ]  # TensorRT names inputs' axes only
    assert facts["layers"]["convolution"] == 1
    assert facts["precision_shares"]["layers"]["float32"] > 0.3
    assert facts["settings"]["compute_capabilities"] == ["8.6", "8.9", "12.0"]
    assert facts["settings"]["workspace"] > 0
    assert json.loads(json.dumps(facts))["settings"] == facts["settings"]


@pytest.mark.parametrize(("elem_type", "dtype"), [(TensorProto.FLOAT16, "float16"), (TensorProto.BFLOAT16, "bfloat16")])
def test_the_types_of_the_graph_are_those_of_the_engine(tmp_path: Path, elem_type: int, dtype: str) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="relu")
    shape = ["batch", 3, 8, 8]
    facts = build(tmp_path, make_model([node], {"x": (elem_type, shape)}, {"y": (elem_type, shape)}))
    assert facts["precision_shares"]["layers"] == {dtype: 1.0}
    assert facts["inputs"][0]["dtype"] == dtype


def test_every_field_reaches_the_builder(tmp_path: Path) -> None:
    fields = {
        "compute_capabilities": ("12.0", "8.0"), "builder_optimization_level": 4, "workspace": 1 << 28,
        "tactic_shared_memory": 1 << 20, "tiling_optimization_level": "fast", "l2_limit_for_tiling": 1 << 16,
        "max_aux_streams": 2, "avg_timing_iterations": 3, "max_threads": 2, "profiling_verbosity": "detailed",
    }  # fmt: skip
    settings = build(tmp_path, one_node("Relu"), **fields, flags={"strict_nans": True, "tf32": False})["settings"]
    assert {name: settings[name] for name in fields} == {**fields, "compute_capabilities": ["12.0", "8.0"]}
    assert {name for name, on in settings["flags"].items() if on} == {"strict_nans"}


@pytest.mark.parametrize("flag", sorted(set(adapter.FLAGS.members) - {"exclude_lean_runtime"}))
def test_every_flag_of_the_schema_can_be_set(flag: str) -> None:
    """Setting is checked on a configuration alone; what a build without a GPU cannot do is checked elsewhere."""
    builder = trt.Builder(LOG.logger)
    config = builder.create_builder_config()
    with LOG.collected() as found:
        settings.configure(LIBRARY, builder, config, options(flags={flag: True}), found)
    assert config.get_flag(adapter.FLAGS.of(LIBRARY, flag))


def test_the_flags_of_the_schema_are_those_of_the_backend() -> None:
    assert set(get_args(RtxFlag)) == set(adapter.FLAGS.members)
    assert set(get_args(ComputeCapability)) == set(adapter.CAPABILITIES.members)


def test_a_refused_setting_fails_instead_of_being_ignored(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="kEXCLUDE_LEAN_RUNTIME can only be set if kVERSION_COMPATIBLE"):
        build(tmp_path, one_node("Relu"), flags={"exclude_lean_runtime": True})


def test_explicit_profiles_are_used(tmp_path: Path) -> None:
    ranges = [{"x": {"min": (n, 3, 8, 8), "opt": (n, 3, 8, 8), "max": (n, 3, 8, 8)}} for n in (1, 4)]
    assert build(tmp_path, conv_bn(), profiles=tuple(ranges))["profiles"] == ranges


def test_a_wrong_profile_is_said_before_anything_is_built(tmp_path: Path) -> None:
    wrong = {"x": {"min": (4, 3, 8, 8), "opt": (2, 3, 8, 8), "max": (8, 3, 8, 8)}}
    with pytest.raises(StageError, match="profile 0: x: axis 0: min 4, opt 2, max 8 are not in ascending order"):
        build(tmp_path, conv_bn(), profiles=(wrong,))


def test_a_profile_that_tensorrt_refuses_is_an_error() -> None:
    builder = trt.Builder(LOG.logger)
    wrong = {"x": {"min": (4, 3), "opt": (2, 3), "max": (8, 3)}}
    with LOG.collected(), pytest.raises(StageError, match="refuses the optimization profile 0"):
        building.add_profiles(LIBRARY, builder, builder.create_builder_config(), [wrong])


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
    assert text.startswith("model m: TensorRT-RTX cannot take node 0 'one' (First): Plugin not found")
    assert "node 2 'two' (Second)" in text
    assert "fine" not in text
    assert "\n" not in text
    refused = tensorrt_rtx.unsupported(request(tmp_path / "model.onnx", tmp_path, options()))
    assert [(node.index, node.name, node.operator) for node in refused] == [(0, "one", "First"), (2, "two", "Second")]


def test_a_refused_node_in_a_local_function_tells_the_function(tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    inner = helper.make_node("Inner", ["a"], ["b"], name="inner", domain="my")
    function = helper.make_function("my", "Fn", ["a"], ["b"], [inner], opsets)
    x = (TensorProto.FLOAT, ["batch", 3, 8, 8])
    call = helper.make_node("Fn", ["x"], ["y"], name="call", domain="my")
    model = make_model([call], {"x": x}, {"y": x}, opsets=opsets[1:], functions=[function])
    (refused,) = tensorrt_rtx.unsupported(request(write(tmp_path, model), tmp_path, options()))
    assert refused.operator == "Inner"
    assert any("Fn" in function for function in refused.functions)


def test_a_file_that_is_no_onnx_is_said(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("import this\n")
    with pytest.raises(StageError, match=r"cannot read model\.onnx: Failed to parse the ONNX model"):
        tensorrt_rtx.build(request(tmp_path / "model.onnx", tmp_path, options()))


def test_a_file_that_parses_as_an_empty_model_is_said(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("hello")
    with pytest.raises(StageError, match=r"finds no graph with outputs in model\.onnx"):
        tensorrt_rtx.build(request(tmp_path / "model.onnx", tmp_path, options()))


def test_a_build_that_gives_up_tells_why_and_writes_nothing(tmp_path: Path) -> None:
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


def test_an_input_whose_values_are_shapes_is_refused_with_a_reason(tmp_path: Path) -> None:
    model = make_model(
        [helper.make_node("Reshape", ["x", "shape"], ["y"], name="reshape")],
        {"x": (TensorProto.FLOAT, ["batch", 3, 8, 8]), "shape": (TensorProto.INT64, [2])},
        {"y": (TensorProto.FLOAT, ["a", "b"])},
    )
    inputs = {**INPUTS, "shape": {"shape": [2], "dtype": "int64"}}
    with pytest.raises(StageError, match="the values of the input shape decide shapes"):
        tensorrt_rtx.build(request(write(tmp_path, model), tmp_path, options(), inputs))


def test_weights_in_external_data_are_found(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(conv_bn(), path, save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    assert (tmp_path / "model.onnx.data").stat().st_size > 400
    tensorrt_rtx.build(request(path, tmp_path / "out", options()))
    assert (tmp_path / "out" / "engine.engine").stat().st_size > 1000


def test_progress_is_reported(tmp_path: Path) -> None:
    said: list[str] = []
    asked = request(write(tmp_path, conv_bn()), tmp_path, options(), progress=said.append)
    tensorrt_rtx.build(asked)
    assert any(" of " in message for message in said)


def test_a_listener_that_is_gone_cancels_the_build(tmp_path: Path) -> None:
    def gone(message: str) -> None:
        raise BrokenPipeError(message)

    asked = request(write(tmp_path, conv_bn()), tmp_path, options(), progress=gone)
    with pytest.raises(StageError, match=r"(?i)cancel"):
        tensorrt_rtx.build(asked)


@needs_no_gpu
def test_without_a_gpu_an_engine_is_unavailable_and_says_where_it_runs(tmp_path: Path) -> None:
    build(tmp_path, one_node("Relu"))
    with pytest.raises(Unavailable) as caught:
        tensorrt_rtx.load(tmp_path / "engine.engine", options())
    assert "no NVIDIA GPU can run the engine on this machine" in caught.value.problem
    assert caught.value.hint == "run it on a GPU of compute capability 8.6, 8.9 or 12.0"
    assert tensorrt_rtx.describe(tmp_path / "engine.engine", options()) == {}
    assert tensorrt_rtx.device(options())["missing"]


@needs_no_gpu
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"flags": {"refit": True, "strip_plan": True}}, "the builder flag refit and the builder flag strip_plan"),
        ({"compute_capabilities": ("current",)}, "the compute capability 'current'"),
    ],
)
def test_fields_that_need_a_gpu_are_unavailable_without_one(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(Unavailable) as caught:
        tensorrt_rtx.prepare(options(**fields))
    assert caught.value.problem.startswith(f"{named} can only be used on a machine with an NVIDIA GPU")
    assert caught.value.hint


def test_no_memory_to_work_in_is_refused() -> None:
    with pytest.raises(StageError, match="workspace: 0"):
        tensorrt_rtx.prepare(options(workspace=0))


def test_without_the_library_the_backend_is_unavailable_and_says_how_to_install_it() -> None:
    code = (
        "import sys; sys.modules['tensorrt_rtx'] = None\n"
        "from buildsys.backends import load_backend\n"
        "from buildsys.errors import Unavailable\n"
        "try: load_backend('tensorrt_rtx')\n"
        "except Unavailable as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "the library tensorrt_rtx is not installed; pip install 'buildsys[rtx]'"


def test_an_unknown_backend_is_an_error() -> None:
    with pytest.raises(StageError, match="there is no backend 'tvm'; the backends are onnxruntime, tensorrt"):
        load_backend("tvm")


def test_messages_of_one_build_do_not_leak_into_the_next(tmp_path: Path) -> None:
    with pytest.raises(StageError):
        build(tmp_path / "bad", one_node("NoSuchOperator"))
    assert build(tmp_path / "good", one_node("Relu"))["messages"] == []


def test_the_installed_library_has_the_names_too() -> None:
    used = {
        (use.owner, use.name)
        for module in MODULES
        for use in uses((PACKAGE / module).read_text(), module)
        if library.RTX in use.generations
    }
    assert [name for owner, name in used if not hasattr(getattr(trt, owner) if owner else trt, name)] == []
