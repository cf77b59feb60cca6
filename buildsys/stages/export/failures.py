"""Exporter failures in plain sentences, with remedies.

The node that an exporter was translating is still in the frames of its exception, with its schema
and source line.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from pathlib import Path
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


def export_failure(error: Exception, exporter: str, opset: int, project: Path) -> StageError:
    """Turn an exception of torch.onnx.export into a readable error."""
    causes: list[BaseException] = [error]
    while (inner := causes[-1].__cause__) is not None:
        causes.append(inner)
    overload, schema, line = _failing_call(causes, project)
    for cause in causes:
        if match := _PYTHON_FUNCTION.search(str(cause)):
            problem = f"cannot translate the autograd function {match[1] or ''}"
            remedies = function_remedies(match[1] or "Function", opset)
            hint = format_remedies([("", remedies)])
            return StageError(f"the {exporter} exporter {problem}", hint)
        if match := _UNSUPPORTED.search(str(cause)):
            name = overload or next(filter(None, match.groups()))
            where = f" ({line})" if line else ""
            problem = f"cannot translate the operator {name.partition('.')[0]} to opset {opset}"
            remedies = [
                *_translating_exports(name, exporter, opset),
                *registration_remedies(name.partition(".")[0], exporter, opset, project),
            ]
            hint = format_remedies([(schema, remedies)])
            return StageError(f"the {exporter} exporter {problem}{where}", hint)
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            return StageError(
                f"the {exporter} exporter needs the package {cause.name}", install_hint(cause)
            )
    problem = f"the {exporter} exporter failed at opset {opset}: "
    problem += describe_exception(causes[-1], project)
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
    if exporter == "none":
        return StageError(problem, "save it with a later opset")
    remedies = opset_remedies(
        operator, exporter, opset, operator_versions().get(("", operator), ())
    )
    return StageError(problem, format_remedies([("", remedies)]))


def _translating_exports(overload: str, exporter: str, opset: int) -> list[Remedy]:
    """List the opset and the exporter that translate an operator."""
    lowest = torchscript_from(overload.partition(".")[0])
    if exporter == "dynamo":
        return [] if lowest is None else [_other_exporter(exporter, max(opset, lowest))]
    choices = []
    if lowest is not None and lowest > opset:
        text = f"torchscript translates it from opset {lowest} on"
        choices.append(export_remedy("opset", text, opset=lowest))
    if translation := dynamo_translation(overload):
        choices.append(_other_exporter(exporter, max(opset, translation.opset or 0)))
    return choices


def _failing_call(causes: Sequence[BaseException], project: Path) -> tuple[str, str, str]:
    """Find overload, schema and source line of the node that failed, "" each if unknown."""
    frames = [frame for cause in causes for frame, _ in traceback.walk_tb(cause.__traceback__)]
    for frame in reversed(frames):
        node: Any = frame.f_locals.get("node")
        if isinstance(node, torch.fx.Node):
            schema, trace = str(getattr(node.target, "_schema", "")), node.stack_trace or ""
            return schema.partition("(")[0] or str(node.target), schema, source_line(trace, project)
        if isinstance(node, torch._C.Node):
            schema = node.schema()
            if schema == "(no schema)":
                schema = next(iter(operator_schemas(node.kind())), "")
            line = source_line(str(node.sourceRange()), project)
            return schema.partition("(")[0] or node.kind(), schema, line
    return "", "", ""
