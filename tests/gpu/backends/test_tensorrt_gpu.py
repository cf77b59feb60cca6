"""TensorRT 8.6, 10 or 11 on a GPU: engines of small networks.

The interpreter that has TensorRT is this one, or that of BUILDSYS_TEST_TOOLCHAIN=/path/to/python.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toolchain import ROOT, Refused, Toolchain, missing

from buildsys.backends.cuda.gpus import find_driver

sys.path.insert(0, str(ROOT / "tests" / "integration"))
from engine_jobs import DIMS, INPUTS, resolved, write_golden
from onnx import TensorProto, helper
from small_graphs import conv_bn, make_model, one_node, weights, write

from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.onnx_graphs.tensors import Tensor, load_tensors, save_tensors, tensor_of
from buildsys.plan.action import Action
from buildsys.plan.project_plan import plan_model
from buildsys.stages.calibrate import stage as calibrate
from buildsys.stages.convert import stage as convert
from buildsys.workers.job import Job

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(missing()), reason=missing() or "there is one"),
    pytest.mark.skipif(not find_driver().gpus, reason=f"no GPU: {find_driver().missing}"),
]
SOURCES = ("edge_mask_convolutions", "jit_convolutions")  # cuBLAS and cuDNN need not be there
IMAGE = {"x": {"shape": ["batch", 16, 16, 16], "dtype": "float32"}}


@pytest.fixture(scope="module")
def toolchain() -> Iterator[Toolchain]:
    started = Toolchain()
    yield started
    started.close()


def convolutions() -> Any:
    """Five convolutions of 16 channels: enough for tensor cores, and quick to build."""
    nodes = []
    stored = {}
    for index in range(5):
        before, after = f"t{index}" if index else "x", f"t{index + 1}"
        stored[f"w{index}"] = weights(16, 16, 3, 3, seed=index) * np.float32(0.1)
        nodes.append(
            helper.make_node(
                "Conv", [before, f"w{index}"], [f"c{index}"], name=f"/conv{index}", pads=[1] * 4
            )
        )
        nodes.append(
            helper.make_node(
                "Relu", [f"c{index}"], [after if index < 4 else "y"], name=f"/relu{index}"
            )
        )
    shape = (TensorProto.FLOAT, ["batch", 16, 16, 16])
    return make_model(nodes, {"x": shape}, {"y": shape}, stored)


def options(toolchain: Toolchain, **fields: Any) -> dict[str, Any]:
    sources = {"tactic_sources": list(SOURCES)} if toolchain.version.startswith("8.") else {}
    spec = resolved({"backend": "tensorrt", **sources, **fields})
    actions = plan_model(spec, lambda _: toolchain.version)
    return dict(next(action for action in actions if action.stage == "engine").options["engine"])


def request(
    model: Path, options: Mapping[str, Any], inputs: Mapping[str, Any] = IMAGE, **more: Any
) -> dict[str, Any]:
    base = {
        "model": "m",
        "onnx": model,
        "engine": model.with_suffix(".engine"),
        "options": options,
        "inputs": inputs,
    }
    return {**base, "dims": DIMS, **more}


def build(toolchain: Toolchain, folder: Path, model: Any = None, **fields: Any) -> dict[str, Any]:
    file = write(folder, model or convolutions())
    given = {
        name: fields.pop(name)
        for name in ("inputs", "timing_cache", "calibration", "project")
        if name in fields
    }
    answer = toolchain.ask("build", request=request(file, options(toolchain, **fields), **given))
    return dict(answer)


def run(
    toolchain: Toolchain, folder: Path, inputs: Mapping[str, Tensor], profile: int | None = None
) -> tuple[dict[str, Tensor], Any]:
    save_tensors(folder / "in.npz", inputs)
    files = {
        "engine": folder / "model.engine",
        "inputs": folder / "in.npz",
        "outputs": folder / "out.npz",
    }
    profiles = toolchain.ask("run", **files, options=options(toolchain), profile=profile)
    return dict(load_tensors(folder / "out.npz")), profiles


def image(batch: int, seed: int = 0) -> dict[str, Tensor]:
    return {
        "x": tensor_of(
            np.random.default_rng(seed).standard_normal((batch, 16, 16, 16)).astype(np.float32)
        )
    }


def error_of(
    toolchain: Toolchain, folder: Path, inputs: Mapping[str, Tensor], profile: int | None = None
) -> float:
    """Return the largest difference from ONNX Runtime over the largest value."""
    expected = OrtGraph(folder / "model.onnx").run(inputs)["y"].values()
    found = run(toolchain, folder, inputs, profile)[0]["y"].values()
    return float(np.abs(found.astype(np.float64) - expected).max() / np.abs(expected).max())


def job_of(action: Action, build: Path, **inputs: Path) -> dict[str, Any]:
    """Return the executor's fields of a job; ``inputs`` replace planned files."""
    files = {role: build / ref.path for role, ref in action.inputs.items()} | inputs
    outputs = {role: build / ref.path for role, ref in action.outputs.items()}
    for path in outputs.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    return {
        "target": action.target, "stage": action.stage, "model": "m", "variant": action.variant,
        "options": action.options,
        "inputs": {role: path for role, path in files.items() if path.is_file()},
        "outputs": outputs,
    }  # fmt: skip


