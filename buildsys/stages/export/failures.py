"""Exporter failures in plain sentences, with remedies.

An exporter stops at the first operator without a translation and names only that one. The program
it was translating is still in the frames of its exception, so all of them are listed.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from buildsys.backends.operator_support import (
    dynamo_opset,
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


class _Call(NamedTuple):
    """The first call of an operator; schema and line are "" if unknown."""

    overload: str  # aten::add.Tensor, as in dynamo's registry
    schema: str = ""
    line: str = ""

    @property
    def operator(self) -> str:
        """The operator without its overload, as symbolic functions are registered."""
        return self.overload.partition(".")[0]


def export_failure(error: Exception, exporter: str, opset: int, project: Path) -> StageError:
    """Turn an exception of torch.onnx.export into a readable error."""
    causes: list[BaseException] = [error]
    while (inner := causes[-1].__cause__) is not None:
        causes.append(inner)
    frames = [frame for cause in causes for frame, _ in traceback.walk_tb(cause.__traceback__)]
    failing = _failing_calls(frames, project)
    for cause in causes:
        if match := _PYTHON_FUNCTION.search(str(cause)):
            problem = f"cannot translate the autograd function {match[1] or ''}"
            remedies = function_remedies(match[1] or "Function", opset)
            hint = format_remedies([("", remedies)])
            return StageError(f"the {exporter} exporter {problem}", hint)
        if match := _UNSUPPORTED.search(str(cause)):
            calls = [*failing, *_untranslated_calls(frames, project)]
            calls = calls or [_Call(next(filter(None, match.groups())))]
            first_calls = {call.overload: call for call in reversed(calls)}
            return _untranslated_failure([*first_calls.values()][::-1], exporter, opset)
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            return StageError(
                f"the {exporter} exporter needs the package {cause.name}", install_hint(cause)
            )
    problem = f"the {exporter} exporter failed at opset {opset}: "
    problem += describe_exception(causes[-1], project)
    line = failing[0].line if failing else ""
    problem += f", on a node of {line}" if line and line not in problem else ""
    hint = "the log has the complete message"
    if _DECIDES_BY_VALUE.search(f"{error}\n{causes[-1]}"):
        hint = (
            "forward decides by the values of a tensor: use torch.where or torch.cond; tracing with"
            " torchscript would keep only the branch of the example"
        )
    elif _FIXED_SIZE.search(str(causes[-1])):  # tracing would fix it silently
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
    if exporter == "none":
        return StageError(problem, "save it with a later opset")
    remedies = opset_remedies(
        operator, exporter, opset, operator_versions().get(("", operator), ())
    )
    return StageError(problem, format_remedies([("", remedies)]))


def _untranslated_failure(calls: Sequence[_Call], exporter: str, opset: int) -> StageError:
    places = [call.operator + (f" ({call.line})" if call.line else "") for call in calls]
    what = f"{len(calls)} operators to opset {opset}: {', '.join(places)}"
    if len(calls) == 1:
        name, _, place = places[0].partition(" ")
        what = f"the operator {name} to opset {opset} {place}".rstrip()
    exports = _translating_exports(calls, exporter, opset)
    groups = [
        (call.schema, registration_remedies(call.operator, exporter, opset)) for call in calls
    ]
    if len(calls) == 1:
        groups = [(calls[0].schema, [*exports, *groups[0][1]])]
    elif exports:  # a function for one operator leaves the others
        groups = [("", exports), *groups]
    return StageError(f"the {exporter} exporter cannot translate {what}", format_remedies(groups))


def _translating_exports(calls: Sequence[_Call], exporter: str, opset: int) -> list[Remedy]:
    """List the opset and the exporter that translate all operators."""
    lowest = [torchscript_from(call.operator) for call in calls]
    opsets = [opset, *(number for number in lowest if number is not None)]
    in_torchscript, needed = len(opsets) > len(calls), max(opsets)
    if exporter == "dynamo":
        return [_other_exporter(exporter, needed)] if in_torchscript else []
    exports = []
    if in_torchscript and needed > opset:
        text = f"torchscript translates it from opset {needed} on"
        exports.append(export_remedy("opset", text, opset=needed))
    translated = [dynamo_opset(call.overload) for call in calls]
    if None not in translated:
        needed = max(opset, *filter(None, translated))
        exports.append(_other_exporter(exporter, needed))
    return exports


def _failing_calls(frames: Sequence[FrameType], project: Path) -> list[_Call]:
    """Find the node that failed."""
    nodes = (frame.f_locals.get("node") for frame in reversed(frames))
    failing = (node for node in nodes if isinstance(node, torch._C.Node | torch.fx.Node))
    return [_describe_call(node, project) for node in failing][:1]


def _untranslated_calls(frames: Sequence[FrameType], project: Path) -> Iterator[_Call]:
    """Find the nodes of the program that the exporter has no translation for."""
    from torch.onnx._internal.torchscript_exporter._globals import GLOBALS
    from torch.onnx._internal.torchscript_exporter.registration import registry as symbolics

    for frame in frames:
        graph, program = frame.f_locals.get("graph"), frame.f_locals.get("exported_program")
        registry: Any = frame.f_locals.get("registry")
        if frame.f_code.co_name == "_optimize_graph" and isinstance(graph, torch._C.Graph):
            for node in _all_nodes(graph):
                group = symbolics.get_function_group(node.kind().removesuffix("_"))
                is_operator = not node.kind().startswith(("prim::", "onnx::"))
                opset = GLOBALS.export_onnx_opset_version
                if is_operator and (group is None or group.get(opset) is None):
                    yield _describe_call(node, project)
        elif program is not None and hasattr(registry, "get_decomps"):
            for node in program.graph.nodes:
                is_operator = isinstance(node.target, torch._ops.OpOverload)
                if is_operator and not registry.get_decomps(node.target):
                    yield _describe_call(node, project)


def _all_nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _all_nodes(inner)


def _describe_call(node: Any, project: Path) -> _Call:
    """Describe a node of a captured or traced program."""
    if isinstance(node, torch.fx.Node):
        schema, trace = str(getattr(node.target, "_schema", "")), node.stack_trace or ""
        name = str(node.target)
    else:
        schema, trace, name = node.schema(), str(node.sourceRange()), node.kind()
        if schema == "(no schema)":
            schema = next(iter(operator_schemas(name)), "")
    return _Call(schema.partition("(")[0] or name, schema, source_line(trace, project))
