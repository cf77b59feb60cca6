"""The command of trtexec, or of TensorRT-RTX's tensorrt_rtx, that builds the same engine.

Source: TensorRT's samples/common/sampleOptions.cpp; TensorRT-RTX's documentation.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from buildsys.backends.interface import Figures, Options

_TACTIC_SOURCES = ("cublas", "cublas_lt", "cudnn", "edge_mask_convolutions", "jit_convolutions")
_POOLS = {
    "workspace": "workspace", "dla_managed_sram": "dlaSRAM", "dla_local_dram": "dlaLocalDRAM",
    "dla_global_dram": "dlaGlobalDRAM", "tactic_shared_memory": "tacticSharedMem",
}  # fmt: skip
_FLAGS = {  # builder flag -> flag of trtexec
    **{name: f"--{name}" for name in ("fp16", "bf16", "int8", "fp8", "int4", "refit")},
    "sparse_weights": "--sparsity=enable",
    "direct_io": "--directIO",
    "gpu_fallback": "--allowGPUFallback",
    "strip_plan": "--stripWeights",
    "version_compatible": "--versionCompatible",
    "exclude_lean_runtime": "--excludeLeanRuntime",
    "weight_streaming": "--allowWeightStreaming",
    "disable_compilation_cache": "--noCompilationCache",
    "monitor_memory": "--monitorMemory",
    "distributive_independence": "--distributiveIndependence",
}
_LEVELS = {"ampere_plus": "ampere+", "same_compute_capability": "sameComputeCapability"}
_MIB = 2**20
_TILINGS = ("none", "fast", "moderate", "full")
# field -> its value without a flag, and the flag for another value
_FIELDS: Mapping[str, tuple[Any, Callable[[Any], str]]] = {
    "builder_optimization_level": (3, "--builderOptimizationLevel={}".format),
    "avg_timing_iterations": (1, "--avgTiming={}".format),
    "profiling_verbosity": ("layer_names_only", "--profilingVerbosity={}".format),
    "max_aux_streams": (None, "--maxAuxStreams={}".format),
    "tiling_optimization_level": (
        "none", lambda level: f"--tilingOptimizationLevel={_TILINGS.index(level)}"
    ),
    "l2_limit_for_tiling": (None, "--l2LimitForTiling={}".format),
    "hardware_compatibility": (
        "none", lambda level: f"--hardwareCompatibilityLevel={_LEVELS[level]}"
    ),
    "dla_core": (None, "--useDLACore={}".format),
    "tactic_sources": (None, lambda chosen: "--tacticSources=" + ",".join(
        f"{'+' if name in chosen else '-'}{name.upper()}" for name in _TACTIC_SOURCES
    )),
}  # fmt: skip
# what the tool lacks, or names in another way
_WITHOUT_FLAG = ("tactic_dram", "max_threads", "io", "network", "layer_precisions")
_USUAL_TIMINGS = "--avgTiming=1"  # of TensorRT; trtexec's own default is 8


class Program(NamedTuple):
    """The program of a release, and its flag for strong typing."""

    name: str = "trtexec"
    strong: str = ""


RTX_PROGRAM = Program("tensorrt_rtx")


def trtexec(
    program: Program,
    options: Options,
    flags: Mapping[str, bool],
    profiles: Sequence[Mapping[str, Mapping[str, Sequence[int]]]],
    *,
    engine: str,
    timing_cache: str = "",
    plugins: Sequence[Figures] = (),
    calibrated: bool = False,
) -> dict[str, Any]:
    """Return the ``command``, and the fields ``without_flag``.

    ``flags`` are the builder's. File names are those of the graph's and engine's folders.
    """
    is_rtx, words = program == RTX_PROGRAM, ["--onnx=model.onnx", f"--saveEngine={engine}"]
    for number, ranges in enumerate(profiles):
        words += [f"--profile={number}"] if len(profiles) > 1 else []
        for point in ("min", "opt", "max"):
            shapes = (f"{_quoted(name)}:{_sizes(r[point])}" for name, r in ranges.items())
            words.append(f"--{point}Shapes={','.join(shapes)}")
    missing = [name for name in _WITHOUT_FLAG if options.get(name)]
    missing += ["profiles"] * any("min_values" in r for p in profiles for r in p.values())
    missing += ["calibration"] * calibrated
    changed = [name for name, (usual, _) in _FIELDS.items() if options.get(name, usual) != usual]
    pools = [name for name in _POOLS if options.get(name) is not None]
    on = [name for name, is_on in flags.items() if is_on and name != "tf32"]
    off = [] if flags.get("tf32", True) else ["tf32"]
    files = dict.fromkeys(entry["file"] for entry in plugins if "file" in entry)
    if is_rtx:  # other flags of its program are not documented
        capabilities = [name.replace(".", "") for name in options["compute_capabilities"]]
        is_here = "current" in capabilities
        words.append("--useGpu" if is_here else f"--computeCapabilities={','.join(capabilities)}")
        missing += [*changed, *pools, *on, *off, *files]
    else:
        words += [_FIELDS[name][1](options[name]) for name in changed]
        words += [] if "avg_timing_iterations" in changed else [_USUAL_TIMINGS]
        sizes = (f"{_POOLS[name]}:{options[name] / _MIB:.12g}" for name in pools)
        words += [f"--memPoolSize={','.join(sizes)}"] if pools else []
        words += [program.strong] if program.strong and options["typing"] == "strong" else []
        words += ["--noTF32"] * bool(off) + [_FLAGS[name] for name in on if name in _FLAGS]
        implied = {"refit_identical"} if "strip_plan" in on and "refit" not in on else set()
        missing += [name for name in on if name not in {*_FLAGS, *implied}]
        words += [f"--timingCacheFile={timing_cache}"] if timing_cache else []
        words += [f"--staticPlugins={file}" for file in files if not file.endswith(".py")]
        missing += [file for file in files if file.endswith(".py")]
    words.append("--skipInference")
    return {
        "command": shlex.join([program.name, *words]),
        "without_flag": missing,
    }


def _quoted(name: str) -> str:
    return f"'{name}'" if ":" in name or "," in name else name


def _sizes(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"
