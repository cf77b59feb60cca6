"""Exporter failures in plain sentences, with remedies.

An exporter stops at the first operator without a translation and names only that one. The program
it was translating is still in the frames of its exception, so all of them are listed.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from buildsys.backends.operator_support import (
    dynamo_translation,
    operator_schemas,
    operator_versions,
    ort_support,
    rtx_supports,
    torchscript_from,
)
from buildsys.errors import StageError
from buildsys.models.user_code import describe_exception, install_hint
from buildsys.stages.export.origins import source_line
from buildsys.stages.remedies.remedies import (
    NEWEST_TORCHSCRIPT_OPSET,
    OLDEST_DYNAMO_OPSET,
    Remedy,
    TorchOperator,
    format_remedies,
    function_remedies,
    opset_remedies,
    raised_opset_remedies,
    shipped_files,
    translation_remedies,
    tried_remedies,
)

_UNSUPPORTED = re.compile(
    r"operator '(?P<op>[^']+)' to ONNX opset version \d+ is not supported"
    r"|unrecognized namespace (?P<foreign>\w+::\w+)"
    r"|No ONNX function found for <OpOverload\(op='(?P<captured>[^']+)'"
)
_TRY_OPSET = re.compile(r"[Pp]lease try opset version (\d+)")  # torch's own remedy
_PYTHON_FUNCTION = re.compile(r"Couldn't export Python operator (\w+)|prim::PythonOp")
_DECIDES_BY_VALUE = re.compile(
    r"[Dd]ata-dependent|[Dd]ynamic control flow|GuardOnDataDependentSymNode"
)
_GUARDS = (
    "Constraints violated", "Suggested fixes", "your code specialized",
    "Found the following conflicts",
)  # fmt: skip
_FIXED_SIZE = "inferred a static shape"
_CONFLICT = re.compile(r"^\s*(-\s+\S|\w+ = \S)")  # a violated guard, or a suggested dimension
_NOT_IN_OPSET = re.compile(
    r"No Op registered for (?P<op>\w+) with domain_version of (?P<opset>\d+)"
)


_KEEP_SIZE = (
    "forward fixes that size, such as by a Python loop over it or int(): make it a number in"
    " inputs, or change the code"
)
# tries an export with changed options: its problem, "" if it works, None if unknown
Attempt = Callable[[Mapping[str, Any]], str | None]


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
        """E.g. ``3 nodes, the first at plugins/models/net.py:12``."""
        if self.count == 1:
            return self.line
        return f"{self.count} nodes" + (f", the first at {self.line}" if self.line else "")


def export_failure(
    error: Exception,
    exporter: str,
    opset: int,
    project: Path,
    declared: Collection[str] = (),
    *,
    inlines: bool = True,
    attempt: Attempt = lambda _: None,
) -> StageError:
    """Turn an exception of torch.onnx.export into a readable error.

    ``declared`` are the manifest's sections for custom operators; ``inlines`` is false with
    ``autograd_inlining: false``. ``attempt`` tries export options (see ``tried_remedies``).
    """
    cause: BaseException = error
    while True:  # from the outermost exception inwards
        if match := _PYTHON_FUNCTION.search(str(cause)):
            remedies = function_remedies(match[1] or "Function", opset, inlines=inlines)
            return StageError(
                f"the {exporter} exporter cannot translate the autograd function {match[1] or ''}",
                format_remedies([("", tried_remedies(remedies, attempt))]),
            )
        if match := _UNSUPPORTED.search(str(cause)):
            operators = untranslated_operators(error, project)
            if not operators:
                name = next(filter(None, match.groups()))
                name = name.replace(".", "::", 1) if "::" not in name else name
                schema = next(iter(operator_schemas(name)), "")
                operators = [UntranslatedOperator(schema.partition("(")[0] or name, schema, "")]
            return _untranslated_failure(operators, exporter, opset, project, declared, attempt)
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            return StageError(
                f"the {exporter} exporter needs the package {cause.name}", install_hint(cause)
            )
        if cause.__cause__ is None:
            break
        cause = cause.__cause__
    what = describe_exception(cause, project)
    problem = f"the {exporter} exporter failed at opset {opset}: {what}"
    line = failing_line(error, project)
    problem += f", on a node of {line}" if line and line not in problem else ""
    texts = [str(exception) for exception in _causes(error)]
    lines = texts[-1].splitlines() if any(sign in texts[-1] for sign in _GUARDS) else []
    conflicts = [line.strip() for line in lines if _CONFLICT.match(line) and line not in problem]
    if asked_opset := next(
        (int(match[1]) for text in texts if (match := _TRY_OPSET.search(text))), 0
    ):
        remedies = tried_remedies(raised_opset_remedies(exporter, asked_opset), attempt)
        return StageError(problem, format_remedies([("", remedies)]))
    hint = "the log has the complete message"
    if any(map(_DECIDES_BY_VALUE.search, texts)):
        hint = (
            "forward decides by the values of a tensor: use torch.where or torch.cond; tracing with"
            " torchscript would keep only the branch of the example"
        )
    else:
        if _FIXED_SIZE in texts[-1]:
            hint = f"{_KEEP_SIZE}; {hint}"
        hint += _other_exporter(exporter, opset, attempt)
    return StageError(problem, "\n".join((*dict.fromkeys(conflicts), hint)))


def _other_exporter(exporter: str, opset: int, attempt: Attempt) -> str:
    """Write the end of a hint: the other exporter, unless it fails."""
    other, needed_opset = "torchscript", min(opset, NEWEST_TORCHSCRIPT_OPSET)
    if exporter == "torchscript":
        other, needed_opset = "dynamo", max(opset, OLDEST_DYNAMO_OPSET)
    problem = attempt({"exporter": other, "opset": needed_opset})
    yaml = f"export: {{exporter: {other}, opset: {needed_opset}}}"
    if problem is None:
        return f"; the {other} exporter may support the network ({yaml})"
    if problem:
        return f"; the {other} exporter fails as well ({problem})"
    return f"; the {other} exporter takes the network: {yaml}"


def _causes(error: BaseException) -> list[BaseException]:
    """List an exception and its causes, the outermost first."""
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    return causes


def checker_failure(error: Exception, exporter: str) -> StageError:
    """Turn a rejection by onnx.checker into a readable error."""
    match = _NOT_IN_OPSET.search(str(error))
    if not match:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        what = lines[0] if lines else type(error).__name__
        problem = f"onnx.checker rejects the file ({exporter}): {what}"
        return StageError(problem, "try the other exporter: export: {exporter: …}")
    operator, opset = match["op"], int(match["opset"])
    versions = [v for v in operator_versions().get(("", operator), ()) if v > 0]
    problem = f"opset {opset} does not have the operator {operator} used in the file"
    if exporter != "none":
        problem += f" ({exporter})"
        remedies = opset_remedies(operator, exporter, opset, versions)
        return StageError(problem, format_remedies([("", remedies)]))
    later = [version for version in versions if version > opset]
    return StageError(problem, f"save it with opset {min(later)} or higher" if later else "")


def _untranslated_failure(
    operators: Sequence[UntranslatedOperator],
    exporter: str,
    opset: int,
    project: Path,
    declared: Collection[str],
    attempt: Attempt,
) -> StageError:
    listed = [
        operator.name + (f" ({operator.where})" if operator.where else "") for operator in operators
    ]
    if len(operators) == 1:
        where = listed[0].removeprefix(operators[0].name)
        what = f"the operator {operators[0].name} to opset {opset}{where}"
    else:
        what = f"{len(operators)} operators to opset {opset}: {', '.join(listed)}"
    files = shipped_files(project)
    groups = []
    for operator in operators:
        translation = dynamo_translation(operator.overload) if operator.schema else None
        facts = TorchOperator(
            operator.name,
            torchscript_from=torchscript_from(operator.name),
            dynamo_from=translation.opset if translation else None,
            # tried below, as a part may have no translation
            dynamo_by_parts=len(operators) == 1 and translation is not None,
            dynamo_note="; ".join(map(_backend_note, translation.operators)) if translation else "",
        )
        remedies = translation_remedies(facts, exporter, opset, files=files, declared=declared)
        if len(operators) == 1:  # a remedy for one of several leaves the others
            remedies = tried_remedies(remedies, attempt)
        groups.append((operator.schema, remedies))
    if len(operators) > 1 and exporter == "torchscript":
        needed_opset = max(opset, OLDEST_DYNAMO_OPSET)
        if attempt({"exporter": "dynamo", "opset": needed_opset}) == "":
            yaml = f"export: {{exporter: dynamo, opset: {needed_opset}}}"
            groups.insert(0, ("", [Remedy("exporter", "dynamo takes the network", (yaml,))]))
    problem = f"the {exporter} exporter cannot translate {what}"
    return StageError(problem, format_remedies(groups))


def _backend_note(operator: str) -> str:
    """Describe the installed backends' support for an ONNX operator."""
    notes = []
    since = operator_versions().get(("", operator), ())
    kernels = ort_support("", operator, since)
    if kernels is not None:
        first = next((row["opset"] for row in kernels if row["types"] or row["body"]), None)
        notes.append(
            f"ONNX Runtime supports it from opset {first}"
            if first
            else "ONNX Runtime does not support it"
        )
    in_rtx = rtx_supports(operator)
    if in_rtx is not None:
        notes.append(f"TensorRT-RTX {'supports it' if in_rtx else 'does not'}")
    return f"as {operator}: {', '.join(notes)}" if notes else f"as {operator}"


def untranslated_operators(error: BaseException, project: Path) -> list[UntranslatedOperator]:
    """List the operators in program order; none if no program is found."""
    frames = _frames(error)
    calls = [_call(node, project) for node in (*_traced(frames), *_captured(frames))]
    failing = _failing_node(frames)
    if failing is not None:
        call = _call(failing, project)
        if call[0] not in {listed[0] for listed in calls}:
            calls.insert(0, call)
    by_overload: dict[str, list[tuple[str, str, str]]] = {}
    for call in calls:
        by_overload.setdefault(call[0], []).append(call)
    return [UntranslatedOperator(*same[0], count=len(same)) for same in by_overload.values()]


def failing_line(error: BaseException, project: Path) -> str:
    """Find the user's line of the failing node, or ""."""
    node = _failing_node(_frames(error))
    return "" if node is None else _call(node, project)[2]


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
