"""Settings of configs/project.yaml without influence on models.

The file was checked when the project was loaded. A run without these settings must not pay for
importing yaml.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from buildsys.manifest.units import parse_duration


def shared_cache(root: Path, configs: Path) -> dict[str, Any] | None:
    """Return url, mode and timeout_s of the shared cache, or None.

    A folder is relative to ``root``. BUILDSYS_REMOTE overrides it; empty means none.
    """
    settings = _setting(configs, "cache") or {}
    url = os.environ.get("BUILDSYS_REMOTE", settings.get("remote", ""))
    if not url:
        return None
    if "://" not in url:
        url = str(root / url)
    cache = {"url": url, "mode": settings.get("mode", "read-only")}
    if "timeout" in settings:
        cache["timeout_s"] = parse_duration(settings["timeout"])
    return cache


def timing_caches_folder(root: Path, configs: Path, state: Path) -> Path:
    """Return the folder of TensorRT's timing caches.

    BUILDSYS_TIMING_CACHES or ``timing_caches`` of project.yaml, relative to ``root``; else a folder
    below ``state``.
    """
    chosen = os.environ.get("BUILDSYS_TIMING_CACHES") or _setting(configs, "timing_caches")
    return root / Path(str(chosen)).expanduser() if chosen else state / "timing_caches"


def declared_toolchains(configs: Path) -> dict[str, tuple[str, dict[str, str]]]:
    """Return name -> interpreter and environment variables of every toolchain."""
    declared = _setting(configs, "toolchains") or {}
    return {name: (entry["python"], entry.get("env") or {}) for name, entry in declared.items()}


def pinned_timing_caches(models: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the digests of timing caches pinned by engines of resolved models."""
    engines = (engine for model in models for engine in model["engines"])
    pinned = (engine.get("timing_cache") or {} for engine in engines)
    return {str(cache["pin"]) for cache in pinned if cache.get("pin")}


def _setting(configs: Path, name: str) -> Any:
    file = configs / "project.yaml"
    try:
        content = file.read_bytes()
    except OSError:
        return None
    if name.encode() not in content:
        return None
    from buildsys.manifest.yaml_reader import read_yaml

    settings = read_yaml(file, content)
    return settings.get(name) if isinstance(settings, dict) else None
