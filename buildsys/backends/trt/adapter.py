"""All that differs between TensorRT 8.6, 10, 11 and TensorRT-RTX.

A function decorated with ``only`` may touch what these generations have, and refuses to run with another; any other
function, here and in the rest of the package, touches what all four have. tests/unit/backends holds both against
lists of the real libraries.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from buildsys.backends.trt.library import GENERATIONS, RTX, SINCE_10, TRT_8, TRT_10, TRT_11, UNTIL_10, Library
from buildsys.backends.trt.messages import Phases
from buildsys.errors import StageError

_PARSERS_LIBRARY = "libtensorrt_rtx.so"
Call = TypeVar("Call", bound=Callable[..., Any])


def either(names: tuple[str, ...] | list[str]) -> str:
    """Return names as in ``a, b or c``."""
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def only(*generations: str) -> Callable[[Call], Call]:
    """Mark a function for the libraries whose names it may use; its first parameter is the library."""

    def mark(function: Call) -> Call:
        @functools.wraps(function)
        def call(library: Library, *arguments: Any, **named: Any) -> Any:
            if library.generation not in generations:
                what = function.__name__.replace("_", " ")
                raise StageError(f"{library.release} has no {what}", f"{either(generations)} has")
            return function(library, *arguments, **named)

        return call  # type: ignore[return-value]

    return mark


@dataclass(frozen=True)
class Member:
    """A value of an enumeration, and the generations that have it."""

    name: str
    generations: tuple[str, ...] = GENERATIONS


@dataclass(frozen=True)
class Values:
    """The values of one enumeration of TensorRT by the words of manifests and results."""

    enumeration: str
    members: Mapping[str, Member]

    def of(self, library: Library, word: str) -> Any:
        """Return a value.

        Raises: StageError: the library does not have it; says which ones do.
        """
        member = self.members[word]
        value = getattr(getattr(library.trt, self.enumeration, None), member.name, None)
        if library.generation not in member.generations or value is None:
            raise StageError(f"{library.release} has no {word}", f"{either(member.generations)} has")
        return value

    def words(self, library: Library) -> dict[Any, str]:
        """Return the words of all values that the library has."""
        known = {word: member for word, member in self.members.items() if library.generation in member.generations}
        owner = getattr(library.trt, self.enumeration, None)
        found = {word: getattr(owner, member.name, None) for word, member in known.items()}
        return {value: word for word, value in found.items() if value is not None}


WITH_RTX = (RTX,)

DTYPES = Values(
    "DataType",
    {
        "float32": Member("FLOAT"),
        "float16": Member("HALF"),
        "bfloat16": Member("BF16", SINCE_10),
        "int8": Member("INT8"),
        "uint8": Member("UINT8"),
        "int32": Member("INT32"),
        "int64": Member("INT64", SINCE_10),
        "bool": Member("BOOL"),
        "float8e4m3fn": Member("FP8"),
        "float8e8m0": Member("E8M0", SINCE_10),
        "int4": Member("INT4", SINCE_10),
        "float4e2m1": Member("FP4", SINCE_10),
    },
)
FLAGS = Values(
    "BuilderFlag",
    {
        "tf32": Member("TF32"),
        "sparse_weights": Member("SPARSE_WEIGHTS"),
        "direct_io": Member("DIRECT_IO"),
        "gpu_fallback": Member("GPU_FALLBACK"),
        "refit": Member("REFIT"),
        "refit_individual": Member("REFIT_INDIVIDUAL", SINCE_10),
        "refit_identical": Member("REFIT_IDENTICAL", SINCE_10),
        "strip_plan": Member("STRIP_PLAN", SINCE_10),
        "weight_streaming": Member("WEIGHT_STREAMING", SINCE_10),
        "strict_nans": Member("STRICT_NANS", SINCE_10),
        "editable_timing_cache": Member("EDITABLE_TIMING_CACHE", SINCE_10),
        "disable_compilation_cache": Member("DISABLE_COMPILATION_CACHE", SINCE_10),
        "monitor_memory": Member("MONITOR_MEMORY", SINCE_10),
        "distributive_independence": Member("DISTRIBUTIVE_INDEPENDENCE", SINCE_10),
        "require_user_allocation": Member("REQUIRE_USER_ALLOCATION", WITH_RTX),
        "version_compatible": Member("VERSION_COMPATIBLE"),
        "exclude_lean_runtime": Member("EXCLUDE_LEAN_RUNTIME"),
        "debug": Member("DEBUG"),
    },
)
CAPABILITIES = Values(
    "ComputeCapability",
    {
        "7.5": Member("SM75", WITH_RTX),
        "8.0": Member("SM80", WITH_RTX),
        "8.6": Member("SM86", WITH_RTX),
        "8.9": Member("SM89", WITH_RTX),
        "12.0": Member("SM120", WITH_RTX),
        "12.1": Member("SM121", WITH_RTX),
        "current": Member("CURRENT", WITH_RTX),
    },
)
TILING = Values(
    "TilingOptimizationLevel",
    {word: Member(word.upper(), SINCE_10) for word in ("none", "fast", "moderate", "full")},
)
VERBOSITY = Values(
    "ProfilingVerbosity", {word: Member(word.upper()) for word in ("layer_names_only", "none", "detailed")}
)
POOLS = Values(
    "MemoryPoolType",
    {
        "workspace": Member("WORKSPACE"),
        "tactic_dram": Member("TACTIC_DRAM"),
        "tactic_shared_memory": Member("TACTIC_SHARED_MEMORY", SINCE_10),
        "dla_managed_sram": Member("DLA_MANAGED_SRAM"),
        "dla_local_dram": Member("DLA_LOCAL_DRAM"),
        "dla_global_dram": Member("DLA_GLOBAL_DRAM"),
    },
)
PRECISION_FLAGS = Values(
    "BuilderFlag",
    {
        "fp16": Member("FP16", UNTIL_10),
        "bf16": Member("BF16", (TRT_10,)),
        "int8": Member("INT8", UNTIL_10),
        "obey": Member("OBEY_PRECISION_CONSTRAINTS", UNTIL_10),
        "prefer": Member("PREFER_PRECISION_CONSTRAINTS", UNTIL_10),
    },
)
TACTIC_SOURCES = Values(
    "TacticSource",
    {
        "cublas": Member("CUBLAS", UNTIL_10),
        "cublas_lt": Member("CUBLAS_LT", UNTIL_10),
        "cudnn": Member("CUDNN", UNTIL_10),
        "edge_mask_convolutions": Member("EDGE_MASK_CONVOLUTIONS"),
        "jit_convolutions": Member("JIT_CONVOLUTIONS"),
    },
)
HARDWARE = Values(
    "HardwareCompatibilityLevel",
    {
        "none": Member("NONE"),
        "ampere_plus": Member("AMPERE_PLUS"),
        "same_compute_capability": Member("SAME_COMPUTE_CAPABILITY", SINCE_10),
    },
)
FORMATS = Values(
    "TensorFormat",
    {
        word: Member(word.upper())
        for word in (
            "linear", "chw2", "chw4", "chw16", "chw32", "hwc", "hwc8", "hwc16", "dhwc", "dhwc8", "cdhw32",
            "dla_linear",
        )
    }
    | {"dla_hwc4": Member("DLA_HWC4")},
)  # fmt: skip
TABLES = (FLAGS, PRECISION_FLAGS, CAPABILITIES, TILING, VERBOSITY, POOLS, TACTIC_SOURCES, HARDWARE, FORMATS, DTYPES)
# fields of engines that not all generations have, at any other value than the one that asks for nothing
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "tactic_shared_memory": SINCE_10,
    "tiling_optimization_level": SINCE_10,
    "l2_limit_for_tiling": SINCE_10,
    "refit_identical": SINCE_10,
    "refit_individual": SINCE_10,
    "strip_plan": SINCE_10,
    "weight_streaming": SINCE_10,
    "layer_precisions": UNTIL_10,
}
_NOTHING_ASKED: tuple[object, ...] = (None, False, "none", (), [])


def unsupported_fields(library: Library, options: Mapping[str, Any]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the fields of an engine that a library cannot honour, each with the generations that can."""
    asked: list[tuple[str, tuple[str, ...]]] = [
        (field, generations) for field, generations in _FIELDS.items() if options.get(field, None) not in _NOTHING_ASKED
    ]
    asked += [(f"flags.{flag}", FLAGS.members[flag].generations) for flag in options.get("flags", {})]
    for field, table in (("tactic_sources", TACTIC_SOURCES), ("hardware_compatibility", HARDWARE)):
        values = options.get(field) or ()
        named = (values,) if isinstance(values, str) else values
        asked += [(f"{field}: {value}", table.members[value].generations) for value in named]
    asked += _asked_of_typing(options)
    return [(field, generations) for field, generations in asked if library.generation not in generations]


