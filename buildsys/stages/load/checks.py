"""Checks of `bench.load` against the rest of a manifest."""

from buildsys.manifest.problem import Problems
from buildsys.manifest.shape_cases import allowed_sizes
from buildsys.manifest.view import ManifestView, shapes_after_surgery


def problems(view: ManifestView) -> Problems:
    """Yield batches that the engines cannot take."""
    for path, batch in view.find("bench", "load", "batches", ...):
        first = next(iter(shapes_after_surgery(view).values()), [])
        dim = first[0] if first else None
        span = view.map("dims", dim) if isinstance(dim, str) else {}
        if not span:
            text = "the first size of the first input is fixed"
            hint = "remove it, or make the size a dimension"
            yield view.problem(path[:-1], text, hint, of_key=True)
            return
        if batch not in allowed_sizes(span):
            sizes = allowed_sizes(span)
            text = f"{dim} {batch} is outside its range, {sizes[0]} to {sizes[-1]}"
            yield view.problem(path, text, f"choose a size of dims.{dim}")
