"""The timing cache of TensorRT's builder: what it measured of tactics, kept between builds.

A cache is of one version of TensorRT and one GPU. One that is broken or foreign costs a warning and time, no build.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from buildsys.backends.interface import Figures
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.log import Messages, log_of
from buildsys.backends.tensorrt.parse import new_builder
from buildsys.errors import StageError
from buildsys.system.files import replace_file, sha256_of

_MYELIN = ("Myelin error", "The timing cache will not be used")


def use_timing_cache(library: Library, config: Any, file: Path | None, messages: Messages) -> None:
    """Have a builder take its measurements from ``file``, where it exists, and note what it adds."""
    if file is None or not version_adapter.keeps_timings(library):
        return
    timing_cache, problem = _read(library, config, file)
    if problem:
        messages.warnings.append(problem)
    with log_of(library).collected() as found:
        # the file is of this GPU by its name; TensorRT 8.6 refuses its own where it cannot read the part of Myelin
        if not config.set_timing_cache(timing_cache, False) and not _is_taken(
            config, timing_cache, found
        ):
            reason = found.sentence("it was made by another TensorRT or for another GPU")
            messages.warnings.append(f"the timing cache {file.name} is not used: {reason}")
            config.set_timing_cache(config.create_timing_cache(b""), False)


def keep_timing_cache(library: Library, config: Any, file: Path | None) -> Figures:
    """Write what a builder has measured to ``file``, whole or not at all; return the cache's facts."""
    if file is None or not version_adapter.keeps_timings(library):
        return {}
    before = file.stat().st_size if file.is_file() else 0
    timing_cache = config.get_timing_cache()
    if timing_cache is None:
        return {}
    content = bytes(timing_cache.serialize())
    if len(content) != before:  # the order of its entries differs from time to time
        replace_file(file, content)
    return {
        "timing_cache": {
            "sha256": sha256_of(file),
            "bytes": len(content),
            "added_bytes": len(content) - before,
        }
    }


def merge_timing_caches(library: Library, files: Sequence[Path], merged: Path) -> list[str]:
    """Write one timing cache with the measurements of several; return a warning for each that cannot be used.

    Where two have measured the same, the first one counts.
    Raises: StageError: TensorRT cannot work here, or none of the files can be used.
    """
    log = log_of(library)
    with log.collected() as messages:
        builder = new_builder(library)
        config = builder.create_builder_config()
        if messages.errors:
            raise StageError(
                f"{library.title} cannot merge timing caches here: {messages.sentence('')}"
            )
        warnings: list[str] = []
        total: Any = None
        for file in files:
            timing_cache, problem = _read(library, config, file)
            if not problem and total is not None:
                with log.collected() as found:
                    if not total.combine(timing_cache, False) and not _is_of_myelin(found):
                        problem = f"the timing cache {file.name} does not fit the others: {found.sentence('no reason')}"
            warnings += [problem] if problem else []
            total = timing_cache if total is None and not problem else total
        if total is None:
            names, reasons = (
                ", ".join(file.name for file in files),
                "; ".join(dict.fromkeys(warnings)),
            )
            raise StageError(f"none of the timing caches {names} can be used: {reasons}")
        replace_file(merged, bytes(total.serialize()))
    return warnings


def _read(library: Library, config: Any, file: Path) -> tuple[Any, str]:
    """Return a cache with what is in ``file``, and what is wrong with that; an empty cache where it cannot be used."""
    if not file.is_file():
        return config.create_timing_cache(b""), ""
    with log_of(library).collected() as found:
        timing_cache = config.create_timing_cache(file.read_bytes())
    if _is_of_myelin(found) and timing_cache is not None and _entries_bytes(config, timing_cache):
        return timing_cache, ""
    if (
        timing_cache is None
        or found.errors
        or (found.warnings and not bytes(timing_cache.serialize()))
    ):
        reason = (
            "; ".join(dict.fromkeys([*found.errors, *found.warnings])) or "TensorRT cannot read it"
        )
        return config.create_timing_cache(
            b""
        ), f"the timing cache {file.name} is broken and starts empty: {reason}"
    return timing_cache, ""


def _is_taken(config: Any, timing_cache: Any, refusal: Messages) -> bool:
    """Have a cache used all the same whose measurements of kernels are there."""
    return _is_of_myelin(refusal) and bool(config.set_timing_cache(timing_cache, True))


def _is_of_myelin(found: Messages) -> bool:
    """Tell whether all that is wrong with a cache is its part for fused graphs, which its kernels do not need.

    Seen with TensorRT 8.6.0 on an H200 with a driver of CUDA 13: of a cache that it has just written itself, it loads
    all measurements of kernels and says this of the rest; with them a ResNet-50 takes 22 s instead of 82 s.
    """
    return bool(found.errors) and all(text.startswith(_MYELIN) for text in found.errors)


def _entries_bytes(config: Any, timing_cache: Any) -> int:
    whole = len(bytes(timing_cache.serialize()))
    timing_cache = config.create_timing_cache(b"")
    return whole - len(bytes(timing_cache.serialize()))
