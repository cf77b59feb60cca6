"""``doit inspect:MODEL[:STAGE]``: what a graph consists of, on a screen, as JSON or as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from buildsys.cli.explain.explain import write_json
from buildsys.cli.inspect.graph_names import GraphFile, GraphFiles, read_result
from buildsys.cli.inspect.inspect_text import (
    engine_lines,
    graph_lines,
    node_lines,
    node_table,
    tensor_lines,
)
from buildsys.cli.inspect.onnx_process import ask, graph_request
from buildsys.cli.name_suggestions import known_model
from buildsys.cli.session import Session
from buildsys.cli.targets import open_project
from buildsys.errors import UsageError
from buildsys.manifest.shape_cases import shape_cases
from buildsys.system.suggestions import nearest

SCHEMA = "buildsys/inspect/1"
PREFIX = "inspect:"
DEFAULT_STAGE = "simplify"


@dataclass(frozen=True)
class Asked:
    """What the command line asks for; "" and False where it does not."""

    name: str  # MODEL[:STAGE]
    as_json: bool = False
    nodes: bool = False
    node: str = ""
    tensor: str = ""
    svg: str = ""
    begin: str = ""  # where a picture begins: a tensor or node
    end: str = ""
    depth: str = ""


def asked_name(arguments: Sequence[str]) -> str:
    """Return the one MODEL[:STAGE] of a command line, with or without ``inspect:`` before it.

    Raises: UsageError: there is none, or more than one.
    """
    if len(arguments) != 1:
        raise UsageError(
            "inspect takes one MODEL or MODEL:STAGE", "for example `doit inspect:resnet50:export`"
        )
    return arguments[0].removeprefix(PREFIX)


def inspect_graph(root: Path, asked: Asked, out: TextIO) -> None:
    """Print what there is to tell of a graph, or draw it.

    Raises: ManifestErrors: the manifests are wrong. UsageError: no such model, stage, node or tensor.
    StageError: the graph is not built, or cannot be read.
    """
    _check_options(asked)
    session = open_project(root)
    model, _, stage = asked.name.partition(":")
    known_model("inspect", session.project.models, [model] if model else [])
    graph = GraphFiles(session, model).find(stage or DEFAULT_STAGE)
    if asked.svg:
        from buildsys.cli.inspect.svg import draw

        draw(graph, model, asked, out)
    elif graph.is_onnx:
        _tell_graph(session, graph, model, asked, out)
    else:
        _tell_engine(graph, model, asked, out)


def opt_dims(session: Session, model: str) -> dict[str, int]:
    """Return the sizes of dynamic dimensions that engines are built for."""
    dims = shape_cases(session.project.models[model].data["dims"], ("opt",))
    return next(iter(dims.values()))


def _check_options(asked: Asked) -> None:
    several = [f"--{name}" for name in ("nodes", "node", "tensor", "svg") if getattr(asked, name)]
    if len(several) > 1:
        raise UsageError(f"{' and '.join(several)} are different answers", "name one of them")
    if not asked.svg and (asked.begin or asked.end or asked.depth):
        raise UsageError("--from, --to and --depth choose what a picture shows", "add --svg FILE")
    if asked.depth and not (asked.depth.isdecimal() and int(asked.depth) > 0):
        raise UsageError(f"--depth takes a number from 1 on, not {asked.depth!r}")


def _tell_graph(session: Session, graph: GraphFile, model: str, asked: Asked, out: TextIO) -> None:
    answer = ask("describe", {"graph": graph_request(graph), "dims": opt_dims(session, model)})
    document = {"schema": SCHEMA, "model": model, "graph": graph.as_json(), **answer}
    if asked.node:
        told = [_with_tensors(node, document) for node in _chosen_nodes(document, asked.node)]
        lines = [line for node in told for line in node_lines(node)]
        document = {"schema": SCHEMA, "model": model, "graph": graph.as_json(), "nodes": told}
    elif asked.tensor:
        name = _known("tensor", asked.tensor, document["tensors"])
        lines = tensor_lines(name, document["tensors"][name])
        document = {key: document[key] for key in ("schema", "model", "graph")} | {
            "tensors": {name: document["tensors"][name]}
        }
    else:
        lines = node_table(document) if asked.nodes else graph_lines(document)
    _tell(graph, document, lines, asked, out)


def _tell(
    graph: GraphFile, document: Mapping[str, Any], lines: Sequence[str], asked: Asked, out: TextIO
) -> None:
    if asked.as_json:
        write_json(out, document)
        return
    out.writelines(f"{line}\n" for line in (*([graph.note] if graph.note else []), *lines))


def _tell_engine(graph: GraphFile, model: str, asked: Asked, out: TextIO) -> None:
    if asked.node or asked.tensor or asked.nodes:
        raise UsageError(
            f"{graph.target} is a TensorRT engine, which tells of no nodes",
            "its graph is that of an earlier stage",
        )
    figures = read_result(graph)
    document = {"schema": SCHEMA, "model": model, "graph": graph.as_json(), "engine": figures}
    _tell(graph, document, engine_lines(graph, figures), asked, out)


def _chosen_nodes(document: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return the nodes of a name: a node's own, or a tensor that it makes.

    Raises: UsageError: there is none.
    """
    nodes: list[Mapping[str, Any]] = document["nodes"]
    found = [node for node in nodes if node["name"] == name] or [
        node for node in nodes if name in node["outputs"]
    ]
    if not found:
        _known("node", name, [node["label"] for node in nodes])
    return found


def _known(kind: str, name: str, known: Any) -> str:
    if name in known:
        return name
    near = nearest(name, known)
    hint = f"nearest: {', '.join(near)}" if near else "`--nodes` tells all nodes and their tensors"
    raise UsageError(f"the graph has no {kind} {name!r}", hint)


def _with_tensors(node: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node with what is known of each of its tensors."""
    tensors, inside = document["tensors"], node["inside"]
    names = [name for name in (*node["inputs"], *node["outputs"]) if name]
    return {
        **node,
        "tensors": {name: tensors.get(f"{inside}:{name}") or tensors.get(name) for name in names},
    }
