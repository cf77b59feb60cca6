"""What must hold between engines of int8 and fp8, ``calibration`` and ``quantize``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from buildsys.manifest.checks.engines import int8_layers
from buildsys.manifest.checks.surgery import shapes_after_surgery
from buildsys.manifest.problem import Problem, suggest
from buildsys.manifest.schema.base import QUANTIZED
from buildsys.manifest.schema.quantization import DEFAULT_PERCENTILE
from buildsys.manifest.value_ranges import data_problem

if TYPE_CHECKING:
    from buildsys.manifest.checks.model import View

_CALIBRATED_LAYERS = ("quantization", "a builder that calibrates")  # for single layers in int8
_CALIBRATORS = ("entropy", "minmax")  # those that TensorRT has


def quantize_problems(view: View) -> Iterator[Problem]:
    """Yield what is wrong with the parts of a merged model that int8 and fp8 engines need."""
    if isinstance(view.get("calibration"), dict):
        yield from _calibration(view)
    told = set()
    for index, engine in enumerate(view.list("engines")):
        if isinstance(engine, dict) and (
            engine.get("precision") in QUANTIZED or _has_calibrated_layers(engine)
        ):
            for problem in _engine(view, index, engine):
                if problem.origin not in told:  # two engines may stumble over one field
                    told.add(problem.origin)
                    yield problem


def _engine(view: View, index: int, engine: dict[str, Any]) -> Iterator[Problem]:
    precision = engine.get("precision")
    if view.get("calibration") is None:
        field, what = (
            ("precision", f"an {precision} engine")
            if precision in QUANTIZED
            else _CALIBRATED_LAYERS
        )
        text = f"{what} needs calibration data, and the model has no section calibration"
        yield view.problem(("engines", index, field), text, _example(view))
    if precision == "fp8" and view.get("quantize", "tool") == "onnxruntime":
        text = "onnxruntime.quantization scales fp8 by the standard deviation of values, which TensorRT does not take"
        yield view.problem(("quantize", "tool"), text, "use builtin or modelopt, or leave it out")
    if view.get("quantize", "tool") == "modelopt":
        yield from _left_to_modelopt(view)
    algorithm = view.get("calibration", "algorithm") or _CALIBRATORS[0]
    if _is_implicit(engine) and algorithm not in _CALIBRATORS:
        text = f"TensorRT's own calibrators are entropy and minmax, and the engine {engine.get('name')} uses one"
        hint = "use one of these, or quantization: explicit for the engine"
        yield view.problem(("calibration", "algorithm"), text, hint)


def _is_implicit(engine: dict[str, Any]) -> bool:
    """Tell whether an engine's builder calibrates, whatever its version is."""
    asked = engine.get("quantization", "auto")
    return asked == "implicit" or (asked == "auto" and engine.get("typing") == "weak")


def _has_calibrated_layers(engine: dict[str, Any]) -> bool:
    return engine.get("quantization") == "implicit" and bool(int8_layers(engine))


def _left_to_modelopt(view: View) -> Iterator[Problem]:
    for field, usual in (("per_channel", True), ("outputs", False)):
        if view.get("quantize", field) not in (None, usual):
            text = "ModelOpt decides this itself"
            yield view.problem(
                ("quantize", field),
                text,
                "remove it, or use tool: builtin or onnxruntime",
                of_key=True,
            )
    if view.get("calibration", "algorithm") == "percentile":
        text = "ModelOpt has no percentile"
        yield view.problem(
            ("calibration", "algorithm"), text, "use entropy or minmax, or another quantize.tool"
        )


def _example(view: View) -> str:
    """Return the section to add, for the inputs of this model."""
    entries = (
        f"{name}: {_example_data(shape)}" for name, shape in shapes_after_surgery(view).items()
    )
    return f"add calibration: {{data: {{{', '.join(entries)}}}}}"


def _example_data(shape: list[Any]) -> str:
    image = len(shape) == 4 and shape[1] in (1, 3)
    return "{images: data/calibration}" if image else "{npz: data/calibration.npz}"


def _calibration(view: View) -> Iterator[Problem]:
    shapes = shapes_after_surgery(view)
    for name in view.map("calibration", "data"):
        key = ("calibration", "data", name)
        if name not in shapes:
            yield view.problem(
                key, f"no input is named {name}", suggest(name, shapes, what="inputs"), of_key=True
            )
            continue
        found = data_problem(view.get("inputs", name, "dtype") or "float32", view.get(*key))
        if found:
            field, text, hint = found
            yield view.problem((*key, *((field,) if field else ())), text, hint)
    for name in shapes:
        if name not in view.map("calibration", "data") and view.get("inputs", name, "data") is None:
            text = f"there is no calibration data for the input {name}"
            entry = f"{name}: {_example_data(shapes[name])}"
            yield view.problem(("calibration",), text, f"add data: {{{entry}}}")
    algorithm = view.get("calibration", "algorithm") or _CALIBRATORS[0]
    percentile = view.get("calibration", "percentile")
    if percentile not in (None, DEFAULT_PERCENTILE) and algorithm in _CALIBRATORS:
        text = f"ignored with algorithm: {algorithm}"
        yield view.problem(
            ("calibration", "percentile"),
            text,
            "remove it, or set algorithm: percentile",
            of_key=True,
        )
    yield from _batch_size(view, shapes)


def _batch_size(view: View, shapes: dict[str, list[Any]]) -> Iterator[Problem]:
    size, key = view.get("calibration", "batch_size"), ("calibration", "batch_size")
    if not isinstance(size, int):
        return
    for name, shape in shapes.items():
        first = shape[0] if shape else None
        span = view.map("dims", first) if isinstance(first, str) else {}
        if not isinstance(first, str):
            shown = f"is {first}" if shape else "does not exist"
            text = f"the first dimension of the input {name} {shown}, and cannot be set"
            yield view.problem(
                key, text, "remove it: a batch has the shape of the input", of_key=True
            )
        elif (
            {"min", "max"} <= span.keys()
            and _all_ints(span)
            and not span["min"] <= size <= span["max"]
        ):
            yield view.problem(
                key, f"{size} is outside the range of {first} ({span['min']} to {span['max']})"
            )


def _all_ints(span: dict[str, Any]) -> bool:
    return isinstance(span["min"], int) and isinstance(span["max"], int)
