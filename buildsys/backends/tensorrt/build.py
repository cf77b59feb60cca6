"""Building an engine from its fields, or refitting an earlier one.

An engine is refitted only if its graph has the same skeleton and every changed initializer can be
replaced in it by name. Everything else is built, with the reason in the result.

Source: TensorRT developer guide, "Refitting an Engine".
"""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from buildsys.backends.interface import BuildRequest, EarlierBuild, Figures, Options
from buildsys.backends.layer_figures import precision_problem
from buildsys.backends.tensorrt import network_edits, version_adapter
from buildsys.backends.tensorrt.calibrator import attach_calibrator
from buildsys.backends.tensorrt.engine_tensors import add_profiles, resolve_profiles
from buildsys.backends.tensorrt.library import (
    POOLS,
    Messages,
    TensorRTLibrary,
    find_value,
    is_strong,
    load_failure,
    log_of,
    quantization_of,
    value_of,
)
from buildsys.backends.tensorrt.network import (
    Parsed,
    define_network,
    io_tensors,
    new_builder,
    parse,
)
from buildsys.backends.tensorrt.plugin_loading import bundled_plugins, load_plugins
from buildsys.backends.tensorrt.trtexec import trtexec
from buildsys.errors import StageError
from buildsys.onnx_graphs.graph_reader import WeightFile, read_weights
from buildsys.system.files import replace_file, sha256_of

_FLAG_FIELDS = {  # field of an engine -> flag
    "sparsity": "sparse_weights",
    **{name: name for name in (
        "tf32", "direct_io", "gpu_fallback", "refit", "refit_identical", "refit_individual",
        "strip_plan", "weight_streaming", "version_compatible", "exclude_lean_runtime",
    )},
}  # fmt: skip
_NOT_SETTINGS = (  # fields that other facts or other stages have
    "name", "backend", "toolchain", "required", "tolerance", "needs", "gates", "profiles",
    "runtime_cache",
)  # fmt: skip
# precisions that a builder may use in addition to fp32; fp16 for layers without an int8 kernel
_ALLOWED = {"int8": ("int8", "fp16")}


def precision_flags(options: Options) -> tuple[str, ...]:
    """Return the precision flags of a weakly typed builder."""
    if is_strong(options):
        return ()
    layers = [entry["precision"] for entry in options["layer_precisions"]]
    names = [
        flag
        for precision in (options["precision"], *layers)
        for flag in _ALLOWED.get(precision, (precision,))
    ]
    constraints = [options["precision_constraints"]] if layers else []
    return tuple(dict.fromkeys(name for name in (*names, *constraints) if name != "fp32"))


def configure(
    library: TensorRTLibrary, builder: Any, config: Any, options: Options, messages: Messages
) -> None:
    """Set every field on the builder and its configuration."""
    if options["max_threads"] is not None:
        builder.max_threads = options["max_threads"]
    config.builder_optimization_level = options["builder_optimization_level"]
    config.avg_timing_iterations = options["avg_timing_iterations"]
    config.profiling_verbosity = value_of(
        library, "ProfilingVerbosity", options["profiling_verbosity"]
    )
    if options["max_aux_streams"] is not None:
        config.max_aux_streams = options["max_aux_streams"]
    for field in POOLS:
        if options.get(field) is not None:
            pool = value_of(library, "MemoryPoolType", field)
            config.set_memory_pool_limit(pool, options[field])
    version_adapter.set_fields(library, config, options)
    if options.get("tactic_sources") is not None:
        sources = [value_of(library, "TacticSource", name) for name in options["tactic_sources"]]
        config.set_tactic_sources(sum({1 << int(source) for source in sources}))
    core = options.get("dla_core")
    if core is not None:
        if core >= builder.num_DLA_cores:  # TensorRT would use the GPU
            text = f"dla_core: {core} needs a deep learning accelerator, and this machine has"
            raise StageError(f"{text} {builder.num_DLA_cores}", "remove dla_core")
        config.default_device_type = library.trt.DeviceType.DLA
        config.DLA_core = core
    fields = {flag: bool(options[name]) for name, flag in _FLAG_FIELDS.items() if name in options}
    # tf32 is the only flag that is on by default
    changed = {flag: value for flag, value in fields.items() if value or flag == "tf32"}
    changed |= options["flags"] | dict.fromkeys(precision_flags(options), True)
    ignored = []
    for name, is_on in changed.items():
        flag = value_of(library, "BuilderFlag", name)
        if is_on:
            config.set_flag(flag)
        else:
            config.clear_flag(flag)
        if bool(config.get_flag(flag)) != is_on:
            ignored.append(f"the flag {name} has no effect")
    _check_fields_taken(library, [*messages.errors, *ignored])


