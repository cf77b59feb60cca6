"""TensorRT 8.6, 10 or 11 on a GPU: engines of small networks.

The interpreter that has TensorRT is this one, or that of BUILDSYS_TEST_TOOLCHAIN=/path/to/python.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_marks import TENSORRT_ON_GPU
from onnx import TensorProto, helper
from small_graphs import make_model, one_node, weights
from tensorrt_jobs import IMAGE, build, error_of, image, options, refusal, run
from toolchain import Refused, Toolchain

from buildsys.onnx_graphs.tensors import Tensor, tensor_of

pytestmark = TENSORRT_ON_GPU


def test_profiles_are_chosen_automatically_or_explicitly(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    spans = [(1, 1, 2), (2, 4, 8)]
    profiles = [
        {
            "x": {
                point: [n, 16, 16, 16] for point, n in zip(("min", "opt", "max"), span, strict=True)
            }
        }
        for span in spans
    ]
    build(toolchain, tmp_path, profiles=profiles)
    for batch, profile in ((1, None), (8, None), (2, 0), (2, 1), (1, 0)):
        assert error_of(toolchain, tmp_path, image(batch), profile) <= 5e-3
    found = run(toolchain, tmp_path, image(2))[1]
    assert [each["x"]["max"][0] for each in found] == [2, 8]
    with pytest.raises(Refused, match="no optimization profile 0 of the engine holds the shapes"):
        run(toolchain, tmp_path, image(5), 0)
    with pytest.raises(Refused, match="no optimization profile of the engine holds the shapes"):
        run(toolchain, tmp_path, image(9))
    with pytest.raises(Refused, match="no optimization profile 2 of the engine holds the shapes"):
        run(toolchain, tmp_path, image(2), 2)


def test_values_decide_the_shapes_of_outputs(toolchain: Toolchain, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("NonZero", ["r"], ["n"], name="nonzero"),
        helper.make_node("Transpose", ["n"], ["y"], name="transpose", perm=[1, 0]),
        helper.make_node("Neg", ["x"], ["z"], name="neg"),
    ]  # fmt: skip
    shape = (TensorProto.FLOAT, ["batch", 16, 16, 16])
    model = make_model(nodes, {"x": shape}, {"y": (TensorProto.INT64, ["found", 4]), "z": shape})
    build(toolchain, tmp_path, model=model)
    for batch in (1, 4, 2):
        given = image(batch, seed=batch)
        if batch == 4:
            given["x"].array[1:] = -1  # fewer are found than the time before
        found, _ = run(toolchain, tmp_path, given)
        expected = np.argwhere(given["x"].array > 0)
        assert np.array_equal(found["y"].array, expected)
        assert np.array_equal(found["z"].array, -given["x"].array)


def test_values_of_an_input_decide_shapes(toolchain: Toolchain, tmp_path: Path) -> None:
    x = (TensorProto.FLOAT, ["batch", 16, 16, 16])
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], name="reshape")
    model = make_model(
        [node], {"x": x, "shape": (TensorProto.INT64, [2])}, {"y": (TensorProto.FLOAT, ["a", "b"])}
    )
    inputs = {**IMAGE, "shape": {"shape": [2], "dtype": "int64"}}
    assert "shape" in refusal(toolchain, tmp_path, model=model, inputs=inputs)
    values = {"min": [4, 1024], "opt": [8, 1024], "max": [16, 1024]}
    spans = {"min": [1, 16, 16, 16], "opt": [2, 16, 16, 16], "max": [4, 16, 16, 16]}
    build(
        toolchain,
        tmp_path,
        model=model,
        inputs=inputs,
        profiles=[{"x": spans, "shape": {"values": values}}],
    )
    given = {**image(2), "shape": Tensor(np.array([8, 1024]), "int64")}
    found, profiles = run(toolchain, tmp_path, given)
    assert np.array_equal(found["y"].array, given["x"].array.reshape(8, 1024))
    if toolchain.version.startswith("8."):  # reports the first value only, so nothing is compared
        assert "max_values" not in profiles[0]["shape"]
        return
    assert profiles[0]["shape"]["max_values"] == [16, 1024]
    with pytest.raises(Refused, match="no optimization profile"):
        run(toolchain, tmp_path, {**image(2), "shape": Tensor(np.array([32, 256]), "int64")})


@pytest.mark.parametrize(
    "fields",
    [
        {"refit": True},
        {"version_compatible": True, "exclude_lean_runtime": True},
        {"hardware_compatibility": "ampere_plus"},
        {"sparsity": True},
        {"direct_io": True, "io": {"x": {"format": "linear"}}},
        {
            "workspace": "256MiB", "tactic_dram": "1GiB", "max_aux_streams": 1,
            "avg_timing_iterations": 2,
            "builder_optimization_level": 2, "max_threads": 2,
        },
        {"profiling_verbosity": "none"},
    ],
    ids=lambda fields: "+".join(fields),
)  # fmt: skip
def test_every_field_reaches_the_builder(
    toolchain: Toolchain, tmp_path: Path, fields: dict[str, Any]
) -> None:
    try:
        settings = build(toolchain, tmp_path, **fields)["settings"]
    except Refused as refused:
        assert "libnvinfer_lean" in str(refused)
        pytest.skip("the lean runtime is not installed")
    planned, flags = options(toolchain, **fields), settings["flags"]
    in_force = {**settings, **flags, "sparsity": flags["sparse_weights"]}
    assert {name: in_force[name] for name in fields} == {name: planned[name] for name in fields}
    assert error_of(toolchain, tmp_path, image(2)) <= 2e-2


def test_a_missing_accelerator(toolchain: Toolchain, tmp_path: Path) -> None:
    said = refusal(toolchain, tmp_path, precision="fp16", dla_core=0, gpu_fallback=True)
    assert "needs a deep learning accelerator" in said


def test_all_operators_unknown_to_the_parser_are_named(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("First", ["x"], ["a"], name="one", domain="my"),
        helper.make_node("Relu", ["a"], ["b"], name="fine"),
        helper.make_node("DeformConv", ["b", "w", "o"], ["y"], name="two"),
    ]
    x = (TensorProto.FLOAT, ["batch", 16, 16, 16])
    model = make_model(
        nodes,
        {"x": x},
        {"y": x},
        {"w": weights(1), "o": weights(1)},
        19,
        opsets=[helper.make_opsetid("my", 1)],
    )
    said = refusal(toolchain, tmp_path, model=model)
    assert said.startswith("model m: TensorRT cannot take node 0 'one' (First): ")
    assert "node 2 'two' (DeformConv): " in said
    assert "fine" not in said


def test_unloadable_engines(toolchain: Toolchain, tmp_path: Path) -> None:
    build(toolchain, tmp_path)
    engine = tmp_path / "model.engine"
    good = engine.read_bytes()
    for content in (
        b"",
        b"no engine",
        good[: len(good) // 2],
        bytes(64) + good[64:],
        b"vtrt" + good[4:],
    ):
        engine.write_bytes(content)
        with pytest.raises(Refused) as caught:
            run(toolchain, tmp_path, image(1))
        assert str(caught.value).startswith("model.engine "), str(caught.value)
        assert "build it again on this machine" in str(caught.value)


def test_more_memory_than_the_gpu_has(toolchain: Toolchain, tmp_path: Path) -> None:
    sizes = (1, 256, 1024, 1024)  # 1 GiB
    inputs = {"x": {"shape": ["batch", *sizes[1:]], "dtype": "float32"}}
    profiles = [{"x": {point: list(sizes) for point in ("min", "opt", "max")}}]
    fields = {
        "model": one_node("Relu", shape=["batch", *sizes[1:]]),
        "inputs": inputs,
        "profiles": profiles,
    }
    build(toolchain, tmp_path, **fields)
    try:
        assert toolchain.ask("hold") > 1 << 30
        with pytest.raises(Refused, match=r"(?i)out.?of.?memory"):
            run(toolchain, tmp_path, {"x": tensor_of(np.zeros(sizes, np.float32))})
        said = refusal(toolchain, tmp_path / "again", **fields)
    finally:
        toolchain.ask("hold", release=True)
    assert "memory" in said
