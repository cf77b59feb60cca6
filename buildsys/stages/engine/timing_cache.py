"""The timing cache of one build: checkout, merge, record."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from buildsys.backends.interface import Backend, Figures
from buildsys.store.timing_caches import (
    SharedTimingCache,
    checkout_pinned,
    pinned_cache_warning,
    pinned_figures,
)
from buildsys.system.engine_environment import MissingLibraryError, built_with
from buildsys.workers.job import Job

_BACKENDS = ("tensorrt",)  # TensorRT-RTX has no timings: its timing cache is empty
# fields without effect on tactic times; any other field, also a new one, keeps caches apart
_NOT_TIMED = (
    "backend", "precision", "typing", "profiles", "workspace", "profiling_verbosity", "network",
    "layer_precisions", "precision_constraints", "precision_share", "io", "timing_cache",
    "toolchain", "max_threads", "calibration", "quantization",
)  # fmt: skip


@dataclass
class TimingCacheCopy:
    """A private timing cache for one build; ``path`` is None if unused."""

    path: Path | None = None
    merge_back: Callable[[list[str]], Figures] = field(default=lambda _messages: {})
    warnings: list[str] = field(default_factory=list)

    def figures(self, messages: list[str]) -> Figures:
        """Merge the copy back; return its figures and all messages."""
        found = self.merge_back(messages)  # may add warnings
        warnings = [text for text in (*self.warnings, pinned_cache_warning(found)) if text]
        return {
            **({"timing_cache": found} if found else {}),
            "messages": [*messages, *warnings],
        }


def checkout(job: Job, backend: Backend, scratch: Path) -> TimingCacheCopy:
    """Return a private copy, in ``scratch``, of the cache for this build.

    Raises: StageError: the engine pins a cache that does not exist.
    """
    options: Mapping[str, Any] = job.options["engine"]
    folder = job.timing_caches
    if options["backend"] not in _BACKENDS or folder is None:
        return TimingCacheCopy()
    private = scratch / "timing_cache"
    pin = (options.get("timing_cache") or {}).get("pin")
    if pin:
        pinned = checkout_pinned(folder, pin, private, f"the engine {job.variant}")
        return TimingCacheCopy(
            private, lambda messages: pinned_figures(folder, private, pinned, messages)
        )
    conditions = _conditions(options, backend)
    if conditions is None:
        return TimingCacheCopy()
    merge: Any = cast(Any, backend).merge_timing_caches
    shared = SharedTimingCache(folder, conditions, merge)
    original = shared.checkout(private)
    return TimingCacheCopy(
        private, lambda messages: shared.merge_back(private, original, messages), shared.warnings
    )


def _conditions(options: Mapping[str, Any], backend: Backend) -> dict[str, str] | None:
    """Return the conditions of valid timings, None if the GPU is unknown."""
    facts: dict[str, Any] = {}
    with suppress(MissingLibraryError):
        facts = built_with(options["backend"], backend.device(options))
    if not facts.get("gpu"):
        return None
    timed = {name: value for name, value in options.items() if name not in _NOT_TIMED}
    return {
        "library": f"{options['backend']}-{facts[options['backend']]}",
        "gpu": f"{facts['gpu']} {facts['compute_capability']}",
        "cuda": f"cuda{facts['cuda']} driver{facts['driver']}",
        "platform": facts["platform"],
        "settings": hashlib.sha256(json.dumps(timed, sort_keys=True).encode()).hexdigest()[:16],
    }
