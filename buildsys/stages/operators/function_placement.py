"""Put local functions into a model, and take them out again."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from onnx import FunctionProto, ModelProto, NodeProto, defs

from buildsys.errors import StageError
from buildsys.stages.operators.local_functions import origins_of
from buildsys.stages.operators.nodes import nodes_of, operator_of

_FIRST_IR_VERSION = 8  # that has local functions
_ONNX = ("", "ai.onnx")


def put_in(model: ModelProto, functions: ModelProto) -> list[str]:
    """Add the functions of ``functions`` to ``model``, in place of those with the same names; return warnings.

    Raises: StageError: a function is of an opset that does not fit the model's, or does not fit a node that calls it.
    """
    origins = origins_of(functions)
    take_out(model, origins)
    model.functions.extend(functions.functions)
    for function in functions.functions:
        _check_opsets(model, function, origins[operator_of(function)])
    model.ir_version = max(model.ir_version, _FIRST_IR_VERSION)
    called = [operator_of(node) for node in nodes_of(model)]
    for function in functions.functions:
        _check_calls(model, function, origins[operator_of(function)])
    return [
        f"no node of the graph is {op}: its local function ({origin}) does nothing"
        for op, origin in origins.items()
        if op not in called
    ]


def take_out(model: ModelProto, operators: Collection[str]) -> bool:
    """Remove the functions of ``operators``, and those that only they call; return whether there were any."""
    kept = [function for function in model.functions if operator_of(function) not in operators]
    if len(kept) == len(model.functions):
        return False
    private = {operator_of(f) for f in model.functions} & {
        o for f in model.functions for o in _called(f)
    }
    del model.functions[:]
    model.functions.extend(kept)
    while unused := private & {operator_of(f) for f in model.functions} - {
        operator_of(n) for n in nodes_of(model)
    }:
        kept = [function for function in model.functions if operator_of(function) not in unused]
        del model.functions[:]
        model.functions.extend(kept)
    return True


def _called(function: FunctionProto) -> Iterator[str]:
    yield from (operator_of(node) for node in nodes_of(function))


def _check_opsets(model: ModelProto, function: FunctionProto, origin: str) -> None:
    versions = {_domain(entry.domain): entry for entry in model.opset_import}
    for entry in function.opset_import:
        domain = _domain(entry.domain)
        if domain not in versions:
            versions[domain] = added = model.opset_import.add()
            added.CopyFrom(entry)
        elif domain in _ONNX:
            _check_version(function, origin, entry.version, versions[domain].version)
        elif entry.version != versions[domain].version:
            raise StageError(
                f"the local function {operator_of(function)} ({origin}) imports version {entry.version} of the domain"
                f" {domain}, and the model version {versions[domain].version}"
            )


def _domain(name: str) -> str:
    return "" if name in _ONNX else name


def _check_version(function: FunctionProto, origin: str, own: int, models: int) -> None:
    """Refuse operators that are not the same in both opsets, as the ONNX checker does, which names neither file."""
    for node in nodes_of(function):
        if node.domain not in _ONNX:
            continue
        there = _since(node, models)
        if there == _since(node, own):
            continue
        what = "does not have it" if there is None else "has another form of it"
        raise StageError(
            f"the local function {operator_of(function)} ({origin}) is of opset {own} and uses {node.op_type};"
            f" the model has opset {models}, which {what}",
            f"write the function for opset {models} (from onnxscript import opset{models}), or set export.opset: {own}",
        )


def _since(node: NodeProto, version: int) -> int | None:
    try:
        return int(defs.get_schema(node.op_type, version, "").since_version)
    except defs.SchemaError:
        return None


def _check_calls(model: ModelProto, function: FunctionProto, origin: str) -> None:
    op = operator_of(function)
    known = {*function.attribute, *(attribute.name for attribute in function.attribute_proto)}
    for node in (node for node in nodes_of(model) if operator_of(node) == op):
        problem = _misfit(node, function, known)
        if problem:
            raise StageError(
                f"the local function {op} ({origin}) does not fit the node {node.name or node.output[0]}: {problem}"
            )


def _misfit(node: NodeProto, function: FunctionProto, known: Collection[str]) -> str:
    given = [attribute.name for attribute in node.attribute]
    for side, found, taken in (
        ("input", node.input, function.input),
        ("output", node.output, function.output),
    ):
        if len(found) > len(taken):
            return f"the node has {len(found)} {side}s, the function {len(taken)}"
    if unknown := [name for name in given if name not in known]:
        return f"the node has the attribute {unknown[0]}, the function only {', '.join(sorted(known)) or 'none'}"
    if missing := [name for name in function.attribute if name not in given]:
        return f"the function needs the attribute {missing[0]}, and the node has none"
    return ""