def _check_fields_taken(library: TensorRTLibrary, problems: Sequence[str]) -> None:
    if problems:
        reason = "; ".join(dict.fromkeys(problems))
        text = f"{library.title} refuses a field of the engine: {reason}"
        raise StageError(text, "correct the field, or remove it")


def _settings_in_force(
    library: TensorRTLibrary, builder: Any, config: Any, options: Options
) -> Figures:
    """Collect the fields, with TensorRT's defaults and what a network hook has changed."""
    fields = {name: options[name] for name in options if name not in _NOT_SETTINGS}
    quantization = quantization_of(options)
    pools = {name: find_value(library, "MemoryPoolType", name) for name in POOLS}
    sources = int(config.get_tactic_sources())
    return {
        **fields,
        "typing": "strong" if is_strong(options) else "weak",
        **({"quantization": quantization} if quantization else {}),
        "flags": {
            name.lower(): bool(config.get_flag(flag))
            for name, flag in library.trt.BuilderFlag.__members__.items()
        },
        **{
            name: int(config.get_memory_pool_limit(pool))
            for name, pool in pools.items()
            if pool is not None
        },
        "tactic_sources": [
            name.lower()
            for name, source in library.trt.TacticSource.__members__.items()
            if sources >> int(source) & 1
        ],
        "max_threads": int(builder.max_threads),
        **version_adapter.settings_in_force(library, config),
    }


def build_engine(library: TensorRTLibrary, request: BuildRequest) -> Figures:
    """Write the engine; return its settings, profiles, tensors and layers.

    Layers and shares of types describe the parsed network, before TensorRT fuses it.
    """
    options, times = request.options, [time.perf_counter()]
    profiles = resolve_profiles(request.inputs, request.dims, options["profiles"])
    with log_of(library).collected() as messages:
        plugins = load_plugins(library, request.operators)
        plugins += bundled_plugins(library, request)
        builder = new_builder(library)  # mostly TensorRT loading its kernels
        times.append(time.perf_counter())
        make_network = define_network if request.definition else parse
        parsed = make_network(library, builder, request, messages)
        times.append(time.perf_counter())
        network, config = parsed.network, builder.create_builder_config()
        if request.fp32_nodes:  # weakly typed; strongly typed graphs say it by types
            layers = network_edits.fp32_layers(
                network_edits.computed_layers(library, network), request.fp32_nodes
            )
            options = {**options, "layer_precisions": layers}
        configure(library, builder, config, options, messages)
        network_edits.set_formats(library, network, options["io"], strong=is_strong(options))
        if options.get("layer_precisions"):
            network_edits.set_layer_precisions(library, network, options["layer_precisions"])
        _check_fields_taken(library, messages.errors)
        if options["network"]:  # the hook has the last word
            network_edits.call_hook(options["network"], request.project, network, config, messages)
        names = [tensor.name for tensor in io_tensors(network)[0]]
        if others := [name for ranges in profiles for name in ranges if name not in names]:
            text = f"the graph has no input {others[0]}, only {', '.join(names) or 'none'}"
            raise StageError(text, "correct the engine's profiles, or export the graph again")
        add_profiles(library, builder, config, profiles, messages)
        settings = _settings_in_force(library, builder, config, options)
        times.append(time.perf_counter())
        _run_builder(library, request, parsed, config, messages)
        times.append(time.perf_counter())
        facts = network_edits.network_facts(library, network, options["io"], request.inputs)
    # the engine of a strongly typed network has the same types; a share of 0 accepts any precision
    shares = facts["precision_shares"]["layers"] if is_strong(options) else {}
    problem = precision_problem(options["precision"], shares, 0.0)
    if problem and options["precision_share"]:
        request.engine.unlink(missing_ok=True)
        hint = "the graph, or the function that defines the network, has other types"
        raise StageError(f"model {request.model}: {problem}", hint)
    phases = ("start", "parse", "configure", "build")
    command = {} if request.definition else {
        "trtexec": trtexec(
            version_adapter.program_of(library), options, settings["flags"], profiles,
            engine=request.engine.name, plugins=plugins, calibrated=bool(request.calibration),
            timing_cache=request.timing_cache.name if request.timing_cache else "",
        )
    }  # fmt: skip
    return {
        **command,
        "phases": {
            phase: end - begin for phase, (begin, end) in zip(phases, pairwise(times), strict=True)
        },
        "settings": settings,
        "profiles": profiles,
        **facts,
        **({"plugins": plugins} if plugins else {}),
        "messages": list(dict.fromkeys(messages.warnings)),
    }


