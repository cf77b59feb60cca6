"""Build an engine from an ONNX file or a user's network with TensorRT's builder.

TensorRT does not keep logger, builder and network alive, so references to them are kept for as
long as anything made from them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from buildsys.backends.interface import BuildRequest, Figures, precision_problem
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.builder_config import configure, is_strong, settings_in_force
from buildsys.backends.tensorrt.calibrator import attach_calibrator
from buildsys.backends.tensorrt.definition import define_network
from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.log import Messages, build_failure, log_of
from buildsys.backends.tensorrt.network_edits import (
    call_hook,
    computed_layers,
    fp32_layers,
    io_facts,
    io_tensors,
    set_formats,
    set_layer_precisions,
)
from buildsys.backends.tensorrt.parse import Parsed, check_parsed, network_facts, new_builder, parse
from buildsys.backends.tensorrt.plugins.bundled import bundled_plugins
from buildsys.backends.tensorrt.plugins.load import load_plugins
from buildsys.backends.tensorrt.profiles import Profile, check_against_graph, resolve_profiles
from buildsys.backends.tensorrt.timing_cache import keep_timing_cache, use_timing_cache
from buildsys.errors import StageError


def build_engine(library: Library, request: BuildRequest, defined: Parsed | None = None) -> Figures:
    """Write the engine; return its settings, profiles, tensors and layers.

    ``defined`` is the network, if the user's function has been called. The layers and the share of
    each type are those of the parsed network, before TensorRT fuses it.
    Raises: GraphRefusedError: all nodes that the parser refuses. StageError: the build failed.
    """
    options, phases = request.options, [("", time.perf_counter())]
    profiles = resolve_profiles(request.inputs, request.dims, options["profiles"])
    with log_of(library).collected() as messages:
        plugins = load_plugins(library, request.operators)
        bundled, warnings = bundled_plugins(library, request)
        plugins += bundled
        builder = defined.builder if defined else new_builder(library)
        phases.append(("start", time.perf_counter()))  # mostly TensorRT loading its kernels
        if request.definition:
            parsed = defined or define_network(library, builder, request, messages)
        else:
            parsed = parse(library, builder, request.onnx, strong=is_strong(options))
            check_parsed(library, request, parsed, messages)
        phases.append(("define" if request.definition else "parse", time.perf_counter()))
        network, config = parsed.network, builder.create_builder_config()
        if request.fp32_nodes:  # of a weakly typed engine; the types of a graph tell the others
            layers = fp32_layers(computed_layers(library, network), request.fp32_nodes)
            options = {**options, "layer_precisions": layers}
        configure(library, builder, config, options, messages)
        set_formats(library, network, options["io"], strong=is_strong(options))
        if options.get("layer_precisions"):
            set_layer_precisions(library, network, options["layer_precisions"])
        if messages.errors:
            reason = messages.error_text("")
            raise StageError(
                f"{library.title} refuses a field of the engine: {reason}",
                "correct the field, or remove it",
            )
        if options["network"]:  # the hook has the last word
            call_hook(options["network"], request.project, network, config, messages)
        tensors, _ = io_tensors(network)
        shapes = {tensor.name: tuple(tensor.shape) for tensor in tensors}
        deciding = {tensor.name for tensor in tensors if tensor.is_shape_tensor}
        check_against_graph(profiles, shapes, deciding)
        add_profiles(library, builder, config, profiles)
        settings = settings_in_force(library, builder, config, options)
        phases.append(("configure", time.perf_counter()))
        cache_facts = _run_builder(library, request, parsed, config, messages)
        phases.append(("build", time.perf_counter()))
        facts = network_facts(library, network)
        facts |= io_facts(library, network, options["io"], request.inputs)
    if is_strong(options) and options["precision_share"]:  # 0 accepts any precision
        # the engine of a strongly typed network has the same types
        shares = facts["precision_shares"]["layers"]
        problem = precision_problem(options["precision"], shares, 0.0)
        if problem:
            request.engine.unlink(missing_ok=True)
            text = problem.replace("the engine", f"model {request.model}: the engine", 1)
            hint = "its graph has other types: see the result of the stage convert"
            if request.definition:
                name = request.definition.function
                hint = f"cast its tensors in {name}, which gets the precision as an argument"
            raise StageError(text, hint)
    return {
        "settings": settings,
        "profiles": profiles,
        **facts,
        **({"plugins": plugins} if plugins else {}),
        **cache_facts,
        "phases": {phase: round(end - begin, 3) for (_, begin), (phase, end) in pairwise(phases)},
        "messages": list(dict.fromkeys([*warnings, *messages.warnings])),
    }


def add_profiles(library: Library, builder: Any, config: Any, profiles: Sequence[Profile]) -> None:
    """Add the optimization profiles.

    Raises: StageError: TensorRT refused one. It says so in two return values and nowhere else.
    """
    for number, ranges in enumerate(profiles):
        profile = builder.create_optimization_profile()
        for name, span in ranges.items():
            profile.set_shape(name, span["min"], span["opt"], span["max"])
            if "min_values" in span:
                values = (span[f"{point}_values"] for point in ("min", "opt", "max"))
                profile.set_shape_input(name, *values)
        if not profile or config.add_optimization_profile(profile) < 0:
            raise StageError(
                f"{library.title} refuses the optimization profile {number}: {ranges}",
                "correct the ranges of dims or of the engine's profiles",
            )


def _run_builder(
    library: Library, request: BuildRequest, parsed: Parsed, config: Any, messages: Messages
) -> Figures:
    """Run the builder; write the engine and its timing cache."""
    builder, network = parsed.builder, parsed.network
    calibrator = None
    if request.calibration and library.has("calibrators"):
        calibrator = attach_calibrator(library, builder, config, network, request.calibration)
    use_timing_cache(library, config, request.timing_cache, messages)
    with version_adapter.progress_reported(library, config, request):
        engine = builder.build_serialized_network(network, config)
    if engine is None or messages.errors:  # TensorRT may log an error and still return an engine
        failure = build_failure(messages, request.options, library.title)
        raise StageError(f"model {request.model}: {failure.problem}", failure.hint)
    request.engine.write_bytes(engine)
    cache_facts = keep_timing_cache(library, config, request.timing_cache)
    del calibrator  # it had to outlive the build
    return cache_facts
