"""Local functions named by a manifest, as valid FunctionProtos."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import FunctionProto, ModelProto, checker

from buildsys.errors import StageError
from buildsys.models.user_code import (
    find_object,
    load_module,
    reraise_as_stage_error,
    with_article,
)
from buildsys.onnx_graphs.onnx_file import first_line
from buildsys.stages.operators.function_placement import nodes_of, operator_of, split_operator

_IR_VERSION = 10
_EXPECTED = "return a FunctionProto, an onnxscript function or a list of them"


def function_model(references: Mapping[str, str], project: Path) -> ModelProto:
    """Return a model with only the functions of ``references``: operator -> ``FILE.py:NAME``.

    Its metadata hold their origins. Equal functions give equal bytes, whatever their doc strings.
    Raises: StageError: a function fails, is invalid, calls itself, or differs from its namesake.
    """
    model = ModelProto(ir_version=_IR_VERSION)
    functions: dict[str, FunctionProto] = {}
    origins: dict[str, str] = {}
    for op, reference in references.items():
        for function in _load_functions(op, reference, project):
            name = operator_of(function)
            if name not in functions:
                context = checker.C.CheckerContext()
                context.ir_version = _IR_VERSION
                context.opset_imports = {e.domain: e.version for e in function.opset_import}
                try:
                    checker.check_function(function, context, checker.C.LexicalScopeContext())
                except checker.ValidationError as error:
                    raise StageError(
                        f"the local function {name} ({reference}) is invalid: {first_line(error)}",
                        "correct the function",
                    ) from error
                functions[name], origins[name] = function, reference
            elif functions[name] != function:
                raise StageError(
                    f"{origins[name]} and {reference} define {name} differently",
                    "rename one of the functions",
                )
    _refuse_cycles(functions, origins)
    model.functions.extend(functions.values())
    for op, reference in origins.items():
        model.metadata_props.add(key=op, value=reference)
    return model


def _load_functions(op: str, reference: str, project: Path) -> list[FunctionProto]:
    found = find_object(load_module(reference.rpartition(":")[0], project), reference)
    if not _is_function(found) and isinstance(found, Callable):  # type: ignore[arg-type]
        with reraise_as_stage_error(f"{reference} failed", project):
            found = found()
    members = list(found) if isinstance(found, (list, tuple)) else [found]
    wrong = next((member for member in members if not _is_function(member)), None)
    if wrong is not None or not members:
        what = with_article(type(wrong).__name__) if members else "an empty list"
        raise StageError(f"{reference} gives {what} for {op}", _EXPECTED)
    with reraise_as_stage_error(f"{reference} failed", project):
        protos = [proto for member in members for proto in _protos(member)]
    names = [operator_of(proto) for proto in protos]
    if op not in names:
        if any(operator_of(node) == names[0] for proto in protos for node in nodes_of(proto)):
            raise StageError(
                f"{reference} gives {', '.join(names)}, none of which is {op}",
                "name the operator's function after it",
            )
        protos[0].domain, protos[0].name = split_operator(op)
    return [_normalized(proto) for proto in protos]


def _is_function(value: Any) -> bool:
    return isinstance(value, FunctionProto) or hasattr(value, "to_function_proto")


def _protos(member: Any) -> Iterator[FunctionProto]:
    """Yield the function; for an onnxscript function also those it calls."""
    if isinstance(member, FunctionProto):
        yield member
        return
    yield member.to_function_proto()
    for called in member.function_ir.get_called_functions().values():
        yield called.to_function_proto()


def _normalized(proto: FunctionProto) -> FunctionProto:
    """Return a copy without doc strings and traces, its imports sorted."""
    result = FunctionProto()
    result.CopyFrom(proto)
    items: list[Any] = [result, *nodes_of(result)]
    for item in items:
        item.ClearField("doc_string")
        del item.metadata_props[:]
    imports = sorted((entry.domain, entry.version) for entry in result.opset_import)
    del result.opset_import[:]
    result.opset_import.extend(onnx.helper.make_opsetid(*entry) for entry in imports)
    return result


def _refuse_cycles(functions: Mapping[str, FunctionProto], origins: Mapping[str, str]) -> None:
    calls = {
        op: [operator_of(node) for node in nodes_of(function)] for op, function in functions.items()
    }
    done: set[str] = set()

    def visit(op: str, callers: tuple[str, ...]) -> None:
        if op in callers:
            path = " → ".join((*callers[callers.index(op) :], op))
            raise StageError(
                f"local functions call each other in a cycle: {path} ({origins[op]})",
                "break the cycle",
            )
        for called in calls[op] if op not in done else ():
            if called in calls:
                visit(called, (*callers, op))
        done.add(op)

    for op in calls:
        visit(op, ())
