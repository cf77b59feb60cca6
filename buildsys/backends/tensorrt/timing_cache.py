"""The timing cache of TensorRT's builder: tactic timings, kept between builds.

A cache belongs to one version of TensorRT and one GPU. A broken or foreign one costs a warning and
time, but no build fails.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from buildsys.backends.interface import Figures
from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.log import Messages, log_of
from buildsys.system.files import replace_file, sha256_of

_MYELIN = ("Myelin error", "The timing cache will not be used")


def use_timing_cache(library: Library, config: Any, file: Path | None, messages: Messages) -> None:
    """Let a builder use the timings in ``file``, if it exists."""
    if file is None or not library.has("timing caches"):
        return
    timing_cache, problem = _read(library, config, file)
    if problem:
        messages.warnings.append(problem)
    with log_of(library).collected() as log:
        accepted = config.set_timing_cache(timing_cache, False)
        # the file's name says that it is of this GPU; TensorRT 8.6 refuses its own if Myelin's part
        # is unreadable
        if not accepted and _concerns_myelin_only(log):
            accepted = config.set_timing_cache(timing_cache, True)
    if not accepted:
        reason = log.error_text("it was made by another TensorRT or for another GPU")
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


def _read(library: Library, config: Any, file: Path) -> tuple[Any, str]:
    """Read a file's cache, or start an empty one; return it and the file's problem."""
    empty_cache = config.create_timing_cache(b"")
    if not file.is_file():
        return empty_cache, ""
    with log_of(library).collected() as log:
        timing_cache = config.create_timing_cache(file.read_bytes())
    size = 0 if timing_cache is None else len(bytes(timing_cache.serialize()))
    if _concerns_myelin_only(log) and size > len(bytes(empty_cache.serialize())):
        return timing_cache, ""  # it has timings of kernels
    if timing_cache is None or log.errors or (log.warnings and not size):
        reasons = [*log.errors, *log.warnings] or ["TensorRT cannot read it"]
        text = f"the timing cache {file.name} is broken and starts empty"
        return empty_cache, f"{text}: {'; '.join(dict.fromkeys(reasons))}"
    return timing_cache, ""


def _concerns_myelin_only(log: Messages) -> bool:
    """Return True if only the cache's part for fused graphs is broken.

    Seen with TensorRT 8.6.0 on an H200 with a driver of CUDA 13: it loads all kernel timings of a
    cache that it has just written, and reports errors for the rest; with them a ResNet-50 takes 22
    s instead of 82 s.
    """
    return bool(log.errors) and all(text.startswith(_MYELIN) for text in log.errors)
