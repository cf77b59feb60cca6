"""Local functions: made from a manifest, added to models and removed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import FunctionProto, ModelProto, NodeProto, checker, defs

from buildsys.errors import StageError
from buildsys.models.user_code import find_object, load_module, reraise_as_stage_error, with_article
from buildsys.onnx_graphs.onnx_file import all_nodes, first_line, subgraphs

_IR_VERSION = 10
_EXPECTED = "return a FunctionProto, an onnxscript function or a list of them"


def function_model(references: Mapping[str, str], project: Path) -> ModelProto:
    """Make a model with only the functions of ``references``: operator -> ``FILE.py:NAME``.

    Its metadata hold their origins. Equal functions give equal bytes, whatever their doc strings.
    Raises: StageError: a function fails, is invalid, or differs from its namesake.
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
    model.functions.extend(functions.values())
    for op, reference in origins.items():
        model.metadata_props.add(key=op, value=reference)
    return model


def _load_functions(op: str, reference: str, project: Path) -> list[FunctionProto]:
    target = find_object(load_module(reference.rpartition(":")[0], project), reference)
    if not _is_function(target) and isinstance(target, Callable):  # type: ignore[arg-type]
        with reraise_as_stage_error(f"{reference} failed", project):
            target = target()
    members = list(target) if isinstance(target, (list, tuple)) else [target]
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


_FUNCTIONS_IR_VERSION = 8  # the first with local functions
_ONNX = ("", "ai.onnx")


def operator_of(item: NodeProto | FunctionProto) -> str:
    """Return ``DOMAIN::NAME``; ONNX's own domain is ``onnx``."""
    name = item.op_type if isinstance(item, NodeProto) else item.name
    return f"{'onnx' if item.domain in ('', 'ai.onnx') else item.domain}::{name}"


def split_operator(op: str) -> tuple[str, str]:
    """Return domain and name."""
    domain, _, name = op.partition("::")
    return domain, name


def nodes_of(item: ModelProto | FunctionProto) -> Iterator[NodeProto]:
    """Yield all nodes, also of subgraphs and local functions."""
    if isinstance(item, ModelProto):
        yield from all_nodes(item.graph)
        for function in item.functions:
            yield from nodes_of(function)
        return
    for node in item.node:
        yield node
        for body in subgraphs(node):
            yield from all_nodes(body)


def origins_of(model: ModelProto) -> dict[str, str]:
    """Return operator -> ``FILE.py:NAME`` of a model of functions."""
    return {entry.key: entry.value for entry in model.metadata_props}


def add_functions(model: ModelProto, functions: ModelProto) -> list[str]:
    """Add or replace functions; return warnings.

    Raises: StageError: a function's opset does not fit the model's, or a call does not fit it.
    """
    origins = origins_of(functions)
    remove_functions(model, origins)
    model.functions.extend(functions.functions)
    for function in functions.functions:
        merge_opsets(model, function, origins[operator_of(function)])
    model.ir_version = max(model.ir_version, _FUNCTIONS_IR_VERSION)
    nodes = list(nodes_of(model))
    for function in functions.functions:
        op = operator_of(function)
        for node in nodes:
            if operator_of(node) == op and (problem := call_problem(node, function)):
                raise StageError(
                    f"the local function {op} ({origins[op]}) does not fit the node"
                    f" {node.name or node.output[0]}: {problem}",
                    "correct the inputs and attributes of the function",
                )
    called = {operator_of(node) for node in nodes}
    return [
        f"the local function {origin} is unused: no node of the graph is {op}"
        for op, origin in origins.items()
        if op not in called
    ]


def remove_functions(model: ModelProto, operators: Collection[str]) -> bool:
    """Remove functions and their private helpers; return False if there were none."""
    removable = {operator_of(function) for function in model.functions} & set(operators)
    if not removable:
        return False
    helpers = {operator_of(node) for function in model.functions for node in nodes_of(function)}
    while removable:
        remaining = [
            function for function in model.functions if operator_of(function) not in removable
        ]
        del model.functions[:]
        model.functions.extend(remaining)
        called = {operator_of(node) for node in nodes_of(model)}
        removable = {operator_of(function) for function in remaining} & helpers - called
    return True


def merge_opsets(model: ModelProto, function: FunctionProto, origin: str) -> None:
    """Add the domains that a function imports to a model.

    Raises: StageError: the model imports another version, with other operators.
    """
    versions = {_domain(entry.domain): entry for entry in model.opset_import}
    op = operator_of(function)
    for entry in function.opset_import:
        domain = _domain(entry.domain)
        if domain not in versions:
            versions[domain] = added = model.opset_import.add()
            added.CopyFrom(entry)
        elif domain == "":
            _check_opset(function, origin, entry.version, versions[domain].version)
        elif entry.version != versions[domain].version:
            raise StageError(
                f"the local function {op} ({origin}) imports version {entry.version} of the domain"
                f" {domain}, the model imports version {versions[domain].version}",
                "use one version of the domain",
            )


def _domain(name: str) -> str:
    return "" if name in _ONNX else name


def _check_opset(function: FunctionProto, origin: str, own: int, models: int) -> None:
    """Refuse operators with different versions in the two opsets."""
    for node in nodes_of(function):
        if node.domain not in _ONNX:
            continue
        since = _since(node, models)
        if since == _since(node, own):
            continue
        what = "does not have it" if since is None else "has another version of it"
        raise StageError(
            f"the local function {operator_of(function)} ({origin}) is of opset {own} and uses"
            f" {node.op_type}; the model has opset {models}, which {what}",
            f"write the function for opset {models} (from onnxscript import opset{models}), or set"
            f" export.opset: {own}",
        )


def _since(node: NodeProto, version: int) -> int | None:
    try:
        return int(defs.get_schema(node.op_type, version, "").since_version)
    except defs.SchemaError:
        return None


def call_problem(node: NodeProto, function: FunctionProto) -> str:
    """Compare a node with the function that it calls; return what does not fit, or ""."""
    for side, names, parameters in (
        ("input", node.input, function.input),
        ("output", node.output, function.output),
    ):
        if len(names) > len(parameters):
            return f"the node has {len(names)} {side}s, the function {len(parameters)}"
    attributes = [attribute.name for attribute in node.attribute]
    taken = {
        *function.attribute,
        *(attribute.name for attribute in function.attribute_proto),
    }
    if unknown := [name for name in attributes if name not in taken]:
        names = ", ".join(sorted(taken)) or "none"
        return f"the node has the attribute {unknown[0]}, the function only {names}"
    if missing := [name for name in function.attribute if name not in attributes]:
        return f"the function needs the attribute {missing[0]}, which the node does not have"
    return ""
