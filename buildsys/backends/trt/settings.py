"""An engine's fields as TensorRT's builder takes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from buildsys.backends.base import Figures, Options
from buildsys.backends.trt import adapter
from buildsys.backends.trt.adapter import FLAGS, POOLS, VERBOSITY
from buildsys.backends.trt.library import Library
from buildsys.backends.trt.messages import Messages
from buildsys.backends.trt.profiles import Profile
from buildsys.errors import StageError


def configure(library: Library, builder: Any, config: Any, options: Options, messages: Messages) -> None:
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
    adapter.set_tiling(library, config, options["tiling_optimization_level"], options["l2_limit_for_tiling"])
    for field in ("workspace", "tactic_shared_memory"):
        if options[field] is not None:
            config.set_memory_pool_limit(POOLS.of(library, field), options[field])
    adapter.set_compute_capabilities(library, config, tuple(dict.fromkeys(options.get("compute_capabilities", ()))))
    ignored = list(_set_flags(library, config, options["flags"]))
    if messages.errors or ignored:
        refused = "; ".join(dict.fromkeys([*messages.errors, *(f"the flag {flag} has no effect" for flag in ignored)]))
        raise StageError(f"{library.title} refuses a field of the engine: {refused}")


def add_profiles(library: Library, builder: Any, config: Any, profiles: Sequence[Profile]) -> None:
    """Add the optimization profiles.

    Raises: StageError: TensorRT refused one. It says so in two return values and nowhere else.
    """
    for number, ranges in enumerate(profiles):
        profile = builder.create_optimization_profile()
        for name, shapes in ranges.items():
            profile.set_shape(name, shapes["min"], shapes["opt"], shapes["max"])
        if not profile or config.add_optimization_profile(profile) < 0:
            raise StageError(f"{library.title} refuses the optimization profile {number}: {ranges}")


def settings_in_force(library: Library, builder: Any, config: Any, options: Options) -> Figures:
    """Return the settings as TensorRT will use them, defaults included."""
    return {
        "precision": options["precision"],
        **(
            {"compute_capabilities": list(capabilities)}
            if (capabilities := options.get("compute_capabilities"))
            else {}
        ),
        "flags": {word: bool(config.get_flag(flag)) for flag, word in FLAGS.words(library).items()},
        "builder_optimization_level": int(config.builder_optimization_level),
        **{word: int(config.get_memory_pool_limit(pool)) for pool, word in POOLS.words(library).items()},
        **adapter.tiling_facts(library, config),
        "max_aux_streams": int(config.max_aux_streams),
        "avg_timing_iterations": int(config.avg_timing_iterations),
        "max_threads": int(builder.max_threads),
        "profiling_verbosity": VERBOSITY.words(library)[config.profiling_verbosity],
    }


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
