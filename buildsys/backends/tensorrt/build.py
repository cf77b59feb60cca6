"""Build an engine from an ONNX file with TensorRT's builder.

References to the logger, the builder and the network are kept for as long as anything made from them lives, since
the library does not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from buildsys.backends.interface import BuildRequest, Figures
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.builder_config import configure, is_strong, settings_in_force
from buildsys.backends.tensorrt.calibrator import attach_calibrator
from buildsys.backends.tensorrt.error_messages import build_failure
from buildsys.backends.tensorrt.inspector import shortfall
from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.log import Messages, log_of
from buildsys.backends.tensorrt.network_edits import (
    call_hook,
    io_facts,
    set_formats,
    set_layer_precisions,
)
from buildsys.backends.tensorrt.parse import Parsed, check_parsed, network_facts, new_builder, parse
from buildsys.backends.tensorrt.plugins.load import load_plugins
from buildsys.backends.tensorrt.profiles import Profile, check_against_graph, resolve_profiles
from buildsys.backends.tensorrt.timing_cache import keep_timing_cache, use_timing_cache
from buildsys.errors import StageError


@dataclass
class _Phases:
    """How long each part of a build takes, in seconds."""

    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def done(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = round(now - self._last, 3)
        self._last = now


def build(library: Library, request: BuildRequest) -> Figures:
    """Write the engine; return its settings, profiles, tensors and layers.

    The layers and the share of each type are those of the parsed network, before TensorRT fuses it.
    Raises: GraphRefusedError: all nodes that the parser refuses. StageError: why the builder gave up.
    """
    options, phases = request.options, _Phases()
    profiles = resolve_profiles(request.inputs, request.dims, options["profiles"])
    with log_of(library).collected() as messages:
        plugins = load_plugins(library, request.operators)
        builder = new_builder(library)
        phases.done("start")  # mostly TensorRT loading its kernels
        parsed = parse(library, builder, request.onnx, strong=is_strong(options))
        check_parsed(library, request, parsed, messages)
        phases.done("parse")
        config = parsed.builder.create_builder_config()
        _configure(library, request, parsed, config, messages)
        _add_profiles(library, parsed, config, profiles)
        settings = settings_in_force(library, parsed.builder, config, options)
        phases.done("configure")
        kept = _build(library, request, parsed, config, messages)
        phases.done("build")
        facts = {
            **network_facts(library, parsed.network),
            **io_facts(library, parsed.network, options["io"]),
        }
    _check_typed(request, facts["precision_shares"]["layers"])
    named = {"plugins": plugins} if plugins else {}
    warnings = list(dict.fromkeys(messages.warnings))
    times = {"phases": phases.seconds}
    return {
        "settings": settings,
        "profiles": profiles,
        **facts,
        **named,
        **kept,
        **times,
        "messages": warnings,
    }


def _configure(
    library: Library, request: BuildRequest, parsed: Parsed, config: Any, messages: Messages
) -> None:
    """Bring the engine's fields onto the network and the configuration; the hook has the last word."""
    options, network = request.options, parsed.network
    configure(library, parsed.builder, config, options, messages)
    set_formats(library, network, options["io"], strong=is_strong(options))
    if options.get("layer_precisions"):
        set_layer_precisions(library, network, options["layer_precisions"])
    if messages.errors:
        raise StageError(f"{library.title} refuses a field of the engine: {messages.sentence('')}")
    if options["network"]:
        call_hook(options["network"], request.project, network, config, messages)


def _add_profiles(
    library: Library, parsed: Parsed, config: Any, profiles: Sequence[Profile]
) -> None:
    network = parsed.network
    tensors = [network.get_input(index) for index in range(network.num_inputs)]
    shapes = {tensor.name: tuple(tensor.shape) for tensor in tensors}
    check_against_graph(
        profiles, shapes, {tensor.name for tensor in tensors if tensor.is_shape_tensor}
    )
    add_profiles(library, parsed.builder, config, profiles)


def add_profiles(library: Library, builder: Any, config: Any, profiles: Sequence[Profile]) -> None:
    """Add the optimization profiles.

    Raises: StageError: TensorRT refused one. It says so in two return values and nowhere else.
    """
    for number, ranges in enumerate(profiles):
        profile = builder.create_optimization_profile()
        for name, span in ranges.items():
            profile.set_shape(name, span["min"], span["opt"], span["max"])
            if "min_values" in span:
                profile.set_shape_input(
                    name, span["min_values"], span["opt_values"], span["max_values"]
                )
        if not profile or config.add_optimization_profile(profile) < 0:
            raise StageError(f"{library.title} refuses the optimization profile {number}: {ranges}")


def _build(
    library: Library, request: BuildRequest, parsed: Parsed, config: Any, messages: Messages
) -> Figures:
    """Run the builder and write the engine; return what is known of the timing cache."""
    monitor = version_adapter.monitor_progress(library, config, request.progress)
    given = request.calibration if version_adapter.has_calibrators(library) else None
    calibrator = (
        attach_calibrator(library, parsed.builder, config, parsed.network, given) if given else None
    )
    use_timing_cache(library, config, request.timing_cache, messages)
    engine = parsed.builder.build_serialized_network(parsed.network, config)
    if engine is None or messages.errors:  # an error is fatal even where TensorRT goes on without
        failure = build_failure(messages, request.options, library.title)
        raise StageError(f"model {request.model}: {failure.problem}", failure.hint)
    request.engine.write_bytes(engine)
    kept = keep_timing_cache(library, config, request.timing_cache)
    del monitor, calibrator  # these had to outlive the build
    return kept


def _check_typed(request: BuildRequest, shares: dict[str, float]) -> None:
    """Check that a strongly typed network has the precision that was asked for: its engine has the same types."""
    if (
        is_strong(request.options) and request.options["precision_share"]
    ):  # 0: the user wants it anyway
        problem = shortfall(request.options["precision"], shares, 0.0)
        if problem:
            request.engine.unlink(missing_ok=True)
            text = problem.replace("the engine", f"model {request.model}: the engine", 1)
            raise StageError(text, "its graph has other types: look at the stage convert")
