"""The differences between TensorRT 8.6, 10, 11 and TensorRT-RTX.

All of them are in this module. A function decorated with ``only``, or a branch on
``library.generation``, may use names that only those generations have; everything else in the
package uses what all four have. tests/unit/backends/test_trt_conformance.py compares both with
lists of the real libraries.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from buildsys.backends.tensorrt.enum_tables import CAPABILITIES, HARDWARE, TILING, join_or
from buildsys.backends.tensorrt.library import (
    RTX,
    SINCE_10,
    TRT_8,
    TRT_10,
    TRT_11,
    UNTIL_10,
    Library,
)
from buildsys.errors import StageError
from buildsys.system.files import replace_file

_PARSER_LIBRARY = "libtensorrt_rtx.so"
_SECONDS_BETWEEN_REPORTS = 0.2
Call = TypeVar("Call", bound=Callable[..., Any])


def only(*generations: str) -> Callable[[Call], Call]:
    """Restrict a function to some generations; its first parameter is the library."""

    def mark(function: Call) -> Call:
        @functools.wraps(function)
        def call(library: Library, *arguments: Any, **named: Any) -> Any:
            if library.generation not in generations:
                what = function.__name__.replace("_", " ")
                raise StageError(f"{library.release} has no {what}", f"{join_or(generations)} has")
            return function(library, *arguments, **named)

        return call  # type: ignore[return-value]

    return mark


def create_network(library: Library, builder: Any, *, strong: bool) -> Any:
    """Return a new network with explicit batch; ``strong`` typing is optional."""
    if library.generation == TRT_8:
        return builder.create_network(
            1 << int(library.trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH)
        )
    if library.generation == TRT_10 and strong:  # later ones are always strongly typed
        return builder.create_network(
            1 << int(library.trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        )
    return builder.create_network(0)


def share_profiles(library: Library, config: Any) -> None:
    """Share optimization profiles between contexts; the default since TensorRT 10."""
    if library.generation == TRT_8:
        config.set_preview_feature(library.trt.PreviewFeature.PROFILE_SHARING_0806, True)


@only(TRT_8, TRT_10)
def set_layer_precision(library: Library, layer: Any, dtype: Any) -> None:  # noqa: ARG001
    """Let a layer compute and return its outputs in a type."""
    layer.precision = dtype
    for index in range(layer.num_outputs):
        layer.set_output_type(index, dtype)


def profile_values(
    library: Library, engine: Any, name: str, profile: int
) -> list[tuple[int, ...]] | None:
    """Return an input's values in a profile; None unless they decide shapes."""
    if not engine.is_shape_inference_io(name):
        return None
    if library.generation in SINCE_10:
        values = engine.get_tensor_profile_values(profile, name)
    else:
        values = engine.get_profile_shape_input(profile, name)
    return [tuple(each) for each in values] or None


def has_calibrators(library: Library) -> bool:
    """Return True if the builder can calibrate int8 ranges."""
    return library.generation in UNTIL_10


@only(TRT_8, TRT_10)
def set_calibrator(
    library: Library, config: Any, calibrator: Any, profile: Any  # noqa: ARG001
) -> None:  # fmt: skip
    """Calibrate int8 ranges on shapes of one profile."""
    config.int8_calibrator = calibrator
    config.set_calibration_profile(profile)


@only(TRT_8, TRT_10)
def calibrator_base(library: Library, algorithm: str) -> Any:
    """Return the base class of a calibrator."""
    trt = library.trt
    return trt.IInt8MinMaxCalibrator if algorithm == "minmax" else trt.IInt8EntropyCalibrator2


@only(TRT_8, TRT_10, TRT_11)
def set_hardware_compatibility(library: Library, config: Any, level: str) -> None:
    """Set the engine's compatibility with other GPUs."""
    config.hardware_compatibility_level = HARDWARE.of(library, level)


def hardware_facts(library: Library, config: Any) -> dict[str, Any]:
    """Return the hardware compatibility in force."""
    if library.generation == RTX:  # logs an error if the level is merely read
        return {}
    level = HARDWARE.words(library)[config.hardware_compatibility_level]
    return {"hardware_compatibility": level}


def uses_timing_caches(library: Library) -> bool:
    """Return True if a timing cache has any effect."""
    return library.generation != RTX


@contextmanager
def runtime_cache(library: Library, engine: Any, file: Path | None) -> Iterator[Any]:
    """Yield context settings to keep compiled kernels in ``file``, or None."""
    if file is None or library.generation != RTX:
        yield None
        return
    runtime_config = engine.create_runtime_config()
    kernels = runtime_config.create_runtime_cache()
    if file.is_file() and not kernels.deserialize(file.read_bytes()):  # of another version
        kernels = runtime_config.create_runtime_cache()
    runtime_config.set_runtime_cache(kernels)
    yield runtime_config
    replace_file(file, bytes(kernels.serialize()))


