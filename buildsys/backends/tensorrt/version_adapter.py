"""The differences between TensorRT 8.6, 10, 11 and TensorRT-RTX.

All of them are in this module. A branch on ``library.generation`` may use names that only those
generations have, and so may a module with ``ONLY``; everything else in the package uses what all
four have. tests/unit/backends/test_trt_conformance.py compares both with lists of the real
libraries.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from buildsys.backends.interface import BuildRequest, Options, UnsupportedNode
from buildsys.backends.tensorrt.library import (
    RTX,
    SINCE_10,
    TRT_8,
    TRT_10,
    UNTIL_10,
    TensorRTLibrary,
    log_of,
    value_of,
)
from buildsys.backends.tensorrt.trtexec import RTX_PROGRAM, Program
from buildsys.errors import StageError
from buildsys.onnx_graphs.graph_reader import Weight
from buildsys.onnx_graphs.tensors import Array
from buildsys.system.files import replace_file


def create_network(library: TensorRTLibrary, builder: Any, *, strong: bool) -> Any:
    """Create a new network with explicit batch; ``strong`` typing is optional."""
    if library.generation == TRT_8:
        return builder.create_network(
            1 << int(library.trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH)
        )
    if library.generation == TRT_10 and strong:  # later ones are always strongly typed
        return builder.create_network(
            1 << int(library.trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        )
    return builder.create_network(0)


def set_layer_precision(library: TensorRTLibrary, layer: Any, dtype: Any) -> None:
    """Let a layer compute and return its outputs in a type."""
    if library.generation in UNTIL_10:  # others refuse layer_precisions
        layer.precision = dtype
        for index in range(layer.num_outputs):
            layer.set_output_type(index, dtype)


def profile_values(
    library: TensorRTLibrary, engine: Any, name: str, profile: int
) -> list[tuple[int, ...]] | None:
    """Return an input's values in a profile; None unless they decide shapes."""
    if not engine.is_shape_inference_io(name):
        return None
    if library.generation in SINCE_10:
        values = engine.get_tensor_profile_values(profile, name)
    else:
        values = engine.get_profile_shape_input(profile, name)
    return [tuple(point) for point in values] or None


@contextmanager
def runtime_cache(library: TensorRTLibrary, engine: Any, file: Path | None) -> Iterator[Any]:
    """Yield context settings to keep compiled kernels in ``file``, or None."""
    if file is None or library.generation != RTX:
        yield None
        return
    runtime_config = engine.create_runtime_config()
    kernels = runtime_config.create_runtime_cache()
    if file.is_file() and not kernels.deserialize(file.read_bytes()):  # another version's
        kernels = runtime_config.create_runtime_cache()
    runtime_config.set_runtime_cache(kernels)
    yield runtime_config
    replace_file(file, bytes(kernels.serialize()))


def find_creator(library: TensorRTLibrary, name: str, version: str, namespace: str) -> Any:
    """Find a registered plugin creator or None."""
    registry = library.trt.get_plugin_registry()
    if library.generation == TRT_8:
        return registry.get_plugin_creator(name, version, namespace)
    return registry.get_creator(name, version, namespace)


def creators(library: TensorRTLibrary) -> list[Any]:
    """List all registered plugin creators."""
    registry = library.trt.get_plugin_registry()
    if library.generation == TRT_8:
        return list(registry.plugin_creator_list)
    return list(registry.all_creators)


def creator_name(creator: Any) -> str:
    """Return namespace, name and version of a plugin creator."""
    return f"{creator.plugin_namespace}::{creator.name} {creator.plugin_version}"


@cache
def register_bundled_plugins(library: TensorRTLibrary) -> None:
    """Register TensorRT's own plugins for its parser and engines, once."""
    if library.has("bundled plugins"):
        library.trt.init_libnvinfer_plugins(log_of(library).logger, "")


def report_progress(library: TensorRTLibrary, config: Any, request: BuildRequest) -> Any:
    """Let a builder report its progress; keep the result until the build ends.

    TensorRT 8.6 has no monitors.
    """
    if library.generation == TRT_8:
        return None
    steps_of: dict[str, int] = {}

    class Monitor(library.trt.IProgressMonitor):  # type: ignore[misc,name-defined]
        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            steps_of[phase_name] = num_steps
            with suppress(OSError):  # nothing may be raised into C++
                request.progress(phase_name)

        def phase_finish(self, phase_name: str) -> None:
            steps_of.pop(phase_name, None)

        def step_complete(self, phase_name: str, step: int) -> bool:
            """Report a step; False would cancel the build."""
            with suppress(OSError):
                request.count(step + 1, steps_of.get(phase_name, 0), f"steps of {phase_name}")
            return True

    monitor = Monitor()
    config.progress_monitor = monitor
    return monitor


