"""Exporter failures in plain sentences, with remedies."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from buildsys.backends.operator_support import onnx_operators
from buildsys.backends.operator_support.torch_registries import (
    dynamo_translation,
    operator_schemas,
    torchscript_from,
)
from buildsys.errors import StageError
from buildsys.models.user_code import describe_exception
from buildsys.stages.export.untranslated import (
    UntranslatedOperator,
    failing_line,
    untranslated_operators,
)
from buildsys.stages.remedies.remedies import (
    TorchOperator,
    format_remedies,
    opset_remedies,
    translation_remedies,
)
from buildsys.stages.remedies.shipped_plugins import shipped_files

_UNSUPPORTED = re.compile(
    r"operator '(?P<op>[^']+)' to ONNX opset version \d+ is not supported"
    r"|unrecognized namespace (?P<foreign>\w+::\w+)"
    r"|No ONNX function found for <OpOverload\(op='(?P<captured>[^']+)'"
)
_NOT_IN_OPSET = re.compile(
    r"No Op registered for (?P<op>\w+) with domain_version of (?P<opset>\d+)"
)


def export_failure(
    error: Exception, exporter: str, opset: int, project: Path, declared: Collection[str] = ()
) -> StageError:
    """Return an exception of torch.onnx.export as a readable error.

    ``declared`` are the manifest's sections for custom operators.
    """
    cause: BaseException = error
    while True:  # from the outermost exception inwards
        if found := _UNSUPPORTED.search(str(cause)):
            operators = untranslated_operators(error, project)
            if not operators:
                operators = [_operator_by_name(next(filter(None, found.groups())))]
            return _untranslated_failure(operators, exporter, opset, project, declared)
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            return StageError(
                f"the {exporter} exporter needs the package {cause.name}",
                f"pip install {cause.name}",
            )
        if cause.__cause__ is None:
            break
        cause = cause.__cause__
    what = describe_exception(cause, project)
    problem = f"the {exporter} exporter failed at opset {opset}: {what}"
    line = failing_line(error, project)
    other = "dynamo" if exporter == "torchscript" else "torchscript"
    return StageError(
        problem + (f", on a node of {line}" if line and line not in problem else ""),
        f"the log has the complete message; the {other} exporter may support the network",
    )


def checker_failure(error: Exception, exporter: str) -> StageError:
    """Return a rejection by onnx.checker as a readable error."""
    found = _NOT_IN_OPSET.search(str(error))
    if not found:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        what = lines[0] if lines else type(error).__name__
        return StageError(f"onnx.checker rejects the file ({exporter}): {what}")
    operator, opset = found["op"], int(found["opset"])
    versions = [v for v in onnx_operators.versions().get(("", operator), ()) if v > 0]
    problem = f"opset {opset} does not have the operator {operator} used in the file ({exporter})"
    if exporter != "none":
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
) -> StageError:
    listed = [one.name + (f" ({one.where})" if one.where else "") for one in operators]
    if len(operators) == 1:
        where = listed[0].removeprefix(operators[0].name)
        what = f"the operator {operators[0].name} to opset {opset}{where}"
    else:
        what = f"{len(operators)} operators to opset {opset}: {', '.join(listed)}"
    files = shipped_files(project)
    groups = []
    for one in operators:
        translation = dynamo_translation(one.overload) if one.schema else None
        facts = TorchOperator(
            one.name,
            torchscript_from=torchscript_from(one.name),
            dynamo_from=translation.opset if translation else None,
            dynamo_note="; ".join(map(_backend_note, translation.operators)) if translation else "",
        )
        remedies = translation_remedies(facts, exporter, opset, files=files, declared=declared)
        groups.append((one.schema, remedies))
    problem = f"the {exporter} exporter cannot translate {what}"
    return StageError(problem, format_remedies(groups))


def _backend_note(operator: str) -> str:
    """Return the installed backends' support for an ONNX operator."""
    notes = []
    since = onnx_operators.versions().get(("", operator), ())
    kernels = onnx_operators.ort_support("", operator, since)
    if kernels is not None:
        first = next((row["opset"] for row in kernels if row["types"] or row["body"]), None)
        notes.append(
            f"ONNX Runtime supports it from opset {first}"
            if first
            else "ONNX Runtime does not support it"
        )
    in_rtx = onnx_operators.rtx_supports(operator)
    if in_rtx is not None:
        notes.append(f"TensorRT-RTX {'supports it' if in_rtx else 'does not'}")
    return f"as {operator}: {', '.join(notes)}" if notes else f"as {operator}"


def _operator_by_name(found: str) -> UntranslatedOperator:
    name = found.replace(".", "::", 1) if "::" not in found else found
    schema = next(iter(operator_schemas(name)), "")
    return UntranslatedOperator(schema.partition("(")[0] or name, schema, "")