def _run_builder(
    library: TensorRTLibrary, request: BuildRequest, parsed: Parsed, config: Any, messages: Messages
) -> None:
    """Run the builder; write the engine and its timing cache."""
    builder, network = parsed.builder, parsed.network
    calibrator = None
    if request.calibration and library.has("calibrators"):
        calibrator = attach_calibrator(library, builder, config, network, request.calibration)
    timings = request.timing_cache if library.has("timing caches") else None
    if timings is not None:
        use_timing_cache(library, config, timings, messages)
    monitor = version_adapter.report_progress(library, config, request)
    engine = builder.build_serialized_network(network, config)
    if engine is None or messages.errors:  # TensorRT may log an error and still return an engine
        reason = messages.error_text(f"{library.title} built no engine")
        hint = "if memory is short, increase its workspace, or stop other programs on the GPU"
        raise StageError(f"model {request.model}: {reason}", hint)
    request.engine.write_bytes(engine)
    if timings is not None and (timing_cache := config.get_timing_cache()) is not None:
        content = bytes(timing_cache.serialize())
        # the order of the entries changes between writes
        if not timings.is_file() or len(content) != timings.stat().st_size:
            replace_file(timings, content)
    del calibrator, monitor  # they had to outlive the build


def use_timing_cache(library: TensorRTLibrary, config: Any, file: Path, messages: Messages) -> None:
    """Let a builder use the timings in ``file``, if it exists and can be read."""
    empty_cache = config.create_timing_cache(b"")
    with log_of(library).collected() as log:
        content = file.read_bytes() if file.is_file() else b""
        timing_cache = config.create_timing_cache(content)
    size = 0 if timing_cache is None else len(bytes(timing_cache.serialize()))
    is_reported = timing_cache is None or log.errors or log.warnings
    # TensorRT 8.6 reports its own cache as broken but loads all timings of kernels
    if is_reported and size <= len(bytes(empty_cache.serialize())):
        reason = log.error_text("; ".join(log.warnings) or "TensorRT cannot read it")
        messages.warnings.append(f"the timing cache {file.name} is not used: {reason}")
        timing_cache = empty_cache
    # the file's name says that it is of this GPU
    config.set_timing_cache(timing_cache, True)


# facts of a build that depend on the graph's skeleton and the engine's fields only
_INHERITED = (
    "settings", "trtexec", "profiles", "inputs", "outputs", "layers", "precision_shares",
    "precision_of",
)  # fmt: skip
_DEPENDING = ("sparsity", "strip_plan", "refit_identical", "refit_individual")