def refusal(toolchain: Toolchain, folder: Path, **fields: Any) -> str:
    with pytest.raises(Refused) as caught:
        build(toolchain, folder, **fields)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("precision", "tf32", "limit"),
    [("fp32", False, 5e-6), ("fp32", True, 5e-3), ("fp16", True, 2e-2)],
)
def test_an_engine_has_its_precision_and_its_numbers(
    toolchain: Toolchain, tmp_path: Path, precision: str, tf32: bool, limit: float
) -> None:
    if precision == "fp16" and int(toolchain.version.split(".")[0]) >= 11:
        pytest.skip("weakly typed engines are for TensorRT 8.6 and 10")
    # nets this small are often as fast in float32, and the builder may choose
    asked = (
        {"layer_precisions": [{"layers": "*", "precision": "fp16"}]} if precision == "fp16" else {}
    )
    facts = build(toolchain, tmp_path, precision=precision, tf32=tf32, **asked)
    assert facts["precision_of"] == "engine"
    dtype = {"fp32": "float32", "fp16": "float16"}[precision]
    assert facts["precision_shares"]["layers"][dtype] > 0.9
    assert facts["precision_shares"]["time"][dtype] > 0.3
    assert facts["device_memory_bytes"] >= 0
    assert facts["phases"].keys() == {"start", "parse", "configure", "build"}
    assert facts["settings"]["flags"]["tf32"] is tf32
    for batch in (1, 2, 5, 8):
        assert error_of(toolchain, tmp_path, image(batch)) <= limit


@pytest.mark.parametrize("algorithm", ["entropy", "minmax"])
def test_an_int8_engine_is_calibrated(toolchain: Toolchain, tmp_path: Path, algorithm: str) -> None:
    if int(toolchain.version.split(".")[0]) >= 11:
        pytest.skip("calibrators are for TensorRT 8.6 and 10")
    np.savez(
        tmp_path / "batches.npz", **{f"{index}/x": image(4, index)["x"].array for index in range(3)}
    )
    given = {
        "batches": tmp_path / "batches.npz",
        "algorithm": algorithm,
        "cache": tmp_path / "ranges",
    }
    # so small a network would be faster in fp16
    wanted = {
        "layer_precisions": [{"layers": "/conv*", "precision": "int8"}],
        "precision_constraints": "prefer",
    }
    int8 = {**options(toolchain, precision="fp16", **wanted), "precision": "int8"}
    asked = request(write(tmp_path, convolutions()), int8, calibration=given)
    facts = toolchain.ask("build", request=asked)
    assert facts["precision_shares"]["layers"]["int8"] > 0.3
    assert (tmp_path / "ranges").read_bytes().startswith(b"TRT-")
    assert error_of(toolchain, tmp_path, image(4)) <= 0.15
    (tmp_path / "batches.npz").unlink()
    np.savez(tmp_path / "batches.npz", **{"0/x": image(4)["x"].array[:, :, :, :8]})
    with pytest.raises(
        Refused, match=r"batch 0 of the calibration data has x of shape \[4, 16, 16, 8\]"
    ):
        toolchain.ask("build", request=asked)


