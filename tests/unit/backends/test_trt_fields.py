"""The versions of TensorRT supporting each field of an engine."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from trt_double import VERSIONS, RecordingTensorRt, options, planned

from buildsys.backends.cuda_gpus import Driver, Gpu
from buildsys.backends.interface import OperatorUse
from buildsys.backends.tensorrt import common_backend, version_adapter
from buildsys.backends.tensorrt.library import (
    GENERATIONS,
    RTX,
    TRT_8,
    TRT_10,
    TRT_11,
    TensorRTLibrary,
    check_fields,
    library_of,
    quantization_of,
)
from buildsys.backends.tensorrt.plugin_loading import load_plugins
from buildsys.errors import StageError, Unavailable

ALL, LATER = {TRT_8, TRT_10, TRT_11}, {TRT_10, TRT_11}


def library(generation: str) -> TensorRTLibrary:
    """Return a library of a name and version without an API."""
    module = ModuleType("tensorrt_rtx" if generation == RTX else "tensorrt")
    module.__version__ = VERSIONS[generation]  # type: ignore[attr-defined]
    return library_of(module)


def honoured_by(**fields: Any) -> set[str]:
    """Return the versions supporting an engine's fields."""
    found = set()
    for generation in (TRT_8, TRT_10, TRT_11):
        try:
            check_fields(RecordingTensorRt(generation).library, planned(generation, **fields))
        except StageError:
            continue
        found.add(generation)
    return found


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_plain_engine_is_for_all(generation: str) -> None:
    assert library(generation).generation == generation
    check_fields(RecordingTensorRt(generation).library, options(generation))


@pytest.mark.parametrize(
    ("fields", "versions"),
    [
        ({"tactic_shared_memory": "64KiB"}, LATER),
        ({"strip_plan": True}, LATER),
        ({"weight_streaming": True, "typing": "strong"}, LATER),
        ({"flags": {"strict_nans": True}}, LATER),
        ({"hardware_compatibility": "same_compute_capability"}, LATER),
        ({"tactic_sources": ["cudnn"]}, {TRT_8, TRT_10}),
        ({"typing": "strong"}, LATER),
        ({"typing": "weak"}, {TRT_8, TRT_10}),
        ({"precision": "bf16", "typing": "weak"}, {TRT_10}),
        ({"precision": "bf16", "typing": "strong"}, LATER),
        ({"quantization": "implicit", "precision": "int8", "typing": "weak"}, {TRT_8, TRT_10}),
        ({"quantization": "explicit", "precision": "int8", "typing": "weak"}, {TRT_8, TRT_10}),
        ({"quantization": "explicit", "precision": "int8"}, ALL),
        ({"layer_precisions": [{"layers": "*", "precision": "fp32"}]}, {TRT_8, TRT_10}),
        ({"layer_precisions": [{"layers": "*", "precision": "bf16"}], "typing": "weak"}, {TRT_10}),
        ({"refit": True, "version_compatible": True, "exclude_lean_runtime": True}, ALL),
        ({"sparsity": True, "direct_io": True, "tf32": False, "workspace": "1GiB"}, ALL),
        ({"dla_core": 0, "gpu_fallback": True, "dla_managed_sram": "1MiB"}, ALL),
    ],
    ids=lambda given: str(sorted(given)) if isinstance(given, set) else str(given),
)
def test_a_field_is_supported_by_its_versions(fields: dict[str, Any], versions: set[str]) -> None:
    assert honoured_by(**fields) == versions


def test_all_unsupported_fields_are_reported_at_once() -> None:
    with pytest.raises(StageError) as caught:
        fields = options(TRT_8, strip_plan=True, precision="bf16")
        check_fields(RecordingTensorRt(TRT_8).library, fields)
    assert str(caught.value) == (
        "TensorRT 8.6.0 does not support strip_plan and precision: bf16;"
        " use TensorRT 10 or later, or remove the field from the engine"
    )


def test_a_version_before_the_first_is_unavailable() -> None:
    module = ModuleType("tensorrt")
    module.__version__ = "8.5.3.1"  # type: ignore[attr-defined]
    with pytest.raises(
        Unavailable, match=r"TensorRT 8\.5\.3 is too old; install TensorRT 8\.6, 10 or 11"
    ):
        library_of(module)