def build_or_refit(library: TensorRTLibrary, request: BuildRequest) -> Figures:
    """Refit an earlier engine if there is a suitable one, else build one."""
    if not request.options["refit"]:
        return build_engine(library, request)
    if request.definition:
        reason = "the weights of a network defined by hand have no file to compare"
        return {**build_engine(library, request), "not_refitted": reason}
    reason = _obstacle(request) if request.earlier else ""
    weights = read_weights(request.onnx)
    digests = {name: weight.digest for name, weight in weights.weights.items()}
    basis = {"refit_basis": {"skeleton": weights.skeleton, "weights": digests}}
    if request.earlier and not reason:
        request.progress("refitting an earlier engine")
        try:
            earlier, record = _same_graph(request.earlier, weights.skeleton)
            messages = _refit(library, request, earlier.engine, weights, record)
        except StageError as failure:
            reason = failure.problem
            request.engine.unlink(missing_ok=True)
            request.progress(f"building, as no earlier engine can be refitted: {reason}")
        else:
            origin = {name: record[name] for name in ("engine_sha256", "started", "build_seconds")}
            return {
                **{name: record[name] for name in _INHERITED if name in record},
                **basis,
                "refitted_from": origin,
                "messages": messages,
            }
    facts = build_engine(library, request)
    return {**facts, **basis, **({"not_refitted": reason} if reason else {})}


def _obstacle(request: BuildRequest) -> str:
    """Return a reason why new weights need a new build, "" if there is none."""
    options = request.options
    depending = {
        "network hook": options["network"],
        "layers in fp32": not is_strong(options) and options.get("auto"),
        "calibrated ranges": request.calibration,
        "custom operators": request.operators,
        **{f"field {name}": options[name] for name in _DEPENDING},
    }
    names = [name for name, applies in depending.items() if applies]
    return f"its {' and '.join(names)} may depend on the weights" if names else ""


def _same_graph(
    builds: tuple[EarlierBuild, ...], skeleton: str
) -> tuple[EarlierBuild, Mapping[str, Any]]:
    """Find the newest earlier build of a graph with this skeleton, and its result."""
    for earlier in builds:
        with suppress(OSError, ValueError, KeyError, TypeError):  # removed since, or older
            record = json.loads(earlier.result.read_text(encoding="utf-8"))
            if record["refit_basis"]["skeleton"] != skeleton:
                continue
            if sha256_of(earlier.engine) == record["engine_sha256"]:
                return earlier, record
    raise StageError("no earlier engine was built from this graph with other weights")


def _refit(
    library: TensorRTLibrary,
    request: BuildRequest,
    file: Path,
    graph: WeightFile,
    record: Mapping[str, Any],
) -> list[str]:
    """Write the engine of ``file`` with the weights of ``graph``; return TensorRT's warnings."""
    log = log_of(library)
    with log.collected() as messages:
        runtime = library.trt.Runtime(log.logger)
        runtime.engine_host_code_allowed = bool(request.options["version_compatible"])
        engine = runtime.deserialize_cuda_engine(file.read_bytes())
        if engine is None:
            raise load_failure("the earlier engine", messages, library.release)
        refitter = library.trt.Refitter(engine, log.logger)
        before, weights = record["refit_basis"]["weights"], graph.weights
        changed = {name for name in weights if before.get(name) != weights[name].digest}
        if fixed := changed.difference(refitter.get_all_weights()):
            raise StageError(f"the earlier engine cannot replace {', '.join(sorted(fixed))}")
        arrays = version_adapter.set_weights(library, refitter, request.onnx, weights, changed)
        if missing := refitter.get_missing_weights():
            raise StageError(f"the graph has no weights {', '.join(sorted(missing))}")
        if not refitter.refit_cuda_engine() or messages.errors:
            raise StageError(f"TensorRT did not refit: {messages.error_text('without a reason')}")
        del refitter, arrays  # before the engine
        content = bytes(version_adapter.serialize_refitted(library, engine))
        del engine
        if runtime.deserialize_cuda_engine(content) is None:
            raise load_failure("the refitted engine", messages, library.release)
        request.engine.write_bytes(content)
        return list(dict.fromkeys(messages.warnings))
