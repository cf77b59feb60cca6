"""Exporter failures as sentences: which operators, opset and exporter, and the rungs of the ladder that apply."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from buildsys.backends.operator_support import onnx_operators
from buildsys.backends.operator_support.torch_registries import (
    dynamo_translation,
    operator_schemas,
    torchscript_from,
)
from buildsys.errors import StageError
from buildsys.models.user_code import describe_exception
from buildsys.stages.export.untranslated import Untranslated, failing_line, untranslated
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
_UNKNOWN_TO_OPSET = re.compile(
    r"No Op registered for (?P<op>\w+) with domain_version of (?P<opset>\d+)"
)


def export_failure(
    error: Exception, exporter: str, opset: int, project: Path, declared: Collection[str] = ()
) -> StageError:
    """Return what an exception of torch.onnx.export means to the author of the manifest.

    ``declared`` are the sections that the manifest has for custom operators.
    """
    chain = list(_causes(error))
    for cause in chain:
        found = _UNSUPPORTED.search(str(cause))
        if found:
            operators = untranslated(error, project) or [
                _known_by_name(next(filter(None, found.groups())))
            ]
            return _cannot_translate(operators, exporter, opset, project, declared)
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            return StageError(
                f"the {exporter} exporter needs the package {cause.name}",
                f"pip install {cause.name}",
            )
    line = failing_line(error, project)
    problem = (
        f"the {exporter} exporter failed at opset {opset}: {describe_exception(chain[-1], project)}"
    )
    return StageError(
        problem + (f", on a node of {line}" if line and line not in problem else ""),
        f"its whole message is in the log; the {_other(exporter)} exporter may take the network",
    )


def checker_failure(error: Exception, exporter: str) -> StageError:
    """Return what onnx.checker says about a written file."""
    found = _UNKNOWN_TO_OPSET.search(str(error))
    if found:
        operator, opset = found["op"], int(found["opset"])
        added = [
            version for version in onnx_operators.versions().get(("", operator), ()) if version > 0
        ]
        problem = (
            f"the file uses the operator {operator}, which opset {opset} does not have ({exporter})"
        )
        if exporter == "none":  # a ready file
            later = [version for version in added if version > opset]
            return StageError(
                problem, f"write the file with opset {min(later)} or higher" if later else ""
            )
        return StageError(
            problem, format_remedies([("", opset_remedies(operator, exporter, opset, added))])
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return StageError(
        f"onnx.checker rejects the file ({exporter}): {lines[0] if lines else type(error).__name__}"
    )


def _cannot_translate(
    operators: Sequence[Untranslated],
    exporter: str,
    opset: int,
    project: Path,
    declared: Collection[str],
) -> StageError:
    what = (
        f"the operator {operators[0].name}"
        if len(operators) == 1
        else f"{len(operators)} operators"
    )
    listed = [one.name + (f" ({one.where})" if one.where else "") for one in operators]
    told = (
        ": " + ", ".join(listed)
        if len(operators) > 1
        else listed[0].removeprefix(operators[0].name)
    )
    problem = f"the {exporter} exporter cannot translate {what} to opset {opset}{told}"
    files = shipped_files(project)
    groups = [
        (
            one.schema,
            translation_remedies(_facts(one), exporter, opset, files=files, declared=declared),
        )
        for one in operators
    ]
    return StageError(problem, format_remedies(groups))


def _facts(operator: Untranslated) -> TorchOperator:
    translation = dynamo_translation(operator.overload) if operator.schema else None
    return TorchOperator(
        operator.name,
        torchscript_from=torchscript_from(operator.name),
        dynamo_from=translation.opset if translation else None,
        dynamo_note="; ".join(map(_takers, translation.operators)) if translation else "",
    )


def _takers(operator: str) -> str:
    """Return which backends of this installation take an ONNX operator, where one of them does not."""
    since = onnx_operators.versions().get(("", operator), ())
    kernels = onnx_operators.ort_support("", operator, since)
    first = next((row["opset"] for row in kernels or () if row["types"] or row["body"]), None)
    told = [
        f"ONNX Runtime takes it from opset {first}" if first else "ONNX Runtime does not take it"
    ]
    if kernels is None:
        told = []
    takes = onnx_operators.rtx_supports(operator)
    if takes is not None:
        told.append("TensorRT-RTX takes it" if takes else "TensorRT-RTX does not")
    return f"as {operator}: {', '.join(told)}" if told else f"as {operator}"


def _known_by_name(found: str) -> Untranslated:
    name = found.replace(".", "::", 1) if "::" not in found else found
    schema = next(iter(operator_schemas(name)), "")
    return Untranslated(schema.partition("(")[0] or name, schema, "")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and what it came from, outermost first."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__


def _other(exporter: str) -> str:
    return "dynamo" if exporter == "torchscript" else "torchscript"
