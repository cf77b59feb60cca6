"""Explanation of a backend's refusal, with source lines and remedies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from buildsys.backends.interface import BuildRequest, GraphRefusedError, UnsupportedNode
from buildsys.errors import StageError
from buildsys.onnx_graphs.source_origins import Origin, origin_of, read_origins
from buildsys.stages.remedies.remedies import (
    OnnxOperator,
    format_remedies,
    refusal_remedies,
    shipped_files,
)
from buildsys.workers.job import Job


def explain_refusal(refusal: GraphRefusedError, request: BuildRequest, job: Job) -> StageError:
    """Explain the refusal with the source line and remedies of each operator.

    Reads the graph again, at no cost to a successful build. Without onnx the refusal is unchanged.
    """
    if "program" in job.inputs:
        return _refused_program(refusal, read_origins(job.advisory.get("origins")))
    try:
        graph = _RefusedGraph(request.onnx, read_origins(job.advisory.get("origins")))
    except (ImportError, StageError):
        return StageError(refusal.problem, refusal.hint)
    files = shipped_files(job.project)
    # the options of an engine do not include the manifest's other sections
    declared = {"ops"} if "operators" in job.options else set()
    by_operator: dict[str, list[UnsupportedNode]] = {}
    for node in refusal.nodes:
        by_operator.setdefault(node.operator, []).append(node)
    groups = []
    for nodes in by_operator.values():
        operator = graph.operator(nodes[0])
        remedies = refusal_remedies(
            operator, request.options["backend"], graph.opset, files=files, declared=declared
        )
        origin = graph.origin(nodes[0])
        heading = f"{operator.qualified}: {len(nodes)} node{'s' * (len(nodes) > 1)}"
        if origin:
            heading += f",{' the first' * (len(nodes) > 1)} from {origin}"
        groups.append((heading, remedies))
    return StageError(refusal.problem, format_remedies(groups))


def _refused_program(refusal: GraphRefusedError, origins: Mapping[str, Origin]) -> StageError:
    """Explain a refusal of calls in a captured program, with the user's lines."""
    lines = {
        node.operator: str(origins[node.name]) for node in refusal.nodes if node.name in origins
    }
    places = [f"{operator} is called at {line}" for operator, line in lines.items()]
    remedy = "call other operators in forward, or build this engine with another backend"
    return StageError(refusal.problem, "; ".join([*places, remedy]))


class _RefusedGraph:
    """The nodes of a refused graph with their origins."""

    def __init__(self, file: Path, origins: Mapping[str, Origin]) -> None:
        # an interpreter that builds engines need not have onnx
        from buildsys.onnx_graphs.onnx_file import all_nodes, load_model, opsets

        model = load_model(file, external_data=False)
        self.opset = opsets(model).get("ai.onnx", 0)
        self._nodes = list(all_nodes(model.graph))
        self._outer = list(model.graph.node)
        self._functions = [node for function in model.functions for node in function.node]
        self._producers = {name: node for node in self._nodes for name in node.output if name}
        self._origins = origins

    def operator(self, refused: UnsupportedNode) -> OnnxOperator:
        """Find the operator of a refused node with its domain."""
        node = next(self._candidates(refused), None)
        domain = "" if node is None or node.domain in ("", "ai.onnx") else str(node.domain)
        return OnnxOperator(domain, refused.operator, refused.since, refused.until)

    def origin(self, refused: UnsupportedNode) -> Origin | None:
        """Find the origin of a refused node or its function."""
        nodes = self._candidates(refused)
        if refused.functions:
            nodes = (node for node in self._nodes if node.op_type == refused.functions[0])
        node = next(nodes, None)
        return None if node is None else origin_of(node, self._producers, self._origins)

    def _candidates(self, refused: UnsupportedNode) -> Iterator[Any]:
        """Yield possible nodes for a refused one, the most certain first."""
        nodes = (*self._nodes, *self._functions)
        same = [node for node in nodes if node.op_type == refused.operator]
        yield from (node for node in same if refused.output and refused.output in node.output)
        yield from (node for node in same if refused.name and refused.name == node.name)
        if refused.index is not None and refused.index < len(self._outer):
            yield from (node for node in same if node is self._outer[refused.index])
        yield from same
