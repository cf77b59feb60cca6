"""Call a hook of the project with a graph, and take back what it returns."""

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
    """Return what the hook makes of ``model``, which it may change.

    Raises: StageError: the file or function is not there, takes other parameters, raises, or returns no graph.
    """
    reference, kind = step["function"], step["graph"]
    surgeon = _graphsurgeon(reference) if kind == "graphsurgeon" else None
    hook = load_callable(reference, project)
    check_parameters(hook, reference, 1, "a surgery hook takes one, the graph", "def f(graph): …")
    ir_version = model.ir_version
    with reraise_as_stage_error(f"{reference} failed", project):
        given = surgeon.import_onnx(model) if surgeon else model
        returned = hook(given)
        if surgeon and isinstance(returned, surgeon.Graph):
            returned = surgeon.export_onnx(returned)
            returned.ir_version = ir_version  # it writes the newest, which runtimes need not know
    if isinstance(returned, ModelProto):
        return returned
    hint = "end it with: return graph" if returned is None else f"return {_KINDS[kind]}"
    what = "nothing" if returned is None else with_article(type(returned).__name__)
    raise StageError(
        f"{reference} returned {what}; a surgery hook returns the graph to go on with", hint
    )


def _graphsurgeon(reference: str) -> ModuleType:
    try:
        import onnx_graphsurgeon
    except ImportError as error:
        raise StageError(
            f"{reference} wants an onnx-graphsurgeon graph, and onnx-graphsurgeon is not installed ({error})",
            "pip install onnx-graphsurgeon",
        ) from error
    module: ModuleType = onnx_graphsurgeon
    return module
