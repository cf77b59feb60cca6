"""All that differs between TensorRT 8.6, 10, 11 and TensorRT-RTX.

A function decorated with ``only`` may touch what these generations have, and refuses to run with another; any other
function, here and in the rest of the package, touches what all four have. tests/unit/backends holds both against
lists of the real libraries.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from buildsys.backends.tensorrt.enum_tables import CAPABILITIES, HARDWARE, TILING, either
from buildsys.backends.tensorrt.library import (
    RTX,
    SINCE_10,
    TRT_8,
    TRT_10,
    TRT_11,
    UNTIL_10,
    Library,
)
from buildsys.backends.tensorrt.log import Phases
from buildsys.errors import StageError
from buildsys.system.files import replace_file

_PARSERS_LIBRARY = "libtensorrt_rtx.so"
Call = TypeVar("Call", bound=Callable[..., Any])


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


def create_network(library: Library, builder: Any, *, strong: bool) -> Any:
    """Return a new network whose batch is a dimension like any other, typed by its graph where it is ``strong``."""
    if library.generation == TRT_8:
        return builder.create_network(_explicit_batch(library))
    return builder.create_network(
        _strongly_typed(library) if strong and library.generation == TRT_10 else 0
    )


@only(TRT_8)
def _explicit_batch(library: Library) -> int:
    return 1 << int(library.trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH)


@only(TRT_10)
def _strongly_typed(library: Library) -> int:  # TensorRT 11 and TensorRT-RTX know nothing else
    return 1 << int(library.trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)


def share_profiles(library: Library, config: Any) -> None:
    """Let several execution contexts have one optimization profile, as all generations but 8.6 do anyway."""
    if library.generation == TRT_8:
        _share_profiles(library, config)


@only(TRT_8)
def _share_profiles(library: Library, config: Any) -> None:
    config.set_preview_feature(library.trt.PreviewFeature.PROFILE_SHARING_0806, True)


def set_layer_precision(library: Library, layer: Any, dtype: Any) -> None:
    """Ask for a layer to compute in a type, and to give its outputs in it."""
    _set_layer_precision(library, layer, dtype)


@only(TRT_8, TRT_10)
def _set_layer_precision(library: Library, layer: Any, dtype: Any) -> None:  # noqa: ARG001
    layer.precision = dtype
    for index in range(layer.num_outputs):
        layer.set_output_type(index, dtype)


def profile_values(
    library: Library, engine: Any, name: str, profile: int
) -> list[tuple[int, ...]] | None:
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
    replace_file(file, bytes(kernels.serialize()))


def check_plugin_machinery(library: Library) -> None:
    """Find out in time what a parser aborts the process for: it opens its library by a name that no wheel has.

    Raises: StageError: the library is not found by that name.
    """
    if library.generation != RTX:
        return
    try:
        ctypes.CDLL(_PARSERS_LIBRARY)
    except OSError as error:
        problem = (
            f"TensorRT-RTX looks for {_PARSERS_LIBRARY} when a graph has plugins, and there is none"
        )
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
        problem = (
            f"{file}: {library.release} takes no plugins written in Python ({either(SINCE_10)} can)"
        )
        raise StageError(problem, "build the plugin as a shared library")


def monitor_progress(library: Library, config: Any, report: Callable[[str], None]) -> Any:
    """Report the phases of a build, where TensorRT tells them; return what must live until its end."""
    return (
        _progress_monitor(library, config, Phases(report))
        if library.generation in SINCE_10
        else None
    )


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
    return int(
        _memory_v2(library, engine)
        if library.generation in SINCE_10
        else _memory_v1(library, engine)
    )


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
def _set_tiling_level(
    library: Library, config: Any, level: str, l2_limit_bytes: int | None
) -> None:
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