def _asked_of_typing(options: Mapping[str, Any]) -> list[tuple[str, tuple[str, ...]]]:
    precision, typing = options["precision"], options.get("typing", "strong")
    if typing == "strong":
        return [("typing: strong", SINCE_10)]
    narrow = [precision, *(entry["precision"] for entry in options.get("layer_precisions", ()))]
    asked = [("typing: weak", UNTIL_10)]
    return asked + [
        (f"precision: {name}", PRECISION_FLAGS.members[name].generations) for name in narrow if name != "fp32"
    ]


def create_network(library: Library, builder: Any, *, strong: bool) -> Any:
    """Return a new network whose batch is a dimension like any other, typed by its graph where it is ``strong``."""
    if library.generation == TRT_8:
        return builder.create_network(_explicit_batch(library))
    return builder.create_network(_strongly_typed(library) if strong and library.generation == TRT_10 else 0)


@only(TRT_8)
def _explicit_batch(library: Library) -> int:
    return 1 << int(library.trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH)


@only(TRT_10)
def _strongly_typed(library: Library) -> int:  # TensorRT 11 and TensorRT-RTX know nothing else
    return 1 << int(library.trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)


def set_layer_precision(library: Library, layer: Any, dtype: Any) -> None:
    """Ask for a layer to compute in a type, and to give its outputs in it."""
    _set_layer_precision(library, layer, dtype)


