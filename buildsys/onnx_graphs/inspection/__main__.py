"""Child process for questions about graphs: ``python -m buildsys.onnx_graphs.inspection``.

The request on stdin is JSON with ``question`` and its arguments. The
answer on stdout is JSON as well; a user error is ``{"error": problem, "hint": …}``.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx import ModelProto

from buildsys.errors import StageError, UsageError
from buildsys.onnx_graphs.inspection.describe import describe
from buildsys.onnx_graphs.inspection.diff import compare
from buildsys.onnx_graphs.inspection.drawing import draw
from buildsys.onnx_graphs.inspection.graph import PlainModel, plain_model
from buildsys.onnx_graphs.inspection.values import describe_values
from buildsys.onnx_graphs.onnx_file import load_model
from buildsys.system.programs import render_svg

_LONGEST = 200  # characters of an exception
_HINT = "if buildsys built it, `buildsys cache verify` and a rebuild replace it"


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer one request."""
    try:
        match request["question"]:
            case "describe":
                graph, proto = request["graph"], _read(request["graph"])
                described = describe(proto, request["dims"])
                if pattern := request.get("values"):
                    data = Path(graph["data"] or Path(graph["file"]).parent)
                    described["values"] = describe_values(proto, pattern, data)
                return described
            case "compare":
                return compare(_plain(request["first"]), _plain(request["second"]))
            case "draw":
                body = _plain(request["graph"]).body
                ends = request["from"], request["to"], request["depth"]
                drawing = draw(body, request["title"], *ends)
                size = {"nodes": drawing.nodes, "boxes": drawing.boxes}
                return {"svg": render_svg(drawing.dot), **size}
            case unknown:
                raise ValueError(f"unknown question {unknown!r}")
    except (StageError, UsageError) as error:
        return {"error": error.problem, "hint": error.hint, "usage": isinstance(error, UsageError)}


def respond(request: Mapping[str, Any]) -> str:
    """Answer as JSON; any exception is one sentence."""
    try:
        return json.dumps(answer(request))
    except Exception as error:  # onnx and protobuf raise anything on a damaged graph
        summary = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]
        problem = f"the graph is not valid ({summary[:_LONGEST]})"
        return json.dumps({"error": problem, "hint": _HINT})


def _read(graph: Mapping[str, Any]) -> ModelProto:
    return load_model(Path(graph["file"]), external_data=False)


def _plain(graph: Mapping[str, Any]) -> PlainModel:
    return plain_model(_read(graph), data=Path(graph["data"]) if graph["data"] else None)


if __name__ == "__main__":
    sys.stdout.write(respond(json.load(sys.stdin)))
