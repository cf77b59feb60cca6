"""The timing cache of one build: lent before it, taken back after it, with what is recorded of that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from buildsys.backends.interface import Backend, Figures
from buildsys.errors import StageError
from buildsys.store.timing_caches.checkout import (
    SharedTimingCache,
    checkout_pinned,
    pinned_cache_warning,
    pinned_figures,
)
from buildsys.store.timing_caches.files import TimingCacheData
from buildsys.system.engine_environment import MissingLibraryError, built_with
from buildsys.workers.job import Job

_BACKENDS = ("tensorrt",)  # TensorRT-RTX has no timings: its timing cache is empty
# fields that change no tactic's time; all others, also new ones, keep caches apart
_NOT_TIMED = (
    "backend", "precision", "typing", "profiles", "workspace", "profiling_verbosity", "network", "layer_precisions",
    "precision_constraints", "precision_share", "io", "timing_cache", "toolchain", "max_threads", "calibration",
    "quantization",
)  # fmt: skip


@dataclass
class Loan:
    """A private timing cache; ``path`` is None where the builder has no use for one."""

    path: Path | None = None
    take_back: Callable[[list[str]], Figures] = field(default=lambda _messages: {})
    warnings: list[str] = field(default_factory=list)

    def figures(self, messages: list[str]) -> Figures:
        """Return what the engine's record says of it; warnings become messages of the build."""
        found = self.take_back(messages)  # may add warnings
        told = [text for text in (*self.warnings, pinned_cache_warning(found)) if text]
        return {**({"timing_cache": found} if found else {}), "messages": [*messages, *told]}


def borrow(job: Job, backend: Backend, scratch: Path) -> Loan:
    """Return a private copy of the cache that a build may use, in the folder ``scratch``.

    Raises: StageError: the engine pins a cache that is not to be found.
    """
    options = job.options["engine"]
    if options["backend"] not in _BACKENDS or job.timing_caches is None:
        return Loan()
    private = scratch / "timing_cache"
    pin = (options.get("timing_cache") or {}).get("pin")
    if pin:
        folder, lent = (
            job.timing_caches,
            checkout_pinned(job.timing_caches, pin, private, f"the engine {job.variant}"),
        )
        return Loan(private, lambda messages: pinned_figures(folder, private, lent, messages))
    lender = _lender(job, backend)
    return _shared(lender, private) if lender else Loan()


def _shared(lender: SharedTimingCache, private: Path) -> Loan:
    lent: TimingCacheData | None = lender.checkout(private)
    return Loan(
        private, lambda messages: lender.merge_back(private, lent, messages), lender.warnings
    )


def _lender(job: Job, backend: Backend) -> SharedTimingCache | None:
    """Return the caches of these conditions, None where it is not known what they are."""
    options: Mapping[str, Any] = job.options["engine"]
    facts: dict[str, Any] = {}
    with suppress(MissingLibraryError):
        facts = built_with(options["backend"], backend.device(options))
    if job.timing_caches is None or not facts.get("gpu"):
        return None
    timed = {name: value for name, value in options.items() if name not in _NOT_TIMED}
    made_for = {
        "library": f"{options['backend']}-{facts[options['backend']]}",
        "gpu": f"{facts['gpu']} {facts['compute_capability']}",
        "cuda": f"cuda{facts['cuda']} driver{facts['driver']}",
        "platform": facts["platform"],
        "settings": hashlib.sha256(json.dumps(timed, sort_keys=True).encode()).hexdigest()[:16],
    }
    return SharedTimingCache(
        job.timing_caches, made_for, getattr(backend, "merge_timing_caches", _cannot_merge)
    )


def _cannot_merge(_files: object, _merged: object) -> None:
    raise StageError("this backend merges no timing caches")
