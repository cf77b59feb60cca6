"""Child process for questions about graphs: ``python -m buildsys.onnx_graphs.inspection``.

The request on stdin is JSON with ``question`` (a key of ``_QUESTIONS``) and its arguments. The
answer on stdout is JSON as well; a user error is ``{"error": problem, "hint": …}``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from onnx import ModelProto

from buildsys.errors import StageError, UsageError
from buildsys.onnx_graphs.inspection.describe import describe
from buildsys.onnx_graphs.inspection.diff import compare
from buildsys.onnx_graphs.inspection.drawing.svg import draw
from buildsys.onnx_graphs.inspection.first_difference import first_difference
from buildsys.onnx_graphs.inspection.load import content_digests, drop_weights, plain_model
from buildsys.onnx_graphs.inspection.shapes import with_shapes
from buildsys.onnx_graphs.onnx_file import load_model


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to one request."""
    try:
        return _QUESTIONS[request["question"]](request)
    except (StageError, UsageError) as error:
        return {"error": error.problem, "hint": error.hint, "usage": isinstance(error, UsageError)}


def _compare(request: Mapping[str, Any]) -> dict[str, Any]:
    models = []
    for graph in (request["first"], request["second"]):
        model = load_model(Path(graph["file"]), external_data=False)
        with content_digests(Path(graph["data"]) if graph["data"] else None) as digest:
            drop_weights(model, digest)
        models.append(plain_model(with_shapes(model)))
    return compare(*models)


def _light(graph: Mapping[str, Any]) -> ModelProto:
    model = load_model(Path(graph["file"]), external_data=False)
    drop_weights(model)
    return model


def _draw(request: Mapping[str, Any]) -> dict[str, Any]:
    body = plain_model(with_shapes(_light(request["graph"]))).body
    svg, size = draw(body, request["title"], request["from"], request["to"], request["depth"])
    return {"svg": svg, **size}


_QUESTIONS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "describe": lambda request: describe(_light(request["graph"]), request["dims"]),
    "compare": _compare,
    "draw": _draw,
    "first_differences": lambda request: {
        "differences": [
            first_difference(Path(pair["first"]), Path(pair["second"]), pair["first_byte"])
            for pair in request["pairs"]
        ]
    },
}


if __name__ == "__main__":
    json.dump(answer(json.load(sys.stdin)), sys.stdout)
