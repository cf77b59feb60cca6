"""Hooks: functions of the project for changing a graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from onnx import ModelProto

from buildsys.errors import StageError
from buildsys.models.user_code import (
    check_parameters,
    load_callable,
    reraise_as_stage_error,
    with_article,
)

_KINDS = {"onnx": "an onnx.ModelProto", "graphsurgeon": "an onnx-graphsurgeon graph"}


def call_hook(model: ModelProto, step: Mapping[str, Any], project: Path) -> ModelProto:
    """Return the hook's graph; the hook may change ``model``.

    Raises: StageError: the function is missing, has other parameters, raises or returns no graph.
    """
    reference, kind = step["function"], step["graph"]
    surgeon = _graphsurgeon(reference) if kind == "graphsurgeon" else None
    hook = load_callable(reference, project)
    check_parameters(hook, reference, 1, "a surgery hook takes one, the graph", "def f(graph): …")
    ir_version = model.ir_version
    with reraise_as_stage_error(f"{reference} failed", project):
        returned = hook(surgeon.import_onnx(model) if surgeon else model)
        if surgeon and isinstance(returned, surgeon.Graph):
            returned = surgeon.export_onnx(returned)
            returned.ir_version = ir_version  # its default, the newest, is too new for runtimes
    if isinstance(returned, ModelProto):
        return returned
    hint = "end it with: return graph" if returned is None else f"return {_KINDS[kind]}"
    what = "nothing" if returned is None else with_article(type(returned).__name__)
    raise StageError(f"{reference} returned {what}; a surgery hook returns the graph", hint)


def _graphsurgeon(reference: str) -> ModuleType:
    try:
        import onnx_graphsurgeon
    except ImportError as error:
        raise StageError(
            f"{reference} needs onnx-graphsurgeon, which is not installed ({error})",
            "pip install onnx-graphsurgeon",
        ) from error
    module: ModuleType = onnx_graphsurgeon
    return module
