"""Local functions: made from a manifest, added to models and removed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import FunctionProto, ModelProto, NodeProto, checker, defs

from buildsys.errors import StageError
from buildsys.models.user_code import find_object, load_module, reraise_as_stage_error, with_article
from buildsys.onnx_graphs.onnx_file import all_nodes, first_line, subgraphs

FUNCTIONS_IR_VERSION = 8  # the first with local functions
_IR_VERSION = 10
_ONNX = ("", "ai.onnx")


def function_model(references: Mapping[str, str], project: Path) -> ModelProto:
    """Make a model with only the functions of ``references``: operator -> ``FILE.py:NAME``.

    Its metadata hold their origins. Equal functions give equal bytes, whatever their doc strings.
    Raises: StageError: a function fails, is invalid, or differs from its namesake.
    """
    model = ModelProto(ir_version=_IR_VERSION)
    functions: dict[str, FunctionProto] = {}
    origins: dict[str, str] = {}
    for op, reference in references.items():
        for function in _functions_of(op, reference, project):
            name = operator_of(function)
            if functions.setdefault(name, function) != function:
                raise StageError(
                    f"{origins[name]} and {reference} define {name} differently",
                    "rename one of the functions",
                )
            if name not in origins:
                _check(function, reference)
                origins[name] = reference
    model.functions.extend(functions.values())
    for op, reference in origins.items():
        model.metadata_props.add(key=op, value=reference)
    return model


def _functions_of(op: str, reference: str, project: Path) -> list[FunctionProto]:
    functions = load_functions(reference, project)
    names = [operator_of(function) for function in functions]
    if op not in names:  # any name is taken for that of the operator
        if any(operator_of(node) == names[0] for item in functions for node in nodes_of(item)):
            raise StageError(
                f"{reference} gives {', '.join(names)}, none of which is {op}",
                "name the operator's function after it",
            )
        functions[0].domain, functions[0].name = split_operator(op)
    return functions


def _check(function: FunctionProto, reference: str) -> None:
    context = checker.C.CheckerContext()
    context.ir_version = _IR_VERSION
    context.opset_imports = {entry.domain: entry.version for entry in function.opset_import}
    try:
        checker.check_function(function, context, checker.C.LexicalScopeContext())
    except checker.ValidationError as error:
        raise StageError(
            f"the local function {operator_of(function)} ({reference}) is invalid:"
            f" {first_line(error)}",
            "correct the function",
        ) from error


def load_functions(reference: str, project: Path) -> list[FunctionProto]:
    """Load the functions of ``FILE.py:NAME``, the first with those that it calls.

    Raises: StageError: it raises, or is something else.
    """
    target = find_object(load_module(reference.rpartition(":")[0], project), reference)
    with reraise_as_stage_error(f"{reference} failed", project):
        if callable(target) and not hasattr(target, "to_function_proto"):
            target = target()
        members = list(target) if isinstance(target, (list, tuple)) else [target]
        functions = [proto for member in members for proto in _protos(member)]
    if not functions or len(functions) < len(members):
        kind = "nothing" if target is None else with_article(type(target).__name__)
        raise StageError(
            f"{reference} gives {kind}",
            "name an onnxscript function, a FunctionProto, a list of them, or a callable that"
            " returns them",
        )
    return functions


def _protos(member: Any) -> Iterator[FunctionProto]:
    """Yield copies without doc strings and traces, with the functions that a function calls."""
    protos = [member] if isinstance(member, FunctionProto) else []
    if hasattr(member, "to_function_proto"):
        protos = [member.to_function_proto()]
        called = member.function_ir.get_called_functions().values()
        protos += [function.to_function_proto() for function in called]
    for proto in protos:
        result = FunctionProto()
        result.CopyFrom(proto)
        items: list[Any] = [result, *nodes_of(result)]
        for item in items:
            item.ClearField("doc_string")
            del item.metadata_props[:]
        imports = sorted((entry.domain, entry.version) for entry in result.opset_import)
        del result.opset_import[:]
        result.opset_import.extend(onnx.helper.make_opsetid(*entry) for entry in imports)
        yield result


def operator_of(item: NodeProto | FunctionProto) -> str:
    """Return ``DOMAIN::NAME``; ONNX's own domain is ``onnx``."""
    name = item.op_type if isinstance(item, NodeProto) else item.name
    return f"{'onnx' if item.domain in _ONNX else item.domain}::{name}"


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
    model.ir_version = max(model.ir_version, FUNCTIONS_IR_VERSION)
    by_name = {operator_of(function): function for function in functions.functions}
    called = set()
    for node in nodes_of(model):
        op = operator_of(node)
        if op in by_name:
            called.add(op)
            check_call(node, by_name[op], f"the local function {op} ({origins[op]})")
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
    versions = {"" if e.domain in _ONNX else e.domain: e.version for e in model.opset_import}
    for entry in function.opset_import:
        domain = "" if entry.domain in _ONNX else entry.domain
        version = versions.setdefault(domain, entry.version)
        if domain not in {"" if e.domain in _ONNX else e.domain for e in model.opset_import}:
            model.opset_import.add().CopyFrom(entry)
        differs = version != entry.version
        if differs and not domain:
            differs = any(
                _since(node, version) != _since(node, entry.version)
                for node in nodes_of(function)
                if node.domain in _ONNX
            )
        if differs:
            name = domain or "opset"
            raise StageError(
                f"the local function {operator_of(function)} ({origin}) is of {name}"
                f" {entry.version}, the model of {name} {version}, with other versions of its"
                " operators",
                f"write the function for {name} {version}"
                + (f", or set export.opset: {entry.version}" if not domain else ""),
            )


def _since(node: NodeProto, version: int) -> int | None:
    try:
        return int(defs.get_schema(node.op_type, version, "").since_version)
    except defs.SchemaError:
        return None


def check_call(node: NodeProto, function: FunctionProto, what: str) -> None:
    """Compare a node with the function that it calls.

    Raises: StageError: the node has other inputs, outputs or attributes; ``what`` begins it.
    """
    attributes = {attribute.name for attribute in node.attribute}
    optional = {attribute.name for attribute in function.attribute_proto}
    problem = ""
    for side, names, parameters in (
        ("input", node.input, function.input),
        ("output", node.output, function.output),
    ):
        if len(names) > len(parameters):
            problem = f"the node has {len(names)} {side}s, the function {len(parameters)}"
    if unknown := sorted(attributes - optional - set(function.attribute)):
        problem = f"the node has the attribute {unknown[0]}, which the function does not have"
    elif missing := sorted(set(function.attribute) - attributes):
        problem = f"the function needs the attribute {missing[0]}, which the node does not have"
    if problem:
        raise StageError(
            f"{what} does not fit the node {node.name or node.output[0]}: {problem}",
            "correct the inputs and attributes of the function",
        )