@only(TRT_8, TRT_10)
def _set_layer_precision(library: Library, layer: Any, dtype: Any) -> None:  # noqa: ARG001
    layer.precision = dtype
    for index in range(layer.num_outputs):
        layer.set_output_type(index, dtype)


def profile_values(library: Library, engine: Any, name: str, profile: int) -> list[tuple[int, ...]] | None:
    """Return the values of an input at min, opt and max of a profile; None where its values decide nothing."""
    if not engine.is_shape_inference_io(name):
        return None
    read = _profile_values if library.generation in SINCE_10 else _profile_values_v1
    return [tuple(values) for values in read(library, engine, name, profile)] or None


@only(TRT_10, TRT_11, RTX)
def _profile_values(library: Library, engine: Any, name: str, profile: int) -> Any:  # noqa: ARG001
    return engine.get_tensor_profile_values(profile, name)


@only(TRT_8)
def _profile_values_v1(library: Library, engine: Any, name: str, profile: int) -> Any:  # noqa: ARG001
    return engine.get_profile_shape_input(profile, name)


@only(TRT_8, TRT_10)
def set_calibrator(library: Library, config: Any, calibrator: Any, profile: Any) -> None:  # noqa: ARG001
    """Have int8 ranges measured by a calibrator, on shapes of one profile."""
    config.int8_calibrator = calibrator
    config.set_calibration_profile(profile)


@only(TRT_8, TRT_10)
def calibrator_base(library: Library, algorithm: str) -> Any:
    """Return the class that a calibrator of an algorithm derives from."""
    trt = library.trt
    return trt.IInt8MinMaxCalibrator if algorithm == "minmax" else trt.IInt8EntropyCalibrator2


def set_hardware(library: Library, config: Any, level: str) -> None:
    """Say which other GPUs an engine is to run on."""
    _set_hardware(library, config, level)


@only(TRT_8, TRT_10, TRT_11)
def _set_hardware(library: Library, config: Any, level: str) -> None:
    config.hardware_compatibility_level = HARDWARE.of(library, level)


