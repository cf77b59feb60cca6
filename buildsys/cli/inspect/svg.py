"""``doit inspect:MODEL --svg FILE``: a picture of a graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from buildsys.cli.explain.explain import write_json
from buildsys.cli.inspect.graph_names import GraphFile
from buildsys.cli.inspect.onnx_process import ask, graph_request
from buildsys.errors import UsageError
from buildsys.report.formatting import count

if TYPE_CHECKING:
    from buildsys.cli.inspect.command import Asked

SCHEMA = "buildsys/picture/1"


def draw(graph: GraphFile, model: str, asked: Asked, out: TextIO) -> None:
    """Write the picture and say what it shows.

    Raises: UsageError: the graph has no such node or tensor, or is none that can be drawn.
    """
    if not graph.is_onnx:
        raise UsageError(
            f"{graph.target} is a TensorRT engine, which keeps no graph that could be drawn"
        )
    wanted = {
        "from": asked.begin,
        "to": asked.end,
        "depth": int(asked.depth) if asked.depth else None,
    }
    answer = ask(
        "draw", {"graph": graph_request(graph), "title": f"{model}: {graph.asked}", **wanted}
    )
    path = Path(asked.svg)
    path.write_text(answer.pop("svg"), encoding="utf-8")
    if asked.as_json:
        write_json(
            out,
            {
                "schema": SCHEMA,
                "model": model,
                "graph": graph.as_json(),
                "svg": str(path),
                **answer,
            },
        )
        return
    if graph.note:
        out.write(f"{graph.note}\n")
    more = (
        "; --from, --to and --depth show parts of it one by one"
        if answer["boxes"] < answer["nodes"]
        else ""
    )
    out.write(
        f"wrote {path}: {count(answer['nodes'])} nodes in {count(answer['boxes'])} boxes{more}\n"
    )
