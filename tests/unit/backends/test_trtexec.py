"""The command of trtexec for an engine."""

from typing import Any

import pytest
from trt_double import RecordingTensorRt, planned

from buildsys.backends.tensorrt.library import RTX, TRT_8, TRT_10, TRT_11
from buildsys.backends.tensorrt.trtexec import Program, trtexec
from buildsys.backends.tensorrt.version_adapter import program_of

PROFILE = {"x": {"min": [1, 3], "opt": [4, 3], "max": [8, 3]}}


def command(generation: str, fields: dict[str, Any], *flags: str, **more: Any) -> dict[str, Any]:
    on = {"tf32": True, **dict.fromkeys(flags, True)}
    options = planned(generation, **fields)
    program = program_of(RecordingTensorRt(generation).library)
    return trtexec(program, options, on, more.pop("profiles", []), engine="e.plan", **more)


@pytest.mark.parametrize(
    ("generation", "fields", "flags", "words", "without"),
    [
        (TRT_10, {}, [], "--profilingVerbosity=detailed --avgTiming=1", []),
        (TRT_8, {"precision": "int8"}, ["int8", "fp16"],
         "--profilingVerbosity=detailed --avgTiming=1 --int8 --fp16", []),
        (TRT_10, {"typing": "strong", "precision": "fp16", "workspace": "4GiB",
                  "tactic_shared_memory": "64KiB", "builder_optimization_level": 5}, [],
         "--builderOptimizationLevel=5 --profilingVerbosity=detailed --avgTiming=1"
         " --memPoolSize=workspace:4096,tacticSharedMem:0.0625 --stronglyTyped", []),
        (TRT_11, {"profiling_verbosity": "none", "tiling_optimization_level": "fast",
                  "avg_timing_iterations": 4, "max_threads": 2}, ["version_compatible"],
         "--avgTiming=4 --profilingVerbosity=none --tilingOptimizationLevel=1 --versionCompatible",
         ["max_threads"]),
        (TRT_10, {"dla_core": 0, "sparsity": True, "tactic_sources": ["cudnn"]},
         ["sparse_weights", "gpu_fallback", "strict_nans"],
         "--profilingVerbosity=detailed --useDLACore=0 --tacticSources=-CUBLAS,-CUBLAS_LT,+CUDNN,"
         "-EDGE_MASK_CONVOLUTIONS,-JIT_CONVOLUTIONS --avgTiming=1 --sparsity=enable"
         " --allowGPUFallback", ["strict_nans"]),
        (TRT_10, {"hardware_compatibility": "ampere_plus"}, ["strip_plan", "refit_identical"],
         "--profilingVerbosity=detailed --hardwareCompatibilityLevel=ampere+ --avgTiming=1"
         " --stripWeights", []),
        (RTX, {"workspace": "1GiB"}, ["refit"], "--computeCapabilities=86,89,120",
         ["workspace", "refit"]),
        (RTX, {"compute_capabilities": ["current"]}, [], "--useGpu", []),
    ],
)  # fmt: skip
def test_settings_become_flags(
    generation: str, fields: dict[str, Any], flags: list[str], words: str, without: list[str]
) -> None:
    program = "tensorrt_rtx" if generation == RTX else "trtexec"
    line = command(generation, fields, *flags)
    start = f"{program} --onnx=model.onnx --saveEngine=e.plan "
    assert line == {"command": f"{start}{words} --skipInference", "without_flag": without}


def test_files_and_profiles() -> None:
    plugins = [{"file": "plugins/a.so"}, {"file": "plugins/b.py"}, {"bundled": "10.16.1"}]
    more: dict[str, Any] = {"plugins": plugins, "timing_cache": "t.cache", "calibrated": True}
    line = command(TRT_10, {}, "tf32", profiles=[PROFILE, PROFILE], **more)
    shapes = "--minShapes=x:1x3 --optShapes=x:4x3 --maxShapes=x:8x3"
    assert f"--profile=0 {shapes} --profile=1 {shapes} " in line["command"]
    assert " --timingCacheFile=t.cache --staticPlugins=plugins/a.so " in line["command"]
    assert line["without_flag"] == ["calibration", "plugins/b.py"]
    values = {"n": {"min": [], "opt": [], "max": [], "min_values": [1]}}
    assert command(TRT_10, {}, profiles=[values])["without_flag"] == ["profiles"]
    assert (
        "--noTF32"
        in trtexec(Program(), planned(TRT_10), {"tf32": False}, [], engine="e")["command"]
    )