def test_a_weakly_typed_builder_accepts_quantizers(toolchain: Toolchain, tmp_path: Path) -> None:
    """The stages of a project, those of TensorRT in its interpreter."""
    if int(toolchain.version.split(".")[0]) >= 11:
        pytest.skip("weakly typed engines are for TensorRT 8.6 and 10")
    sources = {"tactic_sources": list(SOURCES)} if toolchain.version.startswith("8.") else {}
    spec = resolved(
        {"backend": "tensorrt", "precision": "int8", "typing": "weak", "quantization": "explicit",
         **sources},
        inputs={"x": {"shape": IMAGE["x"]["shape"]}},
        calibration={"data": {"x": {"random": "normal"}}, "batches": 4},
    )  # fmt: skip
    actions = {action.stage: action for action in plan_model(spec, lambda _: toolchain.version)}
    write(tmp_path / "m" / "simplify", convolutions())
    exact = OrtGraph(tmp_path / "m" / "simplify" / "model.onnx")
    given = {
        case: image(dims["batch"], dims["batch"])
        for case, dims in actions["verify"].options["cases"].items()
    }
    write_golden(tmp_path, {case: exact.run(x) for case, x in given.items()}, given)
    for stage in (calibrate, convert):
        found = stage.run(
            Job(**job_of(actions[stage.__name__.split(".")[-2]], tmp_path), project=tmp_path)
        )
        assert found.status == "passed", found.reason
    results = {}
    for name in ("engine", "verify"):
        results[name] = toolchain.ask(
            "stage", job=job_of(actions[name], tmp_path), project=tmp_path
        )
        assert results[name]["status"] == "passed", results[name]["reason"]
    built = results["engine"]["figures"]
    assert (built["settings"]["typing"], built["settings"]["quantization"]) == ("weak", "explicit")
    assert built["settings"]["flags"]["int8"]
    assert built["settings"]["flags"]["fp16"]
    assert "calibration" not in built
    assert not list(tmp_path.rglob("calibration.cache"))
    assert built["precision_of"] == "engine"
    assert built["precision_shares"]["layers"]["int8"] >= 0.5
    quantized = OrtGraph(tmp_path / "m" / "convert" / "int8" / "model.onnx")
    save_tensors(tmp_path / "in.npz", given["opt"])
    engine = tmp_path / actions["engine"].outputs["engine"].path
    files = {"engine": engine, "inputs": tmp_path / "in.npz", "outputs": tmp_path / "out.npz"}
    toolchain.ask("run", **files, options=actions["verify"].options["engine"])
    answer = load_tensors(tmp_path / "out.npz")["y"].values().astype(np.float64)
    for graph, limit in (
        (quantized, 0.05),
        (exact, 0.15),
    ):  # the same numbers but for rounding, and those meant
        expected = graph.run(given["opt"])["y"].values()
        assert np.abs(answer - expected).max() / np.abs(expected).max() <= limit


