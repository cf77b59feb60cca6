"""All operators of a network without a translation, with the user's lines.

An exporter stops at the first and names only that one. The program it was translating is still in
the frames of its exception.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from buildsys.backends.operator_support.torch_registries import operator_schemas
from buildsys.stages.export.origins import source_line


@dataclass(frozen=True)
class UntranslatedOperator:
    """An operator without a translation, and its calls."""

    overload: str  # aten::add.Tensor, as in dynamo's registry
    schema: str
    line: str  # of the first call; "" if unknown
    count: int = 1

    @property
    def name(self) -> str:
        """The operator without its overload, as symbolic functions are registered."""
        return self.overload.partition(".")[0]

    @property
    def where(self) -> str:
        """E.g. ``3 nodes, the first at plugins/models/net.py:12``."""
        if self.count == 1:
            return self.line
        return f"{self.count} nodes" + (f", the first at {self.line}" if self.line else "")


def untranslated_operators(error: BaseException, project: Path) -> list[UntranslatedOperator]:
    """Return the operators in program order; none if no program is found."""
    frames = list(_frames(error))
    calls = [_call(node, project) for node in (*_traced(frames), *_captured(frames))]
    failing = next((frame.f_locals["node"] for frame in frames if _has_node(frame)), None)
    if failing is not None:
        call = _call(failing, project)
        if call[0] not in {known[0] for known in calls}:
            calls.insert(0, call)
    by_overload: dict[str, list[tuple[str, str, str]]] = {}
    for call in calls:
        by_overload.setdefault(call[0], []).append(call)
    return [UntranslatedOperator(*same[0], count=len(same)) for same in by_overload.values()]


def failing_line(error: BaseException, project: Path) -> str:
    """Return the user's line of the failing node, or ""."""
    found = next((frame for frame in _frames(error) if _has_node(frame)), None)
    return _call(found.f_locals["node"], project)[2] if found else ""


def _frames(error: BaseException) -> Iterator[FrameType]:
    """Yield the frames of an exception and its causes, innermost first."""
    frames: list[FrameType] = []
    current: BaseException | None = error
    while current is not None:
        traceback = current.__traceback__
        while traceback is not None:
            frames.append(traceback.tb_frame)
            traceback = traceback.tb_next
        current = current.__cause__
    yield from reversed(frames)


def _has_node(frame: FrameType) -> bool:
    return isinstance(frame.f_locals.get("node"), torch._C.Node | torch.fx.Node)


def _call(node: Any, project: Path) -> tuple[str, str, str]:
    """Return overload, schema and source line of a node of either program."""
    if isinstance(node, torch.fx.Node):
        schema, trace = str(getattr(node.target, "_schema", "")), node.stack_trace or ""
        name = str(node.target)
    else:
        known = node.schema() if node.schema() != "(no schema)" else ""
        schema = known or next(iter(operator_schemas(node.kind())), "")
        name, trace = node.kind(), node.sourceRange()
    return schema.partition("(")[0] or name, schema, source_line(trace, project)


def _traced(frames: list[FrameType]) -> Iterator[Any]:
    """Yield traced nodes without a symbolic function for the opset."""
    from torch.onnx._internal.torchscript_exporter._globals import GLOBALS
    from torch.onnx._internal.torchscript_exporter.registration import registry

    optimizing = (f for f in frames if f.f_code.co_name == "_optimize_graph")
    graph = next((frame.f_locals["graph"] for frame in optimizing), None)
    if not isinstance(graph, torch._C.Graph):
        return
    for node in _all_nodes(graph):
        kind = node.kind()
        if not kind.startswith(("prim::", "onnx::")):
            group = registry.get_function_group(kind.removesuffix("_"))
            if group is None or group.get(GLOBALS.export_onnx_opset_version) is None:
                yield node


def _all_nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _all_nodes(inner)


def _captured(frames: list[FrameType]) -> Iterator[Any]:
    """Yield nodes of a captured program without a translation in dynamo's registry."""
    for frame in frames:
        program, registry = frame.f_locals.get("exported_program"), frame.f_locals.get("registry")
        if program is not None and registry is not None and hasattr(registry, "get_decomps"):
            for node in program.graph.nodes:
                is_operator = isinstance(node.target, torch._ops.OpOverload)
                is_call = node.op == "call_function" and is_operator
                if is_call and not registry.get_decomps(node.target):
                    yield node
            return
