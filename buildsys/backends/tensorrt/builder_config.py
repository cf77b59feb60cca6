"""An engine's fields as TensorRT's builder takes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from buildsys.backends.interface import Figures, Options
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.enum_tables import (
    FLAGS,
    POOLS,
    PRECISION_FLAGS,
    TACTIC_SOURCES,
    VERBOSITY,
    either,
    unsupported_fields,
)
from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.log import Messages
from buildsys.errors import StageError

_FLAG_FIELDS = {  # field of an engine -> flag
    "tf32": "tf32", "sparsity": "sparse_weights", "direct_io": "direct_io", "gpu_fallback": "gpu_fallback",
    "refit": "refit", "refit_identical": "refit_identical", "refit_individual": "refit_individual",
    "strip_plan": "strip_plan", "weight_streaming": "weight_streaming", "version_compatible": "version_compatible",
    "exclude_lean_runtime": "exclude_lean_runtime",
}  # fmt: skip
_QUANTIZED = ("int8", "fp8")
_FALLBACK = {
    "int8": ("int8", "fp16")
}  # what a precision allows beside fp32: where int8 has no kernel, fp16 has


def check_fields(library: Library, options: Options) -> None:
    """Check that the library can honour every field of an engine.

    Raises: StageError: all that it cannot, with the versions that can.
    """
    lacking = unsupported_fields(library, options)
    if lacking:
        told = [
            f"{field} ({either(_of_this_backend(options, versions))} can)"
            for field, versions in lacking
        ]
        raise StageError(
            f"{library.release} cannot honour {' and '.join(dict.fromkeys(told))}",
            "use another version, or take the field out of the engine",
        )


def is_strong(options: Options) -> bool:
    """Tell whether the types of the graph are those of the engine; TensorRT-RTX has no field for it."""
    return bool(options.get("typing", "strong") == "strong")


def quantization_of(options: Options) -> str | None:
    """Return whether the builder of a quantized engine calibrates or the graph has quantizers; None for others."""
    asked: str | None = options.get("quantization")
    if asked is None and options["precision"] in _QUANTIZED:
        return "explicit" if is_strong(options) else "implicit"
    return asked


def precision_flags(options: Options) -> tuple[str, ...]:
    """Return the flags of the precisions that a weakly typed builder may choose, and of its constraints."""
    if is_strong(options):
        return ()
    layers = [entry["precision"] for entry in options["layer_precisions"]]
    named = [
        flag
        for precision in (options["precision"], *layers)
        for flag in _FALLBACK.get(precision, (precision,))
    ]
    constraints = [options["precision_constraints"]] if layers else []
    return tuple(dict.fromkeys(name for name in (*named, *constraints) if name != "fp32"))


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
    version_adapter.set_tiling(
        library, config, options["tiling_optimization_level"], options["l2_limit_for_tiling"]
    )
    for field in POOLS.members:
        if options.get(field) is not None:
            config.set_memory_pool_limit(POOLS.of(library, field), options[field])
    version_adapter.set_compute_capabilities(
        library, config, tuple(dict.fromkeys(options.get("compute_capabilities", ())))
    )
    version_adapter.share_profiles(library, config)
    _set_target(library, builder, config, options)
    ignored = [
        *_set_flags(library, config, _flags(options)),
        *_set_precision(library, config, options),
    ]
    if messages.errors or ignored:
        refused = "; ".join(
            dict.fromkeys(
                [*messages.errors, *(f"the flag {flag} has no effect" for flag in ignored)]
            )
        )
        raise StageError(f"{library.title} refuses a field of the engine: {refused}")


def settings_in_force(library: Library, builder: Any, config: Any, options: Options) -> Figures:
    """Return the settings as TensorRT will use them, defaults included."""
    quantization = quantization_of(options)
    sources = int(config.get_tactic_sources())
    capabilities = options.get("compute_capabilities")
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
        **version_adapter.tiling_facts(library, config),
        "tactic_sources": [
            word for kind, word in TACTIC_SOURCES.words(library).items() if sources >> int(kind) & 1
        ],
        **version_adapter.hardware_facts(library, config),
        "dla_core": options.get("dla_core"),
        "max_aux_streams": int(config.max_aux_streams),
        "avg_timing_iterations": int(config.avg_timing_iterations),
        "max_threads": int(builder.max_threads),
        "profiling_verbosity": VERBOSITY.words(library)[config.profiling_verbosity],
        **{field: options[field] for field in ("io", "network") if options.get(field)},
        **(
            {"layer_precisions": list(options["layer_precisions"])}
            if options.get("layer_precisions")
            else {}
        ),
    }


def _flags(options: Options) -> dict[str, bool]:
    fields = {
        flag: bool(options[field]) for field, flag in _FLAG_FIELDS.items() if field in options
    }
    asked = {
        flag: wanted for flag, wanted in fields.items() if wanted or flag == "tf32"
    }  # the only one that is on anyway
    return {**asked, **options["flags"]}


def _set_target(library: Library, builder: Any, config: Any, options: Options) -> None:
    """Say where tactics come from, and what the engine is to run on."""
    if options.get("tactic_sources") is not None:
        bits = [
            1 << int(TACTIC_SOURCES.of(library, source)) for source in options["tactic_sources"]
        ]
        config.set_tactic_sources(sum(set(bits)))
    if options.get("hardware_compatibility", "none") != "none":
        version_adapter.set_hardware(library, config, options["hardware_compatibility"])
    core = options.get("dla_core")
    if core is None:
        return
    if core >= builder.num_DLA_cores:
        found = f"has {builder.num_DLA_cores}" if builder.num_DLA_cores else "has none"
        raise StageError(
            f"dla_core: {core} asks for a deep learning accelerator, and this machine {found}"
        )
    config.default_device_type = library.trt.DeviceType.DLA
    config.DLA_core = core


def _set_precision(library: Library, config: Any, options: Options) -> Iterator[str]:
    for name in precision_flags(options):
        flag = PRECISION_FLAGS.of(library, name)
        config.set_flag(flag)
        if not config.get_flag(flag):
            yield name


def _set_flags(library: Library, config: Any, flags: Mapping[str, bool]) -> Iterator[str]:
    """Set and clear flags; yield those that did not take the value."""
    for name, wanted in flags.items():
        flag = FLAGS.of(library, name)
        if wanted:
            config.set_flag(flag)
        else:
            config.clear_flag(flag)
        if bool(config.get_flag(flag)) != wanted:
            yield name


def _of_this_backend(options: Options, versions: tuple[str, ...]) -> list[str]:
    """Return the generations that the engine's backend may be; all where it is none of them."""
    return [
        version for version in versions if options["backend"] != "tensorrt" or "RTX" not in version
    ] or [*versions]
