"""The timing cache of TensorRT's builder: tactic timings, kept between builds.

A cache belongs to one version of TensorRT and one GPU. A broken or foreign one costs a warning and
time, but no build fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from buildsys.backends.interface import Figures
from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.log import Messages, log_of
from buildsys.backends.tensorrt.parse import new_builder
from buildsys.errors import StageError
from buildsys.system.files import replace_file, sha256_of

_MYELIN = ("Myelin error", "The timing cache will not be used")


def use_timing_cache(library: Library, config: Any, file: Path | None, messages: Messages) -> None:
    """Let a builder use the timings in ``file``, if it exists."""
    if file is None or not library.has("timing caches"):
        return
    timing_cache, problem = _read(library, config, file)
    if problem:
        messages.warnings.append(problem)
    with log_of(library).collected() as found:
        accepted = config.set_timing_cache(timing_cache, False)
        # the file's name says that it is of this GPU; TensorRT 8.6 refuses its own if Myelin's part
        # is unreadable
        if not accepted and _concerns_myelin_only(found):
            accepted = config.set_timing_cache(timing_cache, True)
    if not accepted:
        reason = found.error_text("it was made by another TensorRT or for another GPU")
        messages.warnings.append(f"the timing cache {file.name} is not used: {reason}")
        config.set_timing_cache(config.create_timing_cache(b""), False)


def keep_timing_cache(library: Library, config: Any, file: Path | None) -> Figures:
    """Write a builder's timings to ``file``; return the cache's facts."""
    if file is None or not library.has("timing caches"):
        return {}
    timing_cache = config.get_timing_cache()
    if timing_cache is None:
        return {}
    size_before = file.stat().st_size if file.is_file() else 0
    content = bytes(timing_cache.serialize())
    if len(content) != size_before:  # the order of the entries changes between writes
        replace_file(file, content)
    added = len(content) - size_before
    return {
        "timing_cache": {"sha256": sha256_of(file), "bytes": len(content), "added_bytes": added}
    }


def merge_timing_caches(library: Library, files: Sequence[Path], merged: Path) -> list[str]:
    """Merge timing caches; return a warning per unusable one.

    If two have the same entry, the first one counts.
    Raises: StageError: TensorRT does not work here, or none of the files can be used.
    """
    log = log_of(library)
    with log.collected() as messages:
        builder = new_builder(library)
        config = builder.create_builder_config()
        if messages.errors:
            text = f"{library.title} cannot merge timing caches here: {messages.error_text('')}"
            raise StageError(text)
        warnings: list[str] = []
        total: Any = None
        for file in files:
            timing_cache, problem = _read(library, config, file)
            if not problem and total is not None:
                with log.collected() as found:
                    if not total.combine(timing_cache, False) and not _concerns_myelin_only(found):
                        reason = found.error_text("no reason")
                        problem = f"the timing cache {file.name} does not fit the others: {reason}"
            if problem:
                warnings.append(problem)
            elif total is None:
                total = timing_cache
        if total is None:
            names = ", ".join(file.name for file in files)
            reasons = "; ".join(dict.fromkeys(warnings))
            raise StageError(
                f"none of the timing caches {names} can be used: {reasons}",
                "remove the files, or those of another TensorRT version or GPU",
            )
        replace_file(merged, bytes(total.serialize()))
    return warnings


def _read(library: Library, config: Any, file: Path) -> tuple[Any, str]:
    """Return a file's cache, or an empty one, and its problem."""
    if not file.is_file():
        return config.create_timing_cache(b""), ""
    with log_of(library).collected() as found:
        timing_cache = config.create_timing_cache(file.read_bytes())
    if timing_cache is not None and _concerns_myelin_only(found):
        empty_cache = config.create_timing_cache(b"")
        if len(bytes(timing_cache.serialize())) > len(bytes(empty_cache.serialize())):
            return timing_cache, ""  # it has timings of kernels
    if (
        timing_cache is None
        or found.errors
        or (found.warnings and not bytes(timing_cache.serialize()))
    ):
        reasons = [*found.errors, *found.warnings] or ["TensorRT cannot read it"]
        text = f"the timing cache {file.name} is broken and starts empty"
        return config.create_timing_cache(b""), f"{text}: {'; '.join(dict.fromkeys(reasons))}"
    return timing_cache, ""


def _concerns_myelin_only(found: Messages) -> bool:
    """Return True if only the cache's part for fused graphs is broken.

    Seen with TensorRT 8.6.0 on an H200 with a driver of CUDA 13: it loads all kernel timings of a
    cache that it has just written, and reports errors for the rest; with them a ResNet-50 takes 22
    s instead of 82 s.
    """
    return bool(found.errors) and all(text.startswith(_MYELIN) for text in found.errors)
