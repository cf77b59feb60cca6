"""Checks of the accuracy on data against the rest of a manifest."""

from __future__ import annotations

from buildsys.manifest.problem import Problems
from buildsys.manifest.view import ManifestView

_IMAGES = ("images", "folder")


def problems(view: ManifestView) -> Problems:
    """Yield images without a declared preprocessing."""
    for path, section in view.maps("evaluate"):
        data = section.get("data") or {}
        kind = next((kind for kind in _IMAGES if kind in data), "")
        inputs = [tensor for _, tensor in view.maps("inputs", ...)]
        if kind and not any(tensor.get("preprocess") for tensor in inputs):
            problem = "no input has the steps from an image file to its values"
            hint = "add inputs.NAME.preprocess, e.g. preprocess: {divide: 255}"
            yield view.problem((*path, "data", kind), problem, hint)