def set_weights(
    library: TensorRTLibrary,
    refitter: Any,
    onnx: Path,
    weights: Mapping[str, Weight],
    changed: Collection[str],
) -> list[Array]:
    """Give a refitter the weights of an ONNX file; return arrays to keep until it is done.

    TensorRT 8.6 has no parser for it: its own parser named weights like the initializers that it
    used without a change, so those are given by name.
    """
    log = log_of(library)
    if library.generation in SINCE_10:
        parser_refitter = library.trt.OnnxParserRefitter(refitter, log.logger)
        if not parser_refitter.refit_from_file(str(onnx)):
            count = parser_refitter.num_errors
            reasons = [parser_refitter.get_error(number).desc() for number in range(count)]
            reason = "; ".join(reasons) or log.messages.error_text("without a reason")
            raise StageError(f"the parser cannot refit the engine: {reason}")
        return []
    if other := sorted(name for name in changed if not weights[name].dtype):
        raise StageError(f"{other[0]} has changed and is no weight of float32 or float16")
    arrays = []
    for name in refitter.get_all_weights():
        if name in weights and weights[name].dtype:
            arrays.append(weights[name].array())
            if not refitter.set_named_weights(name, library.trt.Weights(arrays[-1])):
                reason = log.messages.error_text("without a reason")
                raise StageError(f"TensorRT refuses the weights {name}: {reason}")
    return arrays


def serialize_refitted(library: TensorRTLibrary, engine: Any) -> Any:
    """Return an engine as bytes that can be refitted again."""
    if library.generation in SINCE_10:
        serialization_config = engine.create_serialization_config()
        include_refit = getattr(library.trt.SerializationFlag, "INCLUDE_REFIT", None)
        if include_refit is not None:  # before 10.14, without a flag
            serialization_config.set_flag(include_refit)
        return engine.serialize_with_config(serialization_config)
    return engine.serialize()


def refused_node(library: TensorRTLibrary, error: Any) -> UnsupportedNode:
    """Read the node of a parser's error, with the whole text."""
    index = error.node() if error.node() >= 0 else None
    if library.generation == TRT_8:
        return UnsupportedNode(index, "", "", error.desc())
    functions = tuple(error.local_function_stack())
    name, operator = error.node_name(), error.node_operator()
    return UnsupportedNode(index, name, operator, error.desc(), functions)


def device_memory_bytes(library: TensorRTLibrary, engine: Any) -> int:
    """Return an execution context's memory in addition to the weights."""
    if library.generation in SINCE_10:
        return int(engine.device_memory_size_v2)
    return int(engine.device_memory_size)


def set_fields(library: TensorRTLibrary, config: Any, options: Options) -> None:
    """Set the fields of an engine unknown to some generations."""
    if library.generation == TRT_8:  # the default of later ones
        config.set_preview_feature(library.trt.PreviewFeature.PROFILE_SHARING_0806, True)
    if library.generation in SINCE_10:
        level, limit_bytes = options["tiling_optimization_level"], options["l2_limit_for_tiling"]
        config.tiling_optimization_level = value_of(library, "TilingOptimizationLevel", level)
        if limit_bytes is not None:
            config.l2_limit_for_tiling = limit_bytes
    if library.generation == RTX and options.get("compute_capabilities"):
        capabilities = tuple(dict.fromkeys(options["compute_capabilities"]))
        config.num_compute_capabilities = len(capabilities)
        for index, name in enumerate(capabilities):
            capability = value_of(library, "ComputeCapability", name)
            config.set_compute_capability(capability, index)
    if library.generation != RTX and options.get("hardware_compatibility", "none") != "none":
        level = options["hardware_compatibility"]
        config.hardware_compatibility_level = value_of(library, "HardwareCompatibilityLevel", level)


def program_of(library: TensorRTLibrary) -> Program:
    """Name the program that builds engines; networks of TensorRT 11 are always strongly typed."""
    if library.generation == RTX:
        return RTX_PROGRAM
    return Program(strong="--stronglyTyped" if library.generation == TRT_10 else "")


def settings_in_force(library: TensorRTLibrary, config: Any) -> dict[str, Any]:
    """Read the levels and counts of a configuration."""
    counts = ["builder_optimization_level", "avg_timing_iterations", "max_aux_streams"]
    levels = {"profiling_verbosity": "profiling_verbosity"}
    if library.generation in SINCE_10:
        counts.append("l2_limit_for_tiling")
        levels["tiling_optimization_level"] = "tiling_optimization_level"
    if library.generation != RTX:  # logs an error if the level is merely read
        levels["hardware_compatibility"] = "hardware_compatibility_level"
    return {
        **{name: int(getattr(config, name)) for name in counts},
        **{field: getattr(config, name).name.lower() for field, name in levels.items()},
    }
