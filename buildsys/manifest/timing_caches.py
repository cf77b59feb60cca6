"""Where timing caches lie, and which of them manifests pin. Read apart from the models, which do not depend on it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_VARIABLE = "BUILDSYS_TIMING_CACHES"
_FOLDER = "timing_caches"


def timing_caches_folder(root: Path, configs: Path, state: Path) -> Path:
    """Return the folder of timing caches: BUILDSYS_TIMING_CACHES, that of project.yaml, or one beside the state.

    A relative one is relative to the project. The file was checked when the project was loaded.
    """
    chosen = os.environ.get(_VARIABLE) or _named_in(configs / "project.yaml")
    return root / Path(chosen).expanduser() if chosen else state / _FOLDER


def pinned_caches(models: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the digests of the timing caches that engines of resolved models pin."""
    engines = [engine for model in models for engine in model["engines"]]
    return {
        str(engine["timing_cache"]["pin"])
        for engine in engines
        if (engine.get("timing_cache") or {}).get("pin")
    }


def _named_in(file: Path) -> str:
    try:
        content = file.read_bytes()
    except OSError:
        return ""
    if _FOLDER.encode() not in content:  # else every run would pay for the import of yaml
        return ""
    from buildsys.manifest.yaml_reader import read_yaml

    found = read_yaml(file, content)
    return str(found.get(_FOLDER) or "") if isinstance(found, dict) else ""
