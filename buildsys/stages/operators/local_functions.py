"""The local functions that a manifest names, as FunctionProtos that are right by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import FunctionProto, ModelProto, checker

from buildsys.errors import StageError
from buildsys.models.user_code import blame, load_object, with_article
from buildsys.onnx_graphs.onnx_file import first_line
from buildsys.stages.operators.nodes import nodes_of, operator_of, split_operator

_IR_VERSION = 10
_WANTED = "a FunctionProto, an onnxscript function or a list of them is wanted"


def function_model(references: Mapping[str, str], project: Path) -> ModelProto:
    """Return a model that holds the functions of ``references`` (operator -> ``FILE.py:NAME``), and nothing else.

    Its metadata say where each comes from. Equal functions give equal bytes, whatever their doc strings say.
    Raises: StageError: a function cannot be made, is not valid, has the name of another one, or calls itself.
    """
    model = ModelProto(ir_version=_IR_VERSION)
    origins: dict[str, str] = {}
    for op, reference in references.items():
        for function in _functions_of(op, reference, project):
            _add(model, function, reference, origins)
    _refuse_cycles(model, origins)
    for op, reference in origins.items():
        model.metadata_props.add(key=op, value=reference)
    return model


def origins_of(model: ModelProto) -> dict[str, str]:
    """Return operator -> ``FILE.py:NAME`` of the functions of ``function_model``."""
    return {entry.key: entry.value for entry in model.metadata_props}


def _functions_of(op: str, reference: str, project: Path) -> Iterator[FunctionProto]:
    found = load_object(reference, project)
    if not _is_function(found) and isinstance(found, Callable):  # type: ignore[arg-type]
        with blame(f"{reference} failed", project):
            found = found()
    members = list(found) if isinstance(found, (list, tuple)) else [found]
    wrong = next((member for member in members if not _is_function(member)), None)
    if wrong is not None or not members:
        what = with_article(type(wrong).__name__) if members else "an empty list"
        raise StageError(f"{reference} gives {what} for {op}; {_WANTED}")
    with blame(f"{reference} failed", project):
        protos = [proto for member in members for proto in _protos(member)]
    _name_after(op, protos, reference)
    yield from (_settled(proto) for proto in protos)


def _is_function(value: Any) -> bool:
    return isinstance(value, FunctionProto) or hasattr(value, "to_function_proto")


def _protos(member: Any) -> Iterator[FunctionProto]:
    """Yield the function, and for one of onnxscript also those that it calls."""
    if isinstance(member, FunctionProto):
        yield member
        return
    yield member.to_function_proto()
    for called in member.function_ir.get_called_functions().values():
        yield called.to_function_proto()


def _name_after(op: str, protos: list[FunctionProto], reference: str) -> None:
    """Give the function of ``op`` the operator's name; where there are several, the first, or the one that has it."""
    if any(operator_of(proto) == op for proto in protos):
        return
    old = (protos[0].domain, protos[0].name)
    called = any((node.domain, node.op_type) == old for proto in protos for node in nodes_of(proto))
    if called:
        raise StageError(
            f"{reference} gives {', '.join(map(operator_of, protos))}, none of which is {op}",
            "name the function of the operator after it",
        )
    protos[0].domain, protos[0].name = split_operator(op)


def _settled(proto: FunctionProto) -> FunctionProto:
    """Return a copy without what does not belong to its meaning: doc strings, traces, an order by chance."""
    result = FunctionProto()
    result.CopyFrom(proto)
    result.ClearField("doc_string")
    del result.metadata_props[:]
    for node in nodes_of(result):
        node.ClearField("doc_string")
        del node.metadata_props[:]
    imports = sorted((entry.domain, entry.version) for entry in result.opset_import)
    del result.opset_import[:]
    result.opset_import.extend(
        onnx.helper.make_opsetid(domain, version) for domain, version in imports
    )
    return result


def _add(
    model: ModelProto, function: FunctionProto, reference: str, origins: dict[str, str]
) -> None:
    op = operator_of(function)
    known = next((other for other in model.functions if operator_of(other) == op), None)
    if known == function:
        return
    if known is not None:
        raise StageError(f"{origins[op]} and {reference} both define {op}, and differ")
    _check(function, op, reference)
    model.functions.append(function)
    origins[op] = reference


def _check(function: FunctionProto, op: str, reference: str) -> None:
    context = checker.C.CheckerContext()
    context.ir_version = _IR_VERSION
    context.opset_imports = {entry.domain: entry.version for entry in function.opset_import}
    try:
        checker.check_function(function, context, checker.C.LexicalScopeContext())
    except checker.ValidationError as error:
        raise StageError(
            f"the local function {op} ({reference}) is not valid: {first_line(error)}"
        ) from error


def _refuse_cycles(model: ModelProto, origins: Mapping[str, str]) -> None:
    calls = {
        operator_of(function): [operator_of(node) for node in nodes_of(function)]
        for function in model.functions
    }
    done: set[str] = set()

    def visit(op: str, above: tuple[str, ...]) -> None:
        if op in above:
            path = " → ".join((*above[above.index(op) :], op))
            raise StageError(
                f"the local functions call each other in a circle: {path} ({origins[op]})"
            )
        for called in calls[op] if op not in done else ():
            if called in calls:
                visit(called, (*above, op))
        done.add(op)

    for op in calls:
        visit(op, ())
