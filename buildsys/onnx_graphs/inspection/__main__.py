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
from buildsys.onnx_graphs.inspection.load import (
    content_digests,
    drop_weights,
    load_graph,
    plain_model,
)
from buildsys.onnx_graphs.inspection.plain_graph import PlainModel
from buildsys.onnx_graphs.inspection.shapes import with_shapes

Request = Mapping[str, Any]
Answer = dict[str, Any]


def _describe(request: Request) -> Answer:
    return describe(_light(request["graph"]), request["dims"])


def _compare(request: Request) -> Answer:
    first, second = (_with_contents(request[side]) for side in ("first", "second"))
    return compare(first, second)


def _draw(request: Request) -> Answer:
    network = plain_model(with_shapes(_light(request["graph"])))
    svg, shown = draw(
        network.body, request["title"], request["from"], request["to"], request["depth"]
    )
    return {"svg": svg, **shown}


def _first_differences(request: Request) -> Answer:
    found = [
        first_difference(Path(pair["first"]), Path(pair["second"]), pair["first_byte"])
        for pair in request["pairs"]
    ]
    return {"differences": found}


def _with_contents(graph: Mapping[str, Any]) -> PlainModel:
    model = load_graph(Path(graph["file"]))
    with content_digests(Path(graph["data"]) if graph["data"] else None) as digest:
        drop_weights(model, digest)
    return plain_model(with_shapes(model))


def _light(graph: Mapping[str, Any]) -> ModelProto:
    model = load_graph(Path(graph["file"]))
    drop_weights(model)
    return model


_QUESTIONS: Mapping[str, Callable[[Request], Answer]] = {
    "describe": _describe,
    "compare": _compare,
    "draw": _draw,
    "first_differences": _first_differences,
}


def answer(request: Request) -> Answer:
    """Return the answer to one request."""
    try:
        return _QUESTIONS[request["question"]](request)
    except (StageError, UsageError) as error:
        return {"error": error.problem, "hint": error.hint, "usage": isinstance(error, UsageError)}


if __name__ == "__main__":
    json.dump(answer(json.load(sys.stdin)), sys.stdout)
