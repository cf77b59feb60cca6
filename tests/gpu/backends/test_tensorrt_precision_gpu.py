"""Precision, quantization and layout of engines of TensorRT 8.6, 10 or 11 on a GPU."""

from pathlib import Path

import numpy as np
import pytest
from gpu_marks import TENSORRT_ON_GPU
from small_graphs import write
from tensorrt_jobs import build, convolutions, error_of, image, options, refusal, request
from toolchain import Toolchain

pytestmark = TENSORRT_ON_GPU


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
        " 10 %): 100 % in float32" in said
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
