"""Exporter failures in plain sentences, with remedies."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from pathlib import Path
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
    nodes = (frame.f_locals.get("node") for frame in reversed(frames))
    failing = next((n for n in nodes if isinstance(n, torch._C.Node | torch.fx.Node)), None)
    call = _describe_call(failing, project) if failing is not None else None
    for cause in causes:
        if match := _PYTHON_FUNCTION.search(str(cause)):
            problem = f"cannot translate the autograd function {match[1] or ''}"
            remedies = function_remedies(match[1] or "Function", opset)
            hint = format_remedies([("", remedies)])
            return StageError(f"the {exporter} exporter {problem}", hint)
        if match := _UNSUPPORTED.search(str(cause)):
            call = call or _Call(next(filter(None, match.groups())))
            problem = f"cannot translate the operator {call.operator} to opset {opset}"
            problem += f" ({call.line})" if call.line else ""
            remedies = [*_translating_exports(call, exporter, opset)]
            remedies += registration_remedies(call.operator, exporter, opset)
            hint = format_remedies([(call.schema, remedies)])
            return StageError(f"the {exporter} exporter {problem}", hint)
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            return StageError(
                f"the {exporter} exporter needs the package {cause.name}", install_hint(cause)
            )
    problem = f"the {exporter} exporter failed at opset {opset}: "
    problem += describe_exception(causes[-1], project)
    if call and call.line and call.line not in problem:
        problem += f", on a node of {call.line}"
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


def _translating_exports(call: _Call, exporter: str, opset: int) -> Iterator[Remedy]:
    """Yield the opset and the exporter that translate an operator."""
    lowest, in_dynamo = torchscript_from(call.operator), dynamo_opset(call.overload)
    if exporter == "dynamo" and lowest is not None:
        yield _other_exporter(exporter, max(opset, lowest))
    elif exporter == "torchscript":
        if lowest is not None and lowest > opset:
            text = f"torchscript translates it from opset {lowest} on"
            yield export_remedy("opset", text, opset=lowest)
        if in_dynamo is not None:
            yield _other_exporter(exporter, max(opset, in_dynamo))


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
