"""Checks of the accuracy on data against the rest of a manifest."""

from buildsys.manifest.backend_choices import is_auto
from buildsys.manifest.problem import Problems
from buildsys.manifest.view import ManifestView


def problems(view: ManifestView) -> Problems:
    """Yield searches by a missing metric, and images without preprocessing."""
    by_metric = view.get("search", "limit") == "metric" and any(map(is_auto, view.list("engines")))
    if by_metric and not view.get("evaluate"):
        problem = "the metric limits the search, but the model has no evaluate"
        yield view.problem(("search", "limit"), problem, "add evaluate, or remove the limit")
    for path, section in view.maps("evaluate"):
        data = section.get("data") or {}
        kind = next((kind for kind in ("images", "folder") if kind in data), "")
        inputs = [tensor for _, tensor in view.maps("inputs", ...)]
        if kind and not any(tensor.get("preprocess") for tensor in inputs):
            problem = "no input has the steps from an image file to its values"
            hint = "add inputs.NAME.preprocess, e.g. preprocess: {divide: 255}"
            yield view.problem((*path, "data", kind), problem, hint)
