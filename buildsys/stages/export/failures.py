"""Exporter failures in plain sentences, with remedies.

An exporter stops at the first operator without a translation and names only that one. The program
it was translating is still in the frames of its exception, so all of them are listed.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from buildsys.backends.operator_support import (
    dynamo_translation,
    operator_schemas,
    operator_versions,
    torchscript_from,
)
from buildsys.errors import StageError
from buildsys.models.user_code import describe_exception, install_hint
from buildsys.onnx_graphs.onnx_file import first_line
from buildsys.stages.common.remedies import (
    NEWEST_TORCHSCRIPT_OPSET,
    OLDEST_DYNAMO_OPSET,
    Remedy,
    export_remedy,
    format_remedies,
    function_remedies,
    opset_remedies,
    registration_remedies,
)
from buildsys.stages.export.origins import source_line

_UNSUPPORTED = re.compile(
    r"operator '(?P<op>[^']+)' to ONNX opset version \d+ is not supported"
    r"|unrecognized namespace (?P<foreign>\w+::\w+)"
    r"|No ONNX function found for <OpOverload\(op='(?P<captured>[^']+)'"
)
_PYTHON_FUNCTION = re.compile(r"Couldn't export Python operator (\w+)|prim::PythonOp")
_DECIDES_BY_VALUE = re.compile(
    r"[Dd]ata-dependent|[Dd]ynamic control flow|GuardOnDataDependentSymNode"
)
_FIXED_SIZE = re.compile(r"inferred a static shape|Constraints violated|your code specialized")
_NOT_IN_OPSET = re.compile(
    r"No Op registered for (?P<op>\w+) with domain_version of (?P<opset>\d+)"
)


@dataclass(frozen=True)
class UntranslatedOperator:
    """An operator without a translation, and its calls."""

    overload: str  # aten::add.Tensor, as in dynamo's registry
    schema: str
    line: str  # the first call; "" if unknown
    count: int = 1

    @property
    def name(self) -> str:
        """The operator without its overload, as symbolic functions are registered."""
        return self.overload.partition(".")[0]

    @property
    def where(self) -> str:
        """E.g. `` (3 nodes, the first at plugins/models/net.py:12)``."""
        places = [self.line] if self.line else []
        if self.count > 1:
            places = [f"{self.count} nodes", *(f"the first at {line}" for line in places)]
        return f" ({', '.join(places)})" if places else ""


def export_failure(
    error: Exception, exporter: str, opset: int, project: Path, *, inlines: bool = True
) -> StageError:
    """Turn an exception of torch.onnx.export into a readable error.

    ``inlines`` is false with ``autograd_inlining: false``.
    """
    causes: list[BaseException] = [error]
    while (inner := causes[-1].__cause__) is not None:
        causes.append(inner)
    for cause in causes:
        if match := _PYTHON_FUNCTION.search(str(cause)):
            problem = f"cannot translate the autograd function {match[1] or ''}"
            remedies = function_remedies(match[1] or "Function", opset, inlines=inlines)
            hint = format_remedies([("", remedies)])
            return StageError(f"the {exporter} exporter {problem}", hint)
        if match := _UNSUPPORTED.search(str(cause)):
            operators = untranslated_operators(error, project)
            if not operators:
                name = next(filter(None, match.groups()))
                name = name.replace(".", "::", 1) if "::" not in name else name
                operators = [UntranslatedOperator(name, "", "")]
            return _untranslated_failure(operators, exporter, opset, project)
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            return StageError(
                f"the {exporter} exporter needs the package {cause.name}", install_hint(cause)
            )
    problem = f"the {exporter} exporter failed at opset {opset}: "
    problem += describe_exception(causes[-1], project)
    node = _failing_node(_frames(error))
    line = "" if node is None else _call(node, project)[2]
    problem += f", on a node of {line}" if line and line not in problem else ""
    hint = "the log has the complete message"
    if _DECIDES_BY_VALUE.search(f"{error}\n{causes[-1]}"):
        hint = (
            "forward decides by the values of a tensor: use torch.where or torch.cond; tracing with"
            " torchscript would keep only the branch of the example"
        )
    elif _FIXED_SIZE.search(str(causes[-1])):  # tracing would fix it without a word
        hint = (
            "forward fixes that size, such as by a Python loop over it or int(): make it a number"
            f" in inputs, or change the code; {hint}"
        )
    else:
        (yaml,) = _other_exporter(exporter, opset).yaml
        hint += f"; the other exporter may take the network ({yaml})"
    return StageError(problem, hint)


def _other_exporter(exporter: str, opset: int) -> Remedy:
    other, fitting_opset = "torchscript", min(opset, NEWEST_TORCHSCRIPT_OPSET)
    if exporter == "torchscript":
        other, fitting_opset = "dynamo", max(opset, OLDEST_DYNAMO_OPSET)
    text = f"{other} translates the network"
    return export_remedy("exporter", text, exporter=other, opset=fitting_opset)


def checker_failure(error: Exception, exporter: str) -> StageError:
    """Turn a rejection by onnx.checker into a readable error."""
    match = _NOT_IN_OPSET.search(str(error))
    if not match:
        problem = f"onnx.checker rejects the file ({exporter}): {first_line(error)}"
        return StageError(problem, "try the other exporter: export: {exporter: …}")
    operator, opset = match["op"], int(match["opset"])
    problem = f"opset {opset} does not have the operator {operator} used in the file ({exporter})"
    remedies = opset_remedies(
        operator, exporter, opset, operator_versions().get(("", operator), ())
    )
    return StageError(problem, format_remedies([("", remedies)]))


def _untranslated_failure(
    operators: Sequence[UntranslatedOperator], exporter: str, opset: int, project: Path
) -> StageError:
    listed = ", ".join(f"{operator.name}{operator.where}" for operator in operators)
    what = f"{len(operators)} operators to opset {opset}: {listed}"
    if len(operators) == 1:
        what = f"the operator {operators[0].name} to opset {opset}{operators[0].where}"
    choices = _translating_exports(operators, exporter, opset)
    groups = [
        (operator.schema, registration_remedies(operator.name, exporter, opset, project))
        for operator in operators
    ]
    if len(operators) == 1:
        groups = [(groups[0][0], [*choices, *groups[0][1]])]
    else:  # a function for one of them leaves the others
        groups = [("", choices), *groups]
    return StageError(f"the {exporter} exporter cannot translate {what}", format_remedies(groups))


def _translating_exports(
    operators: Sequence[UntranslatedOperator], exporter: str, opset: int
) -> list[Remedy]:
    """List the opset and the exporter that translate all ``operators``."""
    lowest = [torchscript_from(operator.name) for operator in operators]
    opsets = [opset for opset in lowest if opset is not None]
    in_torchscript = len(opsets) == len(operators)
    if exporter == "dynamo":
        return [_other_exporter(exporter, max(opset, *opsets))] if in_torchscript else []
    choices = []
    if in_torchscript and max(opsets) > opset:
        text = f"torchscript translates it from opset {max(opsets)} on"
        choices.append(export_remedy("opset", text, opset=max(opsets)))
    translations = [dynamo_translation(operator.overload) for operator in operators]
    if all(translations):
        needed = max(translation.opset or 0 for translation in translations if translation)
        choices.append(_other_exporter(exporter, max(opset, needed)))
    return choices


def untranslated_operators(error: BaseException, project: Path) -> list[UntranslatedOperator]:
    """List the operators in program order; none if no program is found."""
    frames = _frames(error)
    calls = [_call(node, project) for node in (*_traced(frames), *_captured(frames))]
    failing = _failing_node(frames)
    if failing is not None:
        call = _call(failing, project)
        if call[0] not in {overload for overload, _, _ in calls}:
            calls.insert(0, call)
    by_overload: dict[str, list[tuple[str, str, str]]] = {}
    for call in calls:
        by_overload.setdefault(call[0], []).append(call)
    return [UntranslatedOperator(*same[0], count=len(same)) for same in by_overload.values()]


def _frames(error: BaseException) -> list[FrameType]:
    """List the frames of an exception and its causes, innermost first."""
    frames: list[FrameType] = []
    current: BaseException | None = error
    while current is not None:
        frames += [frame for frame, _ in traceback.walk_tb(current.__traceback__)]
        current = current.__cause__
    return frames[::-1]


def _failing_node(frames: Sequence[FrameType]) -> Any:
    nodes = (frame.f_locals.get("node") for frame in frames)
    return next((node for node in nodes if isinstance(node, torch._C.Node | torch.fx.Node)), None)


def _call(node: Any, project: Path) -> tuple[str, str, str]:
    """Describe a node of either program: overload, schema and source line."""
    if isinstance(node, torch.fx.Node):
        schema, trace = str(getattr(node.target, "_schema", "")), node.stack_trace or ""
        name = str(node.target)
    else:
        schema_text = node.schema() if node.schema() != "(no schema)" else ""
        schema = schema_text or next(iter(operator_schemas(node.kind())), "")
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
