"""Defaults of executors' fields.

They are apart from the schema, as its import takes longer than a run.
"""

from __future__ import annotations

from typing import Any

OF_KIND: dict[str, dict[str, Any]] = {
    "ssh": {"command": ("buildsys",)},
    "ray": {"address": "auto", "cpus": 1.0},
    "slurm": {"command": ("buildsys",)},
    "kubernetes": {"command": ("buildsys",), "deadline": 86_400.0, "keep": 3600.0},
}


def defaults_of(kind: str) -> dict[str, Any]:
    """Return the defaults of a kind of executor, except empty ones."""
    return OF_KIND[kind]
