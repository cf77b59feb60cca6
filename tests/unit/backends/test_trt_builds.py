"""The settings that a builder gets from an engine's fields, without a GPU."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from trt_double import RecordingTensorRt, planned

from buildsys.backends.interface import Calibration
from buildsys.backends.tensorrt import calibrator
from buildsys.backends.tensorrt.build import build_engine
from buildsys.backends.tensorrt.library import GENERATIONS, RTX, TRT_8, TRT_10, TRT_11
from buildsys.errors import StageError

HALF = [{"layers": "l", "precision": "fp16"}]
FULL = [{"layers": "l", "precision": "fp32"}]


def build(folder: Path, made: RecordingTensorRt, request: Any = None, **fields: Any) -> Any:
    """Build an engine and return its facts; the double has the settings."""
    options = planned(made.generation, **fields)
    given = {"calibration": request} if request else {}
    return build_engine(made.library, made.request(folder, options, **given))


def flags_of(made: RecordingTensorRt) -> set[str]:
    return {flag.name for flag in made.module.BuilderFlag if made.config.get_flag(flag)}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_version_builds_a_plain_engine(tmp_path: Path, generation: str) -> None:
    made = RecordingTensorRt(generation)
    facts = build(tmp_path, made)
    assert (tmp_path / "e.engine").read_bytes() == b"engine"
    assert facts["layers"] == {"activation": 1}
    assert flags_of(made) == {"TF32"}
    (profile,) = made.config._profiles
    assert profile.get_shape("x") == [(1, 4), (2, 4), (8, 4)]


@pytest.mark.parametrize(
    ("generation", "fields", "flags"),
    [
        (TRT_8, {"precision": "fp16"}, {"TF32", "FP16"}),
        (TRT_10, {"precision": "bf16", "typing": "weak"}, {"TF32", "BF16"}),
        (TRT_8, {"precision": "int8"}, {"TF32", "INT8", "FP16"}),
        (TRT_10, {"precision": "fp16", "typing": "strong", "precision_share": 0}, {"TF32"}),
        (TRT_10, {"precision": "int8", "typing": "strong", "precision_share": 0}, {"TF32"}),
        # what has no quantizers may be fp16
        (TRT_8, {"precision": "int8", "quantization": "explicit"}, {"TF32", "INT8", "FP16"}),
        (TRT_8, {"layer_precisions": HALF}, {"TF32", "FP16", "OBEY_PRECISION_CONSTRAINTS"}),
        (
            TRT_8,
            {"layer_precisions": HALF, "precision_constraints": "prefer"},
            {"TF32", "FP16", "PREFER_PRECISION_CONSTRAINTS"},
        ),
        (
            TRT_8,
            {"layer_precisions": [{"layers": "l", "precision": "int8"}, *FULL]},
            {"TF32", "INT8", "FP16", "OBEY_PRECISION_CONSTRAINTS"},
        ),
    ],
)
def test_a_weakly_typed_builder_gets_the_flags_of_its_precisions(
    tmp_path: Path, generation: str, fields: dict[str, Any], flags: set[str]
) -> None:
    made = RecordingTensorRt(generation)
    facts = build(tmp_path, made, **fields)
    assert flags_of(made) == flags
    if fields.get("layer_precisions") == HALF:
        assert made.layer.precision == made.module.DataType.HALF
        assert facts["precision_shares"]["layers"] == {"float16": 1.0}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_tf32_can_be_turned_off(tmp_path: Path, generation: str) -> None:
    made = RecordingTensorRt(generation)
    field: dict[str, Any] = {"flags": {"tf32": False}} if generation == RTX else {"tf32": False}
    facts = build(tmp_path, made, **field)
    assert flags_of(made) == set()
    assert not any(facts["settings"]["flags"].values())


@pytest.mark.parametrize(
    ("generation", "typing", "flag"),
    [
        (TRT_8, "weak", "EXPLICIT_BATCH"),
        (TRT_10, "strong", "STRONGLY_TYPED"),
        (TRT_10, "weak", None),
        (TRT_11, "strong", None),
    ],
)
def test_a_network_has_the_typing_of_its_engine(
    tmp_path: Path, generation: str, typing: str, flag: str | None
) -> None:
    made = RecordingTensorRt(generation)
    build(tmp_path, made, typing=typing)
    flags = made.module.NetworkDefinitionCreationFlag
    assert made.network_flags == (0 if flag is None else 1 << int(flags[flag]))


def test_a_flag_without_effect_is_an_error(tmp_path: Path) -> None:
    made = RecordingTensorRt(TRT_10)
    made.deaf_flags = {"SPARSE_WEIGHTS"}
    with pytest.raises(StageError, match="the flag sparse_weights has no effect"):
        build(tmp_path, made, sparsity=True)


def test_an_error_logged_during_a_build_fails_it_despite_an_engine(tmp_path: Path) -> None:
    made = RecordingTensorRt(TRT_10)
    made.logged_error = "a tactic was wrong"
    with pytest.raises(StageError, match="model m: a tactic was wrong"):
        build(tmp_path, made)
    assert not (tmp_path / "e.engine").exists()


class Device:
    """A GPU whose buffers record their uploads."""

    def __init__(self) -> None:
        self.uploads: list[float] = []

    def current(self) -> Any:
        return nullcontext()

    def allocate(self, size: int) -> Any:
        assert size == 2 * 4 * 4
        upload = lambda array: self.uploads.append(float(array[0, 0]))  # noqa: E731
        return SimpleNamespace(upload=upload, address=4096)


@pytest.mark.parametrize("algorithm", ["minmax", "entropy"])
def test_a_calibrator_has_its_algorithm_and_gives_every_batch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    device = Device()
    monkeypatch.setattr(calibrator, "Device", lambda index: device)
    batches = {f"{n}/x": np.full((2, 4), n, np.float32) for n in range(3)}
    np.savez(tmp_path / "batches.npz", **batches)
    calibration = Calibration(tmp_path / "batches.npz", algorithm, tmp_path / "ranges")
    made = RecordingTensorRt(TRT_8)
    build(tmp_path, made, calibration, precision="int8", quantization="implicit")
    base = {"minmax": "IInt8MinMaxCalibrator", "entropy": "IInt8EntropyCalibrator2"}[algorithm]
    found = made.config.int8_calibrator
    assert isinstance(found, getattr(made.module, base))
    assert found.get_batch_size() == 2
    assert device.uploads == [0.0, 1.0, 2.0]
    assert (tmp_path / "ranges").read_bytes() == found.read_calibration_cache() == b"ranges"
    assert made.config.get_calibration_profile().get_shape("x") == [(2, 4)] * 3