def check_plugin_library(library: Library) -> None:
    """Check for the library of TensorRT-RTX's parser, or it aborts.

    Raises: StageError: it is not found under the parser's name for it, which no wheel contains.
    """
    if library.generation != RTX:
        return
    try:
        ctypes.CDLL(_PARSER_LIBRARY)
    except OSError as error:
        raise StageError(
            f"TensorRT-RTX needs {_PARSER_LIBRARY} for graphs with plugins, and it is missing",
            "add a folder with a link of this name to TensorRT-RTX's library to LD_LIBRARY_PATH",
        ) from error


def check_python_plugins(library: Library, file: str) -> None:
    """Check the library's support of plugins in Python.

    Raises: StageError: it does not.
    """
    if library.generation not in SINCE_10:
        raise StageError(
            f"{file}: {library.release} takes no plugins written in Python"
            f" ({join_or(SINCE_10)} can)",
            "build the plugin as a shared library",
        )


def find_creator(library: Library, name: str, version: str, namespace: str) -> Any:
    """Return a registered plugin creator or None."""
    registry = library.trt.get_plugin_registry()
    if library.generation in SINCE_10:
        return registry.get_creator(name, version, namespace)
    return registry.get_plugin_creator(name, version, namespace)


def all_creators(library: Library) -> list[Any]:
    """Return all registered plugin creators."""
    registry = library.trt.get_plugin_registry()
    if library.generation in SINCE_10:
        return list(registry.all_creators)
    return list(registry.plugin_creator_list)


def register_bundled_plugins(library: Library, logger: Any) -> None:
    """Register TensorRT's own plugins for its parser and engines."""
    if library.generation != RTX:
        library.trt.init_libnvinfer_plugins(logger, "")


def monitor_progress(library: Library, config: Any, report: Callable[[str], None]) -> Any:
    """Report the phases of a build; keep the result until it ends."""
    if library.generation == TRT_8:
        return None
    trt, last_report = library.trt, 0.0
    steps_of: dict[str, int] = {}

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc,name-defined]
        def phase_start(
            self, phase_name: str, parent_phase: str | None, num_steps: int  # noqa: ARG002
        ) -> None:  # fmt: skip
            steps_of[phase_name] = num_steps

        def phase_finish(self, phase_name: str) -> None:
            steps_of.pop(phase_name, None)

        def step_complete(self, phase_name: str, step: int) -> bool:
            """Report a step. False, which cancels the build, if nobody listens any more."""
            nonlocal last_report
            now = time.monotonic()
            if now - last_report < _SECONDS_BETWEEN_REPORTS:
                return True
            last_report = now
            try:
                report(f"{phase_name}: {step + 1} of {steps_of.get(phase_name, 0)}")
            except OSError:  # the orchestrator's pipe is closed; nothing may be raised into C++
                return False
            return True

    monitor = Monitor()  # the configuration does not keep it alive
    config.progress_monitor = monitor
    return monitor


@dataclass(frozen=True)
class ParserErrorFacts:
    """A parser's error."""

    text: str
    index: int | None
    name: str = ""
    operator: str = ""
    functions: tuple[str, ...] = ()


def names_all_nodes(library: Library) -> bool:
    """Return True if a parser reports all refused nodes by name."""
    return library.generation in SINCE_10


def error_facts(library: Library, error: Any) -> ParserErrorFacts:
    """Return the facts of a parser's error."""
    index = error.node() if error.node() >= 0 else None
    if library.generation == TRT_8:
        return ParserErrorFacts(error.desc(), index)
    functions = tuple(error.local_function_stack())
    name, operator = error.node_name(), error.node_operator()
    return ParserErrorFacts(error.desc(), index, name, operator, functions)


def device_memory_bytes(library: Library, engine: Any) -> int:
    """Return an execution context's memory in addition to the weights."""
    if library.generation in SINCE_10:
        return int(engine.device_memory_size_v2)
    return int(engine.device_memory_size)


def builds_for_other_gpus(library: Library) -> bool:
    """Return True if the builder works without a GPU."""
    return library.generation == RTX


@only(RTX)
def set_compute_capabilities(library: Library, config: Any, names: tuple[str, ...]) -> None:
    """Build for these GPU generations."""
    config.num_compute_capabilities = len(names)
    for index, name in enumerate(names):
        config.set_compute_capability(CAPABILITIES.of(library, name), index)


@only(TRT_10, TRT_11, RTX)
def set_tiling(library: Library, config: Any, level: str, l2_limit_bytes: int | None) -> None:
    """Set the tiling search's effort and limit of L2 cache."""
    config.tiling_optimization_level = TILING.of(library, level)
    if l2_limit_bytes is not None:
        config.l2_limit_for_tiling = l2_limit_bytes


def has_tiling(library: Library) -> bool:
    """Return True if the builder searches tilings."""
    return library.generation in SINCE_10


def tiling_facts(library: Library, config: Any) -> dict[str, Any]:
    """Return the tiling settings in force."""
    if library.generation == TRT_8:
        return {}
    return {
        "tiling_optimization_level": TILING.words(library)[config.tiling_optimization_level],
        "l2_limit_for_tiling": int(config.l2_limit_for_tiling),
    }
