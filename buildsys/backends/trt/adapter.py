"""All that differs between TensorRT 8.6, 10, 11 and TensorRT-RTX.

A function decorated with ``only`` may touch what these generations have, and refuses to run with another; any other
function, here and in the rest of the package, touches what all four have. tests/unit/backends holds both against
lists of the real libraries.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    {"workspace": Member("WORKSPACE"), "tactic_shared_memory": Member("TACTIC_SHARED_MEMORY", SINCE_10)},
)


def create_network(library: Library, builder: Any) -> Any:
    """Return a new network whose batch is a dimension like any other."""
    if library.generation in UNTIL_10:
        return builder.create_network(_explicit_batch(library))
    return builder.create_network(0)


@only(TRT_8, TRT_10)
def _explicit_batch(library: Library) -> int:
    return 1 << int(library.trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH)


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


def check_python_plugins(library: Library, file: str) -> None:
    """Raise StageError where the library takes no plugins that are written in Python."""
    if library.generation not in SINCE_10:
        problem = f"{file}: {library.release} takes no plugins written in Python, {either(SINCE_10)} does"
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
