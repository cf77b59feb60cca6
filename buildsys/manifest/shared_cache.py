"""The shared cache that ``configs/project.yaml`` names. Read apart from the models, which do not depend on it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from buildsys.manifest.units import parse_duration


def shared_cache(root: Path, configs: Path) -> dict[str, Any] | None:
    """Return url, mode and timeout_s of the shared cache, None when the project has none.

    The file was checked when the project was loaded. A folder is relative to ``root``. BUILDSYS_REMOTE names another
    place, or none when it is empty.
    """
    settings = _read(configs / "project.yaml")
    url = os.environ.get("BUILDSYS_REMOTE", settings.get("remote", ""))
    if not url:
        return None
    if "://" not in url:
        url = str(root / url)
    found = {"url": url, "mode": settings.get("mode", "read-only")}
    return found | (
        {"timeout_s": parse_duration(settings["timeout"])} if "timeout" in settings else {}
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        content = file.read_bytes()
    except OSError:
        return {}
    if (
        b"cache" not in content
    ):  # else a run without a shared cache would pay for the import of yaml
        return {}
    from buildsys.manifest.yaml_reader import read_yaml

    found = read_yaml(file, content)
    return dict(found.get("cache") or {}) if isinstance(found, dict) else {}
