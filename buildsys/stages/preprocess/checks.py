"""Checks of preprocessing in engines against the rest of a manifest."""

from collections.abc import Iterator, Mapping
from typing import Any

from buildsys.manifest.problem import Problems
from buildsys.manifest.shape_cases import changes_golden
from buildsys.manifest.view import ManifestView
from buildsys.system.backend_registry import describe_backend

_OUTSIDE = "remove inside: `run` then prepares images before the engine"
_SIZES = "name height and width in preprocess.size, with their ranges in dims"


def problems(view: ManifestView) -> Problems:
    """Yield steps and engines that cannot work on raw images."""
    tensors = [(path[1], tensor) for path, tensor in view.maps("inputs", ...)]
    images = {str(n): t for n, t in tensors if (t.get("preprocess") or {}).get("inside")}
    for name, tensor in images.items():
        for field, text, hint in _step_problems(tensor):
            yield view.problem(("inputs", name, "preprocess", field), text, hint)
    if not images:
        return
    if view.is_defined or changes_golden(view.list("surgery")):
        text = "the inputs and outputs of the graph must be the network's"
        place = ("source",) if view.is_defined else ("surgery",)
        yield view.problem(place, f"with preprocess.inside, {text}", _OUTSIDE, of_key=True)
    for path, engine in view.maps("engines", ...):
        name, backend = next(iter(images)), describe_backend(engine["backend"])
        reason, hint = "", "remove inside, or put the engine into another model"
        if backend.takes_program:
            reason = "builds from the program of PyTorch"
        elif not backend.takes_images:
            reason = "has no operators for images of varying size"
        elif (
            engine.get("precision") == "int8"
            and backend.quantizes(engine)
            and view.get("quantize", "tool") != "source"
        ):
            reason, hint = "quantizes the graph itself", "use precision: auto-int8"
        if reason:
            text = f"{backend.title} {reason}, so this engine cannot preprocess inputs.{name}"
            yield view.problem(view.place_of(path, "backend"), text, hint)


def _step_problems(tensor: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield field, problem and hint."""
    steps, shape = tensor["preprocess"], list(tensor.get("shape") or ())
    channels = 1 if steps.get("color") == "gray" else 3
    is_first = steps.get("layout", "nchw") == "nchw"
    axis = -3 if is_first else -1
    if len(shape) != 4 or shape[axis] != channels:
        hint = f"declare a batch, and {channels} at axis {axis}, or correct color or layout"
        yield "inside", f"the shape [{', '.join(map(str, shape))}] does not fit images", hint
        return
    for field in ("mean", "std"):
        if len(steps.get(field) or (0,)) not in (1, channels):
            yield field, f"{len(steps[field])} values", f"give one value, or {channels}"
    if steps.get("pad") is not None:
        yield "pad", "engines cannot pad images", _OUTSIDE
    resize, size = steps.get("resize"), steps.get("size")
    if size is None and resize is not None:
        yield "resize", "the engine must know which sizes images have", _SIZES
    if size is None:
        return
    crop = shape[-2:] if is_first else shape[-3:-1]
    if any(isinstance(side, str) for side in crop):
        text = f"images are resized to {crop[0]} x {crop[1]}, which varies"
        yield "size", text, "fix height and width in the shape, or remove size"
    elif resize is not None and resize < max(crop):
        text = f"{resize} is smaller than the crop of {crop[0]} x {crop[1]}"
        yield "resize", text, f"set resize: {max(crop)}, or more"
    if (kind := steps.get("interpolation")) in ("nearest", "lanczos"):
        yield "interpolation", f"engines cannot resize by {kind}", "use bilinear or bicubic"
