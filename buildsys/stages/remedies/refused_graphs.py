"""What to say of a graph that a backend refused: each operator with the user's line, and the rungs that apply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from buildsys.backends.interface import BuildRequest, GraphRefusedError, UnsupportedNode
from buildsys.errors import StageError
from buildsys.onnx_graphs.source_origins import Origin, origin_of, read_origins
from buildsys.stages.remedies.remedies import OnnxOperator, hint, refusal_rungs
from buildsys.stages.remedies.shipped_plugins import files_of
from buildsys.workers.job import Job

_OWN_DOMAINS = ("", "ai.onnx")


def explained(refusal: GraphRefusedError, request: BuildRequest, job: Job) -> StageError:
    """Return the refusal with, for each operator, where its first node comes from and what to do.

    Reads the graph again: only who failed pays for it. Without the library onnx the refusal stays as it is.
    """
    try:
        graph = _Graph(request.onnx, read_origins(job.advisory.get("origins")))
    except (ImportError, StageError):
        return StageError(refusal.problem, refusal.hint)
    files = files_of(job.project)
    declared = (
        {"ops"} if "operators" in job.options else set()
    )  # of other sections it is not known here
    groups = []
    for alike in _by_operator(refusal.nodes):
        operator, opset = graph.operator(alike[0]), graph.opset
        rungs = refusal_rungs(
            operator, request.options["backend"], opset, files=files, declared=declared
        )
        groups.append((_about(operator, alike, graph), rungs))
    return StageError(refusal.problem, hint(groups))


class _Graph:
    """The graph as it was refused."""

    def __init__(self, file: Path, origins: Mapping[str, Origin]) -> None:
        from buildsys.onnx_graphs.onnx_file import (  # not everybody who builds engines has onnx
            all_nodes,
            load_model,
            opsets,
        )

        model = load_model(file, external_data=False)
        self.opset = opsets(model).get("ai.onnx", 0)
        self._nodes = list(all_nodes(model.graph))
        self._outer = list(model.graph.node)
        self._functions = [node for function in model.functions for node in function.node]
        self._producers = {name: node for node in self._nodes for name in node.output if name}
        self._origins = origins

    def operator(self, refused: UnsupportedNode) -> OnnxOperator:
        """Return the operator of a refused node with its domain."""
        found = self._find(refused)
        domain = "" if found is None or found.domain in _OWN_DOMAINS else str(found.domain)
        return OnnxOperator(domain, refused.operator, refused.since)

    def origin(self, refused: UnsupportedNode) -> Origin | None:
        """Return where a refused node, or the function that it lies in, comes from in the user's code."""
        calls = (
            node
            for node in self._nodes
            if refused.functions and node.op_type == refused.functions[0]
        )
        node = next(calls, None) if refused.functions else self._find(refused)
        return None if node is None else origin_of(node, self._producers, self._origins)

    def _find(self, refused: UnsupportedNode) -> Any:
        return next(self._candidates(refused), None)

    def _candidates(self, refused: UnsupportedNode) -> Iterator[Any]:
        """Yield the nodes that a refused one may be, the surest first."""
        alike = [
            node for node in (*self._nodes, *self._functions) if node.op_type == refused.operator
        ]
        yield from (node for node in alike if refused.output and refused.output in node.output)
        yield from (node for node in alike if refused.name and refused.name == node.name)
        if refused.index is not None and refused.index < len(self._outer):
            yield from (node for node in alike if node is self._outer[refused.index])
        yield from alike


def _by_operator(nodes: tuple[UnsupportedNode, ...]) -> list[list[UnsupportedNode]]:
    found: dict[str, list[UnsupportedNode]] = {}
    for node in nodes:
        found.setdefault(node.operator, []).append(node)
    return list(found.values())


def _about(operator: OnnxOperator, nodes: list[UnsupportedNode], graph: _Graph) -> str:
    """Return ``DeformConv of opset 19: 2 nodes, the first from plugins/models/net.py:12``."""
    origin = graph.origin(nodes[0])
    count = f"{len(nodes)} nodes, the first" if len(nodes) > 1 else "1 node,"
    return (
        f"{operator.qualified}: {count} from {origin}"
        if origin
        else f"{operator.qualified}: {count.strip(',')}"
    )
