"""An engine's fields as TensorRT-RTX takes them, and what this machine cannot honour of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorrt_rtx as trt

from buildsys.backends.base import Figures, Options
from buildsys.backends.cuda_driver import find_driver
from buildsys.backends.profiles import Profile
from buildsys.backends.rtx_messages import Messages
from buildsys.errors import StageError, Unavailable

FLAGS = {
    "tf32": trt.BuilderFlag.TF32,
    "sparse_weights": trt.BuilderFlag.SPARSE_WEIGHTS,
    "direct_io": trt.BuilderFlag.DIRECT_IO,
    "gpu_fallback": trt.BuilderFlag.GPU_FALLBACK,
    "refit": trt.BuilderFlag.REFIT,
    "refit_individual": trt.BuilderFlag.REFIT_INDIVIDUAL,
    "refit_identical": trt.BuilderFlag.REFIT_IDENTICAL,
    "strip_plan": trt.BuilderFlag.STRIP_PLAN,
    "weight_streaming": trt.BuilderFlag.WEIGHT_STREAMING,
    "strict_nans": trt.BuilderFlag.STRICT_NANS,
    "editable_timing_cache": trt.BuilderFlag.EDITABLE_TIMING_CACHE,
    "disable_compilation_cache": trt.BuilderFlag.DISABLE_COMPILATION_CACHE,
    "monitor_memory": trt.BuilderFlag.MONITOR_MEMORY,
    "distributive_independence": trt.BuilderFlag.DISTRIBUTIVE_INDEPENDENCE,
    "require_user_allocation": trt.BuilderFlag.REQUIRE_USER_ALLOCATION,
    "version_compatible": trt.BuilderFlag.VERSION_COMPATIBLE,
    "exclude_lean_runtime": trt.BuilderFlag.EXCLUDE_LEAN_RUNTIME,
    "debug": trt.BuilderFlag.DEBUG,
}
CAPABILITIES = {
    "7.5": trt.ComputeCapability.SM75,
    "8.0": trt.ComputeCapability.SM80,
    "8.6": trt.ComputeCapability.SM86,
    "8.9": trt.ComputeCapability.SM89,
    "12.0": trt.ComputeCapability.SM120,
    "12.1": trt.ComputeCapability.SM121,
    "current": trt.ComputeCapability.CURRENT,
}
_TILING = {
    "none": trt.TilingOptimizationLevel.NONE,
    "fast": trt.TilingOptimizationLevel.FAST,
    "moderate": trt.TilingOptimizationLevel.MODERATE,
    "full": trt.TilingOptimizationLevel.FULL,
}
_VERBOSITY = {
    "layer_names_only": trt.ProfilingVerbosity.LAYER_NAMES_ONLY,
    "none": trt.ProfilingVerbosity.NONE,
    "detailed": trt.ProfilingVerbosity.DETAILED,
}
_GPU_FLAGS = ("refit", "refit_identical", "strip_plan")  # the builder asks the CUDA driver for them


def check_machine(options: Options) -> None:
    """Find fields that cannot be honoured on this machine, before anything is built.

    Raises: Unavailable: a GPU is needed and missing, or not one that TensorRT-RTX knows.
    """
    driver = find_driver()
    needing = [f"the builder flag {flag}" for flag in _GPU_FLAGS if options["flags"].get(flag)]
    needing += ["the compute capability 'current'"] if "current" in options["compute_capabilities"] else []
    if not needing:
        return
    if not driver.gpus:
        raise Unavailable(
            f"{' and '.join(needing)} can only be used on a machine with an NVIDIA GPU, and here {driver.missing}",
            "build it on a machine with an RTX GPU, or leave the field out",
        )
    check_gpu()


def check_gpu() -> None:
    """Check that the GPU of this machine is one that TensorRT-RTX has kernels for.

    Raises: Unavailable: there is none, or its compute capability is unknown to TensorRT-RTX.
    """
    driver = find_driver()
    known = [capability for capability in CAPABILITIES if capability != "current"]
    where = f"run it on a GPU of compute capability {_either(known)}"
    if not driver.gpus:
        raise Unavailable(f"TensorRT-RTX engines run on NVIDIA GPUs, and here {driver.missing}", where)
    gpu = driver.gpus[0]
    if gpu.compute_capability not in known:
        here = f"the {gpu.name} of this machine (compute capability {gpu.compute_capability})"
        raise Unavailable(f"TensorRT-RTX does not run on {here}", where)


def check_runs_here(options: Options) -> None:
    """Check that an engine built with ``options`` runs on the GPU of this machine.

    Raises: Unavailable: no GPU, or not one of the generations that the engine is for.
    """
    built_for = options["compute_capabilities"]
    driver = find_driver()
    named = [capability for capability in built_for if capability != "current"]
    if not driver.gpus:
        where = f"of compute capability {_either(named)}" if named else "like the one that built it"
        raise Unavailable(
            f"no NVIDIA GPU can run the engine on this machine: {driver.missing}", f"run it on a GPU {where}"
        )
    check_gpu()
    gpu = driver.gpus[0]
    if gpu.compute_capability not in built_for and "current" not in built_for:
        raise Unavailable(
            f"the engine is built for compute capability {_either(named)}, and the {gpu.name} of this machine"
            f" has {gpu.compute_capability}",
            f"add '{gpu.compute_capability}' to the engine's compute_capabilities",
        )


def configure(builder: trt.Builder, config: trt.IBuilderConfig, options: Options, messages: Messages) -> None:
    """Set every field on the builder and its configuration.

    Raises: StageError: TensorRT-RTX refused a value. It only logs that, and goes on with its default.
    """
    if options["max_threads"] is not None:
        builder.max_threads = options["max_threads"]
    config.builder_optimization_level = options["builder_optimization_level"]
    config.avg_timing_iterations = options["avg_timing_iterations"]
    config.tiling_optimization_level = _TILING[options["tiling_optimization_level"]]
    config.profiling_verbosity = _VERBOSITY[options["profiling_verbosity"]]
    if options["max_aux_streams"] is not None:
        config.max_aux_streams = options["max_aux_streams"]
    if options["l2_limit_for_tiling"] is not None:
        config.l2_limit_for_tiling = options["l2_limit_for_tiling"]
    for field, pool in (
        ("workspace", trt.MemoryPoolType.WORKSPACE),
        ("tactic_shared_memory", trt.MemoryPoolType.TACTIC_SHARED_MEMORY),
    ):
        if options[field] is not None:
            config.set_memory_pool_limit(pool, options[field])
    _set_capabilities(config, options["compute_capabilities"])
    ignored = list(_set_flags(config, options["flags"]))
    if messages.errors or ignored:
        refused = "; ".join(dict.fromkeys([*messages.errors, *(f"the flag {flag} has no effect" for flag in ignored)]))
        raise StageError(f"TensorRT-RTX refuses a field of the engine: {refused}")


def add_profiles(builder: trt.Builder, config: trt.IBuilderConfig, profiles: Sequence[Profile]) -> None:
    """Add the optimization profiles.

    Raises: StageError: TensorRT-RTX refused one. It says so in two return values and nowhere else.
    """
    for number, ranges in enumerate(profiles):
        profile = builder.create_optimization_profile()
        for name, shapes in ranges.items():
            profile.set_shape(name, shapes["min"], shapes["opt"], shapes["max"])
        if not profile or config.add_optimization_profile(profile) < 0:
            raise StageError(f"TensorRT-RTX refuses the optimization profile {number}: {ranges}")


def settings_in_force(builder: trt.Builder, config: trt.IBuilderConfig, options: Options) -> Figures:
    """Return the settings as TensorRT-RTX will use them, defaults included."""
    return {
        "precision": options["precision"],
        "compute_capabilities": list(options["compute_capabilities"]),
        "flags": {name: bool(config.get_flag(flag)) for name, flag in FLAGS.items()},
        "builder_optimization_level": int(config.builder_optimization_level),
        "workspace": int(config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE)),
        "tactic_shared_memory": int(config.get_memory_pool_limit(trt.MemoryPoolType.TACTIC_SHARED_MEMORY)),
        "tiling_optimization_level": str(config.tiling_optimization_level.name).lower(),
        "l2_limit_for_tiling": int(config.l2_limit_for_tiling),
        "max_aux_streams": int(config.max_aux_streams),
        "avg_timing_iterations": int(config.avg_timing_iterations),
        "max_threads": int(builder.max_threads),
        "profiling_verbosity": str(config.profiling_verbosity.name).lower(),
    }


def _set_capabilities(config: trt.IBuilderConfig, capabilities: Sequence[str]) -> None:
    distinct = list(dict.fromkeys(capabilities))
    config.num_compute_capabilities = len(distinct)
    for index, capability in enumerate(distinct):
        config.set_compute_capability(CAPABILITIES[capability], index)


def _set_flags(config: trt.IBuilderConfig, flags: dict[str, bool]) -> Iterator[str]:
    """Set and clear flags; yield those that did not take the value."""
    for name, wanted in flags.items():
        flag: Any = FLAGS[name]
        if wanted:
            config.set_flag(flag)
        else:
            config.clear_flag(flag)
        if bool(config.get_flag(flag)) != wanted:
            yield name


def _either(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