def hardware_facts(library: Library, config: Any) -> dict[str, Any]:
    """Return which other GPUs an engine is to run on; TensorRT-RTX logs an error where that is as much as read."""
    return _hardware_facts(library, config) if library.generation != RTX else {}


@only(TRT_8, TRT_10, TRT_11)
def _hardware_facts(library: Library, config: Any) -> dict[str, Any]:
    return {"hardware_compatibility": HARDWARE.words(library)[config.hardware_compatibility_level]}


def has_calibrators(library: Library) -> bool:
    """Tell whether ranges for int8 can be measured by the builder."""
    return library.generation in UNTIL_10


def keeps_timings(library: Library) -> bool:
    """Tell whether a timing cache has any effect."""
    return library.generation != RTX


@contextmanager
def runtime_cache(library: Library, engine: Any, file: Path | None) -> Iterator[Any]:
    """Give what an execution context is made with so that ``file`` keeps the kernels compiled for it, or None."""
    if file is None or library.generation != RTX:
        yield None
        return
    with _runtime_cache(library, engine, file) as settings:
        yield settings


@only(RTX)
@contextmanager
def _runtime_cache(library: Library, engine: Any, file: Path) -> Iterator[Any]:  # noqa: ARG001
    runtime_config = engine.create_runtime_config()
    kernels = runtime_config.create_runtime_cache()
    if file.is_file() and not kernels.deserialize(file.read_bytes()):
        kernels = runtime_config.create_runtime_cache()  # of another version: it is made anew
    runtime_config.set_runtime_cache(kernels)
    yield runtime_config
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.write_bytes(kernels.serialize())
    fresh.replace(file)


def check_plugin_machinery(library: Library) -> None:
    """Find out in time what a parser aborts the process for: it opens its library by a name that no wheel has.

    Raises: StageError: the library is not found by that name.
    """
    if library.generation != RTX:
        return
    try:
        ctypes.CDLL(_PARSERS_LIBRARY)
    except OSError as error:
        problem = f"TensorRT-RTX looks for {_PARSERS_LIBRARY} when a graph has plugins, and there is none"
        hint = "put a folder with a link of this name to its library on LD_LIBRARY_PATH, as the workers have it"
        raise StageError(problem, hint) from error


def find_creator(library: Library, name: str, version: str, namespace: str) -> Any:
    """Return a registered plugin creator, None where there is none."""
    find = _creator if library.generation in SINCE_10 else _creator_v1
    return find(library, library.trt.get_plugin_registry(), name, version, namespace)


@only(TRT_10, TRT_11, RTX)
def _creator(library: Library, registry: Any, name: str, version: str, namespace: str) -> Any:  # noqa: ARG001
    return registry.get_creator(name, version, namespace)


@only(TRT_8)
def _creator_v1(library: Library, registry: Any, name: str, version: str, namespace: str) -> Any:  # noqa: ARG001
    return registry.get_plugin_creator(name, version, namespace)


def all_creators(library: Library) -> list[Any]:
    """Return all registered plugin creators."""
    find = _all_creators if library.generation in SINCE_10 else _all_creators_v1
    return list(find(library, library.trt.get_plugin_registry()))


@only(TRT_10, TRT_11, RTX)
def _all_creators(library: Library, registry: Any) -> Any:  # noqa: ARG001
    return registry.all_creators


@only(TRT_8)
def _all_creators_v1(library: Library, registry: Any) -> Any:  # noqa: ARG001
    return registry.plugin_creator_list


def register_own_plugins(library: Library, logger: Any) -> None:
    """Register the plugins that TensorRT brings: its parser takes some operators for them, and engines hold them."""
    if library.generation != RTX:
        _register_own_plugins(library, logger)


@only(TRT_8, TRT_10, TRT_11)
def _register_own_plugins(library: Library, logger: Any) -> None:
    library.trt.init_libnvinfer_plugins(logger, "")


def check_python_plugins(library: Library, file: str) -> None:
    """Raise StageError where the library takes no plugins that are written in Python."""
    if library.generation not in SINCE_10:
        problem = f"{file}: {library.release} takes no plugins written in Python ({either(SINCE_10)} can)"
        raise StageError(problem, "build the plugin as a shared library")


