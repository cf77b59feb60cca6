"""Exporter failures as sentences: which operator, opset and exporter, and what to try next."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx.defs

from buildsys.errors import StageError
from buildsys.network.callables import describe_exception

_TORCHSCRIPT_OPERATOR = re.compile(r"operator '(?P<op>[^']+)'|unrecognized namespace (?P<foreign>[\w:]+)")
_ADDED_LATER = re.compile(r"added in version (\d+)")
_DYNAMO_OPERATOR = re.compile(r"No ONNX function found for <OpOverload\(op='(?P<op>[^']+)'")
_UNKNOWN_TO_OPSET = re.compile(r"No Op registered for (?P<op>\w+) with domain_version of (?P<opset>\d+)")


def export_failure(error: Exception, exporter: str, opset: int, project: Path) -> StageError:
    """Return what an exception of torch.onnx.export means to the author of the manifest."""
    chain = list(_causes(error))
    for cause in chain:
        unsupported = _unsupported_operator(str(cause), exporter, opset)
        if unsupported:
            return unsupported
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            return StageError(f"the {exporter} exporter needs the package {cause.name}", f"pip install {cause.name}")
    return StageError(
        f"the {exporter} exporter failed at opset {opset}: {describe_exception(chain[-1], project)}",
        f"its whole message is in the log; the {_other(exporter)} exporter may take the network",
    )


def checker_failure(error: Exception, exporter: str) -> StageError:
    """Return what onnx.checker says about a written file."""
    found = _UNKNOWN_TO_OPSET.search(str(error))
    if found:
        operator, opset = found["op"], int(found["opset"])
        added = _added_in(operator)
        hint = f"set export.opset to {added} or higher" if added and added > opset else ""
        return StageError(
            f"the file uses the operator {operator}, which opset {opset} does not have ({exporter})", hint
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return StageError(f"onnx.checker rejects the file ({exporter}): {lines[0] if lines else type(error).__name__}")


def _unsupported_operator(message: str, exporter: str, opset: int) -> StageError | None:
    pattern = _TORCHSCRIPT_OPERATOR if exporter == "torchscript" else _DYNAMO_OPERATOR
    found = pattern.search(message)
    if not found or (exporter == "torchscript" and "not supported" not in message and not found["foreign"]):
        return None
    operator = next(group for group in found.groups() if group)
    later = _ADDED_LATER.search(message)
    if later:
        hint = f"set export.opset to {later[1]} or higher"
    elif exporter == "torchscript":
        hint = "export.exporter: dynamo translates more operators"
    else:
        hint = "write the network without it, or try export.exporter: torchscript"
    return StageError(f"the {exporter} exporter cannot translate the operator {operator} to opset {opset}", hint)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and what it came from, outermost first."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__


def _other(exporter: str) -> str:
    return "dynamo" if exporter == "torchscript" else "torchscript"


def _added_in(operator: str) -> int | None:
    versions = [
        s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == operator and not s.domain
    ]
    return min(versions, default=None)
