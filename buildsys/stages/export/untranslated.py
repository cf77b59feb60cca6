"""Which operators of a network an exporter has no translation for: all of them, with the user's lines.

An exporter stops at the first and names that one alone. The program that it was translating is still there, in the
frames of its exception.
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
class Untranslated:
    """An operator without a translation: its overload, its schema, where it is first called and how often."""

    overload: str  # aten::add.Tensor, as dynamo's registry has it
    schema: str
    line: str  # "" where it is not known
    count: int = 1

    @property
    def name(self) -> str:
        """Return the operator without its overload, as symbolic functions are registered."""
        return self.overload.partition(".")[0]

    @property
    def where(self) -> str:
        """Return ``3 nodes, the first at plugins/models/net.py:12`` with the parts that are worth saying."""
        if self.count == 1:
            return self.line
        return f"{self.count} nodes" + (f", the first at {self.line}" if self.line else "")


def untranslated(error: BaseException, project: Path) -> list[Untranslated]:
    """Return the operators without a translation, in the order of the program; nothing where no program is found."""
    frames = list(_frames(error))
    failing = next(
        (_place(frame.f_locals["node"], project) for frame in frames if _has_node(frame)), None
    )
    calls = [*_traced(frames, project), *_captured(frames, project)]
    if failing and failing[0] not in {call[0] for call in calls}:
        calls.insert(0, failing)
    counts: dict[str, list[tuple[str, str, str]]] = {}
    for call in calls:
        counts.setdefault(call[0], []).append(call)
    return [Untranslated(*same[0], count=len(same)) for same in counts.values()]


def failing_line(error: BaseException, project: Path) -> str:
    """Return the user's line that made the node at which an exporter failed, "" where it is not known."""
    found = next((frame for frame in _frames(error) if _has_node(frame)), None)
    return _place(found.f_locals["node"], project)[2] if found else ""


def _frames(error: BaseException) -> Iterator[FrameType]:
    """Yield the frames of an exception and of those that it came from, the innermost first."""
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


def _place(node: Any, project: Path) -> tuple[str, str, str]:
    """Return overload, schema and source line of a node of either program."""
    if isinstance(node, torch.fx.Node):
        schema = str(getattr(node.target, "_schema", ""))
        return (
            schema.partition("(")[0] or str(node.target),
            schema,
            source_line(node.stack_trace or "", project),
        )
    known = node.schema() if node.schema() != "(no schema)" else ""
    schema = known or next(iter(operator_schemas(node.kind())), "")
    return schema.partition("(")[0] or node.kind(), schema, source_line(node.sourceRange(), project)


def _traced(frames: list[FrameType], project: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the nodes of a traced graph that have no symbolic function for the opset of the export."""
    from torch.onnx._internal.torchscript_exporter._globals import GLOBALS
    from torch.onnx._internal.torchscript_exporter.registration import registry

    def unknown(node: Any) -> bool:
        kind = node.kind()
        if kind.startswith(("prim::", "onnx::")):
            return False
        group = registry.get_function_group(kind.removesuffix("_"))
        return group is None or group.get(GLOBALS.export_onnx_opset_version) is None

    graph = next(
        (f.f_locals["graph"] for f in frames if f.f_code.co_name == "_optimize_graph"), None
    )
    if isinstance(graph, torch._C.Graph):
        yield from (_place(node, project) for node in _all_nodes(graph) if unknown(node))


def _all_nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _all_nodes(inner)


def _captured(frames: list[FrameType], project: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the nodes of a captured program for which dynamo's registry has no translation."""
    for frame in frames:
        program, registry = frame.f_locals.get("exported_program"), frame.f_locals.get("registry")
        if program is not None and registry is not None and hasattr(registry, "get_decomps"):
            for node in program.graph.nodes:
                called = node.op == "call_function" and isinstance(
                    node.target, torch._ops.OpOverload
                )
                if called and not registry.get_decomps(node.target):
                    yield _place(node, project)
            return
