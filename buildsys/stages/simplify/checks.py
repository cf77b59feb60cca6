"""Checks of the section ``simplify``."""

from __future__ import annotations

from buildsys.manifest.problem import Problems
from buildsys.manifest.view import ManifestView


def problems(view: ManifestView) -> Problems:
    """Yield options without an effect."""
    if view.get("simplify", "tool") != "none":
        return
    for option, value in view.map("simplify").items():
        on_by_default = option in ("constant_folding", "shape_inference", "fuse")
        if value is False if on_by_default else option != "tool" and value is not None:
            text, hint = "has no effect with tool: none", "remove it, or choose a tool"
            yield view.problem(("simplify", option), text, hint, of_key=True)
