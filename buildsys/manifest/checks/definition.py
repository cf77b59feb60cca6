"""Checks of networks defined by hand, ``source: {tensorrt: FILE.py:FUNCTION}``."""

from __future__ import annotations

from typing import Any

from buildsys.manifest.backend_choices import is_auto
from buildsys.manifest.checks.view import REFUSED, ManifestView
from buildsys.manifest.graph_sections import GRAPH_SECTIONS
from buildsys.manifest.problem import Problems, show_value
from buildsys.manifest.value_tree import FieldPath
from buildsys.system.backend_registry import describe_backend, find_package

_WEIGHTS = ".npz"


def definition_problems(view: ManifestView) -> Problems:
    """Yield what a network defined by hand does not have."""
    if not view.is_defined:
        return
    for section in GRAPH_SECTIONS:
        if view.get(section) not in (None, REFUSED, {}, []) and view.is_own(section):
            text = "changes or makes an ONNX graph, and the network of source.tensorrt is none"
            yield view.problem((section,), text, "remove it", of_key=True)
    file = view.get("source", "weights", "file")
    if isinstance(file, str) and not file.endswith(_WEIGHTS):
        text = f"the weights of a network defined by hand are an {_WEIGHTS} file, not {file}"
        yield view.problem(("source", "weights", "file"), text, "save them with numpy.savez")
    for path, engine in view.maps("engines", ...):
        yield from _engine_problems(view, path, engine)


def _engine_problems(view: ManifestView, path: FieldPath, engine: dict[str, Any]) -> Problems:
    backend = engine.get("backend")
    if not isinstance(backend, str) or find_package(backend) is None:
        return
    description = describe_backend(backend)
    if not description.takes_definition:
        if not description.problem:
            # an engine preset is named in this manifest, but has its backend elsewhere
            field = "backend" if view.is_own(*path, "backend") else "name"
            text = f"{description.title} cannot build a network defined with TensorRT's API"
            hint = "use backend: tensorrt, or make the reference the source of another model"
            yield view.problem((*path, field), text, hint)
        return
    if is_auto(engine):
        text = f"{show_value(engine['precision'])} searches nodes of an ONNX graph, and the"
        hint = "name a precision such as fp16, and its exceptions in layer_precisions"
        yield view.problem((*path, "precision"), f"{text} network of source.tensorrt is none", hint)
    if engine.get("quantization") == "implicit":
        text = "the quantize layers of a network defined by hand decide what is int8"
        hint = "add them in the function of source.tensorrt, and remove quantization"
        yield view.problem((*path, "quantization"), text, hint)
