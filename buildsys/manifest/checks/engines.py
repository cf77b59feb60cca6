"""What must hold between the fields of one engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_args

from buildsys.manifest.checks.surgery import shapes_after_surgery
from buildsys.manifest.problem import Problem, suggest
from buildsys.manifest.schema.base import QUANTIZED, Precision
from buildsys.manifest.value_tree import Key

if TYPE_CHECKING:
    from buildsys.manifest.checks.model import View

_UNQUANTIZED = tuple(precision for precision in get_args(Precision) if precision not in QUANTIZED)
_DLA_ONLY = ("gpu_fallback", "dla_managed_sram", "dla_local_dram", "dla_global_dram")


def engine_problems(view: View) -> Iterator[Problem]:
    """Yield what is wrong between the fields of TensorRT engines."""
    for index, engine in enumerate(view.list("engines")):
        if isinstance(engine, dict) and engine.get("backend") in ("tensorrt", "tensorrt_rtx"):
            yield from _io(view, ("engines", index), engine)
        if isinstance(engine, dict) and engine.get("backend") == "tensorrt":
            yield from _typing(view, ("engines", index), engine)
            yield from _quantization(view, ("engines", index), engine)
            yield from _needed(view, ("engines", index), engine)


def _typing(view: View, key: Key, engine: dict[str, Any]) -> Iterator[Problem]:
    if engine.get("typing") == "strong" and engine.get("layer_precisions"):
        text = "a strongly typed engine has the types of the graph, layer by layer"
        yield view.problem(
            (*key, "layer_precisions"), text, "remove it, or set typing: weak", of_key=True
        )
    if engine.get("typing") == "weak" and engine.get("weight_streaming") is True:
        text = "only strongly typed engines stream their weights"
        yield view.problem((*key, "weight_streaming"), text, "set typing: strong", of_key=True)
    if engine.get("typing") == "weak" and engine.get("precision") == "fp8":
        text = "no builder takes fp8 as a choice of its own"
        yield view.problem((*key, "typing"), text, "set typing: strong, or leave it out")


def _quantization(view: View, key: Key, engine: dict[str, Any]) -> Iterator[Problem]:
    asked, precision = engine.get("quantization"), engine.get("precision", "fp32")
    if asked == "explicit" and precision in _UNQUANTIZED:
        text = f"only graphs of {' and '.join(QUANTIZED)} have quantizers, and the engine's precision is {precision}"
        yield view.problem((*key, "quantization"), text, "set precision: int8, or leave it out")
    if asked == "explicit" and engine.get("typing") != "strong":
        for number in int8_layers(engine):
            text = "the quantizers of the graph say which layers are in int8"
            hint = "remove it, and choose layers with quantize.exclude and quantize.operators"
            yield view.problem((*key, "layer_precisions", number, "precision"), text, hint)
    if asked == "implicit" and engine.get("typing") == "strong":
        text = (
            "a strongly typed engine has the types of the graph, and its builder calibrates nothing"
        )
        yield view.problem(
            (*key, "quantization"), text, "set typing: weak, or quantization: explicit"
        )
    elif asked == "implicit" and (
        precision == "fp8" or (precision in _UNQUANTIZED and not int8_layers(engine))
    ):
        text = f"builders calibrate int8 alone, and the engine's precision is {precision}"
        other = "quantization: explicit" if precision == "fp8" else "precision: int8"
        yield view.problem((*key, "quantization"), text, f"set {other}, or leave it out")


def int8_layers(engine: dict[str, Any]) -> list[int]:
    """Return which entries of an engine's layer precisions are int8."""
    entries = engine.get("layer_precisions")
    given = enumerate(entries) if isinstance(entries, list) else ()
    return [
        number
        for number, entry in given
        if isinstance(entry, dict) and entry.get("precision") == "int8"
    ]


def _needed(view: View, key: Key, engine: dict[str, Any]) -> Iterator[Problem]:
    for field in _DLA_ONLY:
        if engine.get(field) not in (None, False) and engine.get("dla_core") is None:
            text = "has no effect without dla_core"
            yield view.problem((*key, field), text, "set dla_core, or remove it", of_key=True)
    if engine.get("exclude_lean_runtime") is True and engine.get("version_compatible") is not True:
        text = "only a version compatible engine has a lean runtime to leave out"
        yield view.problem(
            (*key, "exclude_lean_runtime"),
            text,
            "set version_compatible: true as well",
            of_key=True,
        )
    if engine.get("workspace") == 0:
        yield view.problem(
            (*key, "workspace"),
            "no memory to work in",
            "give it a size such as 4GiB, or leave it out",
        )


def _io(view: View, key: Key, engine: dict[str, Any]) -> Iterator[Problem]:
    formats = engine.get("io")
    if not isinstance(formats, dict):
        return
    declared = view.map("outputs")
    known = [*shapes_after_surgery(view), *declared]
    for name in formats:
        if (
            declared and name not in known
        ):  # without declared outputs, their names are known when it is built
            hint = suggest(str(name), known, what="inputs and outputs")
            yield view.problem(
                (*key, "io", name), f"no input or output is named {name}", hint, of_key=True
            )