def test_an_unquantized_engine_is_pointed_to_quantizers(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    if int(toolchain.version.split(".")[0]) >= 11:
        pytest.skip("calibrators are for TensorRT 8.6 and 10")
    np.savez(
        tmp_path / "batches.npz", **{f"{index}/x": image(4, index)["x"].array for index in range(3)}
    )
    given = {
        "batches": tmp_path / "batches.npz",
        "algorithm": "minmax",
        "cache": tmp_path / "ranges",
    }
    layers = [
        {"layers": "*", "precision": "fp16"}
    ]  # in the place of a builder that finds no use for the ranges
    int8 = {**options(toolchain, precision="fp16", layer_precisions=layers), "precision": "int8"}
    with pytest.raises(Refused) as caught:
        toolchain.ask(
            "build", request=request(write(tmp_path, convolutions()), int8, calibration=given)
        )
    said = str(caught.value)
    assert "the engine was requested in int8, but none of its layers is in int8" in said
    assert "set quantization: explicit" in said


def test_an_engine_in_another_precision_fails_with_the_figure(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    if not toolchain.version.startswith(("8.", "10.")):
        pytest.skip("precisions of layers are for TensorRT 8.6 and 10")
    said = refusal(
        toolchain,
        tmp_path,
        precision="fp16",
        layer_precisions=[{"layers": "*", "precision": "fp32"}],
    )
    assert (
        "the engine was requested in fp16, but none of its layers is in float16 (the minimum is"
        " 10%): 100% in float32" in said
    )


def test_layers_get_their_own_precision(toolchain: Toolchain, tmp_path: Path) -> None:
    if not toolchain.version.startswith(("8.", "10.")):
        pytest.skip("precisions of layers are for TensorRT 8.6 and 10")
    asked = [{"layers": "/*", "precision": "fp16"}, {"layers": "/*[01]", "precision": "fp32"}]
    facts = build(toolchain, tmp_path, precision="fp16", layer_precisions=asked)
    shares = facts["precision_shares"]["layers"]
    assert 0.2 < shares["float32"] < 0.7
    assert error_of(toolchain, tmp_path, image(3)) <= 2e-2
    said = refusal(
        toolchain,
        tmp_path,
        precision="fp16",
        layer_precisions=[{"layers": "/konv*", "precision": "fp32"}],
    )
    assert (
        "layer_precisions: the pattern /konv* matches no layer; layers are named like /conv" in said
    )


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [("hwc8", "float16"), ("chw2", "float16"), ("linear", "float16"), ("chw32", None)],
)
def test_tensors_have_the_requested_layout(
    toolchain: Toolchain, tmp_path: Path, layout: str, dtype: str | None
) -> None:
    if not toolchain.version.startswith(("8.", "10.")):
        pytest.skip("types of inputs can be chosen up to TensorRT 10")
    io = {name: {"format": layout, "dtype": dtype} for name in ("x", "y")}
    facts = build(toolchain, tmp_path, precision="fp16", io=io)
    if layout != "linear":
        assert facts["formats"] == {"x": layout, "y": layout}
    if dtype:
        assert facts["inputs"][0]["dtype"] == dtype
    assert error_of(toolchain, tmp_path, image(3)) <= 2e-2


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
    with pytest.raises(
        Refused, match="the optimization profile 0 of the engine does not hold the shapes"
    ):
        run(toolchain, tmp_path, image(5), 0)
    with pytest.raises(Refused, match="no optimization profile of the engine holds the shapes"):
        run(toolchain, tmp_path, image(9))
    with pytest.raises(Refused, match="the engine has no optimization profile 2, only 2"):
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
    assert (
        "the values of the input shape decide shapes inside the network, and no range is given"
        in refusal(toolchain, tmp_path, model=model, inputs=inputs)
    )
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
        {"version_compatible": True},
        {"version_compatible": True, "exclude_lean_runtime": True},
        {"hardware_compatibility": "ampere_plus"},
        {"sparsity": True, "precision": "fp16"},
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
    if fields.get("precision") == "fp16" and int(toolchain.version.split(".")[0]) >= 11:
        fields = {name: value for name, value in fields.items() if name != "precision"}
    try:
        settings = build(toolchain, tmp_path, **fields)["settings"]
    except Refused as refused:
        assert "version_compatible" in fields
        assert "libnvinfer_lean" in str(refused)
        pytest.skip("the lean runtime is not installed")
    known = {"sparsity": "sparse_weights"}
    for field, value in options(toolchain, **fields).items():
        if known.get(field, field) in settings["flags"] and field in fields:
            assert settings["flags"][known.get(field, field)] is value
        elif field in fields and field in settings and field != "io":
            assert settings[field] == value
    assert error_of(toolchain, tmp_path, image(2)) <= 2e-2


def test_an_engine_of_one_fused_layer_has_an_unknown_type(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    """Float32 at the ends of a fused part proves nothing."""
    if int(toolchain.version.split(".")[0]) >= 11:
        pytest.skip("weakly typed engines are for TensorRT 8.6 and 10")
    t = (TensorProto.FLOAT, ["batch", 64, 128])
    names = (("x", "wq", "q"), ("x", "wk", "k"), ("q", "kt", "s"), ("p", "x", "y"))
    nodes = [helper.make_node("MatMul", [a, b], [c], name=f"/{c}") for a, b, c in names]
    nodes.insert(2, helper.make_node("Transpose", ["k"], ["kt"], name="/t", perm=[0, 2, 1]))
    nodes.insert(4, helper.make_node("Softmax", ["s"], ["p"], name="/p", axis=-1))
    model = make_model(
        nodes, {"x": t}, {"y": t}, {"wq": weights(128, 128), "wk": weights(128, 128, seed=1)}
    )
    inputs = {"x": {"shape": ["batch", 64, 128], "dtype": "float32"}}
    # where the builder does not fuse them, layers this small may be faster in float32
    facts = build(
        toolchain, tmp_path, model=model, inputs=inputs, precision="fp16", precision_share=0
    )
    untold = facts.get("precision_shares", {}).get("time", {}).get("unknown", 0.0)
    assert ("precision_unknown" in facts) != (facts["precision_of"] == "engine" and untold <= 0.5)


@pytest.mark.parametrize(
    ("fields", "versions"),
    [
        (
            {
                "strip_plan": True,
                "weight_streaming": True,
                "refit_identical": True,
                "refit_individual": True,
            },
            "8.",
        ),
        (
            {
                "tiling_optimization_level": "fast",
                "l2_limit_for_tiling": "1MiB",
                "tactic_shared_memory": "64KiB",
            },
            "8.",
        ),
        (
            {"flags": {"strict_nans": True}, "hardware_compatibility": "same_compute_capability"},
            "8.",
        ),
        ({"precision": "bf16"}, "8."),
        ({"typing": "strong"}, "8."),
        ({"typing": "weak"}, "11."),
        ({"tactic_sources": ["cublas"]}, "11."),
    ],
)
def test_an_unsupported_field_names_the_versions_supporting_it(
    toolchain: Toolchain, tmp_path: Path, fields: dict[str, Any], versions: str
) -> None:
    if not toolchain.version.startswith(versions):
        pytest.skip(f"this is TensorRT {toolchain.version}")
    said = refusal(toolchain, tmp_path, **fields)
    assert said.startswith(
        f"TensorRT {'.'.join(toolchain.version.split('.')[:3])} does not support "
    )
    assert all(name in said for name in fields)
    assert "TensorRT 10" in said or "TensorRT 11" in said


def test_a_missing_accelerator(toolchain: Toolchain, tmp_path: Path) -> None:
    said = refusal(toolchain, tmp_path, precision="fp16", dla_core=0, gpu_fallback=True)
    assert "dla_core: 0 needs a deep learning accelerator, and this machine has none" in said


def test_a_network_hook_changes_the_engine(toolchain: Toolchain, tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(
        "def tweak(network, config):\n    network.get_output(0).name = 'renamed'\n"
        "def fail(network, config):\n    return network.get_layer(0).no_such\n"
        "def few(network):\n    pass\n"
        "def gives(network, config):\n    return network\n"
        "def cut(network, config):\n    network.unmark_output(network.get_output(0))\n"
    )
    facts = build(toolchain, tmp_path, network="hooks.py:tweak", project=tmp_path)
    assert facts["outputs"][0]["name"] == "renamed"
    for name, text in {
        "fail": "hooks.py:fail failed: AttributeError: 'tensorrt.tensorrt.ILayer' object has no"
        " attribute 'no_such'",
        "few": "hooks.py:few takes the parameters (network); a network hook takes two, the"
        " network and the config",
        "gives": "hooks.py:gives returned an INetworkDefinition; a network hook changes the"
        " network in place",
        "absent": "hooks.py has no absent",
    }.items():
        said = refusal(toolchain, tmp_path, network=f"hooks.py:{name}", project=tmp_path)
        assert text.replace("tensorrt.tensorrt.", "") in said.replace(
            "tensorrt.tensorrt.", ""
        ).replace("tensorrt_bindings.", "")


def test_a_timing_cache_is_used_again_and_a_broken_one_is_a_warning(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    cache = tmp_path / "timing.cache"
    first = build(toolchain, tmp_path / "a", timing_cache=cache)
    assert first["timing_cache"]["added_bytes"] > 0
    second = build(toolchain, tmp_path / "b", timing_cache=cache)
    assert second["timing_cache"] == {**first["timing_cache"], "added_bytes": 0}
    assert second["phases"]["build"] < first["phases"]["build"]
    other = tmp_path / "other.cache"
    build(toolchain, tmp_path / "c", model=conv_bn(), inputs=INPUTS, timing_cache=other)
    merged = tmp_path / "merged.cache"
    assert toolchain.ask("merge", files=[cache, other], merged=merged) == []
    assert merged.stat().st_size > max(cache.stat().st_size, other.stat().st_size)
    third = build(toolchain, tmp_path / "d", timing_cache=merged)
    assert third["timing_cache"]["added_bytes"] == 0
    for broken in (b"", b"not a cache at all" * 20, cache.read_bytes()[:100]):
        cache.write_bytes(broken)
        facts = build(toolchain, tmp_path / "e", timing_cache=cache)
        assert facts["timing_cache"]["bytes"] == first["timing_cache"]["bytes"]
        if broken:
            assert any("timing.cache" in warning for warning in facts["messages"]), facts[
                "messages"
            ]
    cache.write_bytes(b"not a cache at all" * 20)
    assert len(toolchain.ask("merge", files=[cache, other], merged=merged)) == 1


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


def test_a_file_that_is_not_onnx_is_reported(toolchain: Toolchain, tmp_path: Path) -> None:
    file = write(tmp_path, convolutions())
    for text in (b"import this\n", b"hello", file.read_bytes()[:3000]):
        file.write_bytes(text)
        with pytest.raises(
            Refused,
            match=r"model m: TensorRT (cannot read|finds no graph with outputs in) model\.onnx",
        ):
            toolchain.ask("build", request=request(file, options(toolchain)))


def test_sizes_fixed_by_the_graph(toolchain: Toolchain, tmp_path: Path) -> None:
    model = one_node("Relu", shape=(2, 16, 16, 16))
    said = refusal(toolchain, tmp_path, model=model)
    assert "profile 0: the graph fixes axis 0 of x at 2, not 1 to 8" in said
    assert "profile 0: the graph has no input other, only x" in refusal(
        toolchain, tmp_path, inputs={"other": IMAGE["x"]}
    )


def test_a_workspace_too_small_for_any_tactic(toolchain: Toolchain, tmp_path: Path) -> None:
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "i"], name="/topk", axis=1)]
    x, y = (TensorProto.FLOAT, ["batch", 200000]), (TensorProto.FLOAT, ["batch", 3000])
    model = make_model(nodes, {"x": x}, {"y": y}, {"k": np.array([3000])})
    inputs = {"x": {"shape": ["batch", 200000], "dtype": "float32"}}
    try:
        said = refusal(toolchain, tmp_path, model=model, inputs=inputs, workspace="1KiB")
    except BaseException:
        pytest.skip("this version has a tactic that needs no workspace")
    assert "workspace" in said
    assert "1 KiB" in said


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
        with pytest.raises(Refused, match=r"out of memory: 1 ?GiB"):
            run(toolchain, tmp_path, {"x": tensor_of(np.zeros(sizes, np.float32))})
        said = refusal(toolchain, tmp_path / "again", **fields)
    finally:
        toolchain.ask("hold", release=True)
    assert "out of memory" in said
    assert "were requested" in said


def test_resnet18_in_fp16_agrees_with_pytorch(toolchain: Toolchain, tmp_path: Path) -> None:
    torch, torchvision = pytest.importorskip("torch"), pytest.importorskip("torchvision")
    torch.manual_seed(0)
    network = torchvision.models.resnet18(weights=None).eval()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    file = tmp_path / "m" / "simplify" / "model.onnx"
    file.parent.mkdir(parents=True)
    names = {
        "input_names": ["x"],
        "output_names": ["y"],
        "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}},
    }
    warnings.simplefilter("ignore")  # the older exporter is deprecated
    torch.onnx.export(
        network, torch.zeros(1, 3, 224, 224), str(file), opset_version=17, dynamo=False, **names
    )
    fields = {"tactic_sources": list(SOURCES)} if toolchain.version.startswith("8.") else {}
    spec = resolved(
        {"backend": "tensorrt", "precision": "fp16", **fields},
        inputs={"x": {"shape": ["batch", 3, 224, 224]}},
        dims={"batch": {"min": 1, "opt": 8, "max": 16}},
    )  # fmt: skip
    actions = {action.stage: action for action in plan_model(spec, lambda _: toolchain.version)}
    golden = {}
    for case, values in actions["verify"].options["cases"].items():
        x = torch.randn(
            values["dims"]["batch"] if "dims" in values else values["batch"], 3, 224, 224
        )
        with torch.no_grad():
            golden[case] = ({"x": tensor_of(x.numpy())}, {"y": tensor_of(network(x).numpy())})
    write_golden(
        tmp_path,
        {case: out for case, (_, out) in golden.items()},
        {case: x for case, (x, _) in golden.items()},
    )
    results = {}
    for stage in ("engine", "verify"):
        job = job_of(actions[stage], tmp_path, **({"model": file} if stage == "engine" else {}))
        results[stage] = toolchain.ask("stage", job=job, project=tmp_path)
        assert results[stage]["status"] == "passed", results[stage]["reason"]
    shares = results["engine"]["figures"]["precision_shares"]
    print(json.dumps({"shares": shares, "seconds": results["engine"]["figures"]["build_seconds"]}))
    assert shares["layers"]["float16"] > 0.8
