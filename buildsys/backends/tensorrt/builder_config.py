"""Translation of an engine's fields to TensorRT's builder configuration."""

from __future__ import annotations

from typing import Any

from buildsys.backends.interface import Figures, Options
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.enum_tables import (
    FLAGS,
    POOLS,
    PRECISION_FLAGS,
    TACTIC_SOURCES,
    VERBOSITY,
)
from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.log import Messages
from buildsys.errors import StageError

_FLAG_FIELDS = {  # field of an engine -> flag
    "sparsity": "sparse_weights",
    **{name: name for name in (
        "tf32", "direct_io", "gpu_fallback", "refit", "refit_identical", "refit_individual",
        "strip_plan", "weight_streaming", "version_compatible", "exclude_lean_runtime",
    )},
}  # fmt: skip
_QUANTIZED = ("int8", "fp8")
# precisions that a builder may use in addition to fp32; fp16 for layers without an int8 kernel
_ALLOWED = {"int8": ("int8", "fp16")}


def is_strong(options: Options) -> bool:
    """Return True if the graph's types decide the engine's."""
    return bool(options.get("typing", "strong") == "strong")


def quantization_of(options: Options) -> str | None:
    """Return "implicit" (the builder calibrates), "explicit" (quantizers) or None."""
    chosen: str | None = options.get("quantization")
    if chosen is None and options["precision"] in _QUANTIZED:
        return "explicit" if is_strong(options) else "implicit"
    return chosen


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
    library: Library, builder: Any, config: Any, options: Options, messages: Messages
) -> None:
    """Set every field on the builder and its configuration.

    Raises: StageError: TensorRT refused a value. It only logs that, and goes on with its default.
    """
    if options["max_threads"] is not None:
        builder.max_threads = options["max_threads"]
    config.builder_optimization_level = options["builder_optimization_level"]
    config.avg_timing_iterations = options["avg_timing_iterations"]
    config.profiling_verbosity = VERBOSITY.of(library, options["profiling_verbosity"])
    if options["max_aux_streams"] is not None:
        config.max_aux_streams = options["max_aux_streams"]
    for field in POOLS.members:
        if options.get(field) is not None:
            config.set_memory_pool_limit(POOLS.of(library, field), options[field])
    version_adapter.set_fields(library, config, options)
    if options.get("tactic_sources") is not None:
        bits = {1 << int(TACTIC_SOURCES.of(library, name)) for name in options["tactic_sources"]}
        config.set_tactic_sources(sum(bits))
    core = options.get("dla_core")
    if core is not None:
        if core >= builder.num_DLA_cores:
            cores = f"has {builder.num_DLA_cores}" if builder.num_DLA_cores else "has none"
            text = f"dla_core: {core} needs a deep learning accelerator, and this machine {cores}"
            raise StageError(text, "remove dla_core, or build on a machine with one")
        config.default_device_type = library.trt.DeviceType.DLA
        config.DLA_core = core
    ignored = []
    fields = {flag: bool(options[name]) for name, flag in _FLAG_FIELDS.items() if name in options}
    # tf32 is the only flag that is on by default
    changed = {flag: value for flag, value in fields.items() if value or flag == "tf32"}
    wanted_flags = {**changed, **options["flags"]}
    flags = [(name, FLAGS.of(library, name), is_on) for name, is_on in wanted_flags.items()]
    flags += [(name, PRECISION_FLAGS.of(library, name), True) for name in precision_flags(options)]
    for name, flag, is_on in flags:
        if is_on:
            config.set_flag(flag)
        else:
            config.clear_flag(flag)
        if bool(config.get_flag(flag)) != is_on:
            ignored.append(f"the flag {name} has no effect")
    if refused := list(dict.fromkeys([*messages.errors, *ignored])):
        raise StageError(
            f"{library.title} refuses a field of the engine: {'; '.join(refused)}",
            "correct the field, or remove it",
        )


def settings_in_force(library: Library, builder: Any, config: Any, options: Options) -> Figures:
    """Return TensorRT's settings, including defaults."""
    quantization = quantization_of(options)
    sources = int(config.get_tactic_sources())
    capabilities = options.get("compute_capabilities")
    layers = options.get("layer_precisions")
    return {
        "precision": options["precision"],
        "typing": "strong" if is_strong(options) else "weak",
        **({"quantization": quantization} if quantization else {}),
        **({"compute_capabilities": list(capabilities)} if capabilities else {}),
        "flags": {
            word: bool(config.get_flag(flag))
            for table in (FLAGS, PRECISION_FLAGS)
            for flag, word in table.words(library).items()
        },
        "builder_optimization_level": int(config.builder_optimization_level),
        **{
            word: int(config.get_memory_pool_limit(pool))
            for pool, word in POOLS.words(library).items()
        },
        **version_adapter.settings_facts(library, config),
        "tactic_sources": [
            word for kind, word in TACTIC_SOURCES.words(library).items() if sources >> int(kind) & 1
        ],
        "dla_core": options.get("dla_core"),
        "max_aux_streams": int(config.max_aux_streams),
        "avg_timing_iterations": int(config.avg_timing_iterations),
        "max_threads": int(builder.max_threads),
        "profiling_verbosity": VERBOSITY.words(library)[config.profiling_verbosity],
        **{field: options[field] for field in ("io", "network") if options.get(field)},
        **({"layer_precisions": list(layers)} if layers else {}),
    }