def monitor_progress(library: Library, config: Any, report: Callable[[str], None]) -> Any:
    """Report the phases of a build, where TensorRT tells them; return what must live until its end."""
    return _progress_monitor(library, config, Phases(report)) if library.generation in SINCE_10 else None


@only(TRT_10, TRT_11, RTX)
def _progress_monitor(library: Library, config: Any, phases: Phases) -> Any:
    trt = library.trt

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:  # noqa: ARG002
            phases.start(phase_name, num_steps)

        def phase_finish(self, phase_name: str) -> None:
            phases.finish(phase_name)

        def step_complete(self, phase_name: str, step: int) -> bool:
            return phases.step(phase_name, step)

    monitor = Monitor()  # the configuration does not keep it alive
    config.progress_monitor = monitor
    return monitor


@dataclass(frozen=True)
class ErrorFacts:
    """What a parser tells of an error."""

    text: str
    index: int | None
    name: str = ""
    operator: str = ""
    functions: tuple[str, ...] = ()


def names_nodes(library: Library) -> bool:
    """Tell whether a parser tells the name and the operator of each node that it refuses, and all of them at once."""
    return library.generation in SINCE_10


def error_facts(library: Library, error: Any) -> ErrorFacts:
    """Return what the parser tells of an error."""
    index = error.node()
    where = _error_node(library, error) if library.generation in SINCE_10 else ("", "", ())
    return ErrorFacts(error.desc(), index if index >= 0 else None, *where)


@only(TRT_10, TRT_11, RTX)
def _error_node(library: Library, error: Any) -> tuple[str, str, tuple[str, ...]]:  # noqa: ARG001
    return error.node_name(), error.node_operator(), tuple(error.local_function_stack())


def device_memory_bytes(library: Library, engine: Any) -> int:
    """Return the memory that an execution context needs beside the weights."""
    return int(_memory_v2(library, engine) if library.generation in SINCE_10 else _memory_v1(library, engine))


@only(TRT_10, TRT_11, RTX)
def _memory_v2(library: Library, engine: Any) -> Any:  # noqa: ARG001
    return engine.device_memory_size_v2


@only(TRT_8)
def _memory_v1(library: Library, engine: Any) -> Any:  # noqa: ARG001
    return engine.device_memory_size


def builds_for_other_gpus(library: Library) -> bool:
    """Tell whether the builder needs no GPU, and builds for the generations that it is told."""
    return library.generation == RTX


def set_compute_capabilities(library: Library, config: Any, names: tuple[str, ...]) -> None:
    """Build for these GPU generations; for none named, for the GPU at hand."""
    if names:
        _set_compute_capabilities(library, config, names)


@only(RTX)
def _set_compute_capabilities(library: Library, config: Any, names: tuple[str, ...]) -> None:
    config.num_compute_capabilities = len(names)
    for index, name in enumerate(names):
        config.set_compute_capability(CAPABILITIES.of(library, name), index)


def set_tiling(library: Library, config: Any, level: str, l2_limit_bytes: int | None) -> None:
    """Set how far tilings are searched and how much of the L2 cache they may use."""
    if level != "none" or l2_limit_bytes is not None or library.generation in SINCE_10:
        _set_tiling_level(library, config, level, l2_limit_bytes)


@only(TRT_10, TRT_11, RTX)
def _set_tiling_level(library: Library, config: Any, level: str, l2_limit_bytes: int | None) -> None:
    config.tiling_optimization_level = TILING.of(library, level)
    if l2_limit_bytes is not None:
        config.l2_limit_for_tiling = l2_limit_bytes


def tiling_facts(library: Library, config: Any) -> dict[str, Any]:
    """Return the tiling settings in force, where the library has them."""
    return _tiling_facts(library, config) if library.generation in SINCE_10 else {}


@only(TRT_10, TRT_11, RTX)
def _tiling_facts(library: Library, config: Any) -> dict[str, Any]:
    return {
        "tiling_optimization_level": TILING.words(library)[config.tiling_optimization_level],
        "l2_limit_for_tiling": int(config.l2_limit_for_tiling),
    }
