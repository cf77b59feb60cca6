"""What must hold between the fields of one engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from buildsys.manifest.problem import Problem, suggest
from buildsys.manifest.surgery_checks import shapes_after_surgery
from buildsys.manifest.tree import Key

if TYPE_CHECKING:
    from buildsys.manifest.checks import View

_DLA_ONLY = ("gpu_fallback", "dla_managed_sram", "dla_local_dram", "dla_global_dram")


def engine_problems(view: View) -> Iterator[Problem]:
    """Yield what is wrong between the fields of TensorRT engines."""
    for index, engine in enumerate(view.list("engines")):
        if isinstance(engine, dict) and engine.get("backend") in ("tensorrt", "tensorrt_rtx"):
            yield from _io(view, ("engines", index), engine)
        if isinstance(engine, dict) and engine.get("backend") == "tensorrt":
            yield from _typing(view, ("engines", index), engine)
            yield from _needed(view, ("engines", index), engine)


def _typing(view: View, key: Key, engine: dict[str, Any]) -> Iterator[Problem]:
    if engine.get("typing") == "strong" and engine.get("layer_precisions"):
        text = "a strongly typed engine has the types of the graph, layer by layer"
        yield view.problem((*key, "layer_precisions"), text, "remove it, or set typing: weak", of_key=True)
    if engine.get("typing") == "weak" and engine.get("weight_streaming") is True:
        text = "only strongly typed engines stream their weights"
        yield view.problem((*key, "weight_streaming"), text, "set typing: strong", of_key=True)
    if engine.get("typing") == "weak" and engine.get("precision") == "fp8":
        text = "no builder takes fp8 as a choice of its own"
        yield view.problem((*key, "typing"), text, "set typing: strong, or leave it out")


def _needed(view: View, key: Key, engine: dict[str, Any]) -> Iterator[Problem]:
    for field in _DLA_ONLY:
        if engine.get(field) not in (None, False) and engine.get("dla_core") is None:
            text = "has no effect without dla_core"
            yield view.problem((*key, field), text, "set dla_core, or remove it", of_key=True)
    if engine.get("exclude_lean_runtime") is True and engine.get("version_compatible") is not True:
        text = "only a version compatible engine has a lean runtime to leave out"
        yield view.problem((*key, "exclude_lean_runtime"), text, "set version_compatible: true as well", of_key=True)
    if engine.get("workspace") == 0:
        yield view.problem((*key, "workspace"), "no memory to work in", "give it a size such as 4GiB, or leave it out")


def _io(view: View, key: Key, engine: dict[str, Any]) -> Iterator[Problem]:
    formats = engine.get("io")
    if not isinstance(formats, dict):
        return
    declared = view.map("outputs")
    known = [*shapes_after_surgery(view), *declared]
    for name in formats:
        if declared and name not in known:  # without declared outputs, their names are known when it is built
            hint = suggest(str(name), known, what="inputs and outputs")
            yield view.problem((*key, "io", name), f"no input or output is named {name}", hint, of_key=True)