@pytest.mark.parametrize(
    ("generation", "fields", "quantization"),
    [
        (TRT_8, {"precision": "int8"}, "implicit"),
        (TRT_8, {"precision": "int8", "quantization": "explicit"}, "explicit"),
        (TRT_11, {"precision": "int8"}, "explicit"),
        (RTX, {"precision": "fp8"}, "explicit"),
        (TRT_8, {"precision": "fp16", "quantization": "implicit"}, "implicit"),
        (TRT_8, {"precision": "fp16"}, None),
    ],
)
def test_who_quantizes(generation: str, fields: dict[str, Any], quantization: str | None) -> None:
    assert quantization_of(planned(generation, **fields)) == quantization


@pytest.mark.parametrize(
    ("precision", "having", "lacking"),
    [
        ("fp32", ["5.0", "9.0"], []),
        ("fp16", ["5.3", "6.0", "7.0", "9.0", "12.0", "current"], ["5.0", "5.2", "6.1"]),
        ("int8", ["6.1", "7.5"], ["6.0"]),
        ("bf16", ["8.0", "10.0"], ["7.5"]),
        ("fp8", ["8.9", "9.0", "12.1"], ["8.6"]),
    ],
)
def test_the_precisions_of_a_gpu(precision: str, having: list[str], lacking: list[str]) -> None:
    computing = [c for c in having + lacking if common_backend.computes_in(precision, c)]
    assert computing == having


def gpu(monkeypatch: pytest.MonkeyPatch, name: str, capability: str) -> None:
    found = Driver("12.0", (Gpu(0, name, capability, 8 << 30),))
    monkeypatch.setattr(common_backend, "find_driver", lambda: found)


def test_a_precision_unsupported_by_the_gpu_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu(monkeypatch, "Tesla P40", "6.1")
    common_backend.check_builder(library(TRT_8), options(TRT_8, precision="fp32"))
    with pytest.raises(Unavailable) as caught:
        common_backend.check_builder(library(TRT_8), options(TRT_8, precision="fp16"))
    assert str(caught.value) == (
        "the Tesla P40 of this machine (compute capability 6.1) does not compute in fp16;"
        " fp16 needs a GPU of compute capability 5.3 or later"
    )


def test_without_a_gpu_an_engine_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        common_backend, "find_driver", lambda: Driver("", (), "no NVIDIA driver is installed")
    )
    with pytest.raises(Unavailable, match="builds engines on the GPU that they are for, and here"):
        common_backend.check_builder(library(TRT_10), options(TRT_10))
    with pytest.raises(Unavailable, match="engines run on NVIDIA GPUs, and here no NVIDIA driver"):
        common_backend.check_runner(library(TRT_10), options(TRT_10))


def test_a_gpu_that_tensorrt_rtx_does_not_support_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu(monkeypatch, "NVIDIA H100", "9.0")
    engine = options(RTX, compute_capabilities=["8.6", "12.0"])
    common_backend.check_builder(library(RTX), engine)  # it builds for other GPUs
    with pytest.raises(Unavailable) as caught:
        common_backend.check_runner(library(RTX), engine)
    assert str(caught.value) == (
        "TensorRT-RTX does not run on the NVIDIA H100 of this machine (compute capability 9.0);"
        " run it on a GPU of compute capability 7.5, 8.0, 8.6, 8.9, 12.0 or 12.1, or build the"
        " engine with backend: tensorrt for this one"
    )


def test_plugins_in_python_need_a_later_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    having = [each for each in GENERATIONS if library(each).has("plugins in Python")]
    assert having == [TRT_10, TRT_11, RTX]
    monkeypatch.setattr(version_adapter, "register_bundled_plugins", lambda _: None)
    use = OperatorUse("own::Clip", "plugin", tmp_path / "plugins/ops/clip.py", tmp_path)
    with pytest.raises(StageError) as caught:
        load_plugins(library(TRT_8), [use])
    assert str(caught.value) == (
        "plugins/ops/clip.py: TensorRT 8.6.0 takes no plugins written in Python"
        " (TensorRT 10, TensorRT 11 or TensorRT-RTX can); build the plugin as a shared library"
    )
