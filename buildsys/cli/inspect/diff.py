"""``doit diff MODEL A B``: what differs between two graphs of a model, of two stages or of two builds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from buildsys.cli.explain.explain import write_json
from buildsys.cli.inspect.diff_text import diff_lines
from buildsys.cli.inspect.graph_names import GraphFiles
from buildsys.cli.inspect.onnx_process import ask, graph_request
from buildsys.cli.name_suggestions import known_model
from buildsys.cli.targets import open_project
from buildsys.errors import UsageError

SCHEMA = "buildsys/diff/1"
_DEFAULT = ("export", "simplify")


def diff_graphs(root: Path, arguments: Sequence[str], out: TextIO, *, as_json: bool) -> None:
    """Print what differs between two graphs; without their names, between the exported and the simplified one.

    One name stands for an earlier build and the graph of that stage as it is now.

    Raises: ManifestErrors: the manifests are wrong. UsageError: no such model, stage or build.
    StageError: a graph is not built, not stored any more, or cannot be read.
    """
    model, names = (arguments[0], list(arguments[1:])) if arguments else ("", [])
    session = open_project(root)
    known_model("diff", session.project.models, [model] if model else [])
    files = GraphFiles(session, model)
    graphs = [files.find(name) for name in _both(names)]
    for graph in graphs:
        if not graph.is_onnx:
            raise UsageError(
                f"{graph.target} is a TensorRT engine, which keeps no graph that could be compared"
            )
    answer = ask(
        "compare",
        {
            side: graph_request(graph)
            for side, graph in zip(("first", "second"), graphs, strict=True)
        },
    )
    document = {
        "schema": SCHEMA,
        "model": model,
        "graphs": [graph.as_json() for graph in graphs],
        **answer,
    }
    if as_json:
        write_json(out, document)
        return
    notes = [graph.note for graph in graphs if graph.note]
    out.writelines(f"{line}\n" for line in (*dict.fromkeys(notes), *diff_lines(document)))


def _both(names: Sequence[str]) -> Sequence[str]:
    if len(names) == 2:
        return names
    if not names:
        return _DEFAULT
    stage = names[0].partition("@")[0].partition("~")[0]
    if len(names) > 2 or stage == names[0]:
        raise UsageError(
            "diff takes a model and the names of two graphs",
            "`doit diff MODEL export simplify` compares stages, `doit diff MODEL simplify~1 simplify` builds",
        )
    return (names[0], stage)
