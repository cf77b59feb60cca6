"""A model's local functions: operator names, addition and removal."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from onnx import FunctionProto, ModelProto, NodeProto, defs

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import all_nodes, subgraphs

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
        _merge_opsets(model, function, origins[operator_of(function)])
    model.ir_version = max(model.ir_version, _FUNCTIONS_IR_VERSION)
    nodes = list(nodes_of(model))
    for function in functions.functions:
        op = operator_of(function)
        for node in nodes:
            if operator_of(node) == op and (problem := _call_problem(node, function)):
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
        kept = [function for function in model.functions if operator_of(function) not in removable]
        del model.functions[:]
        model.functions.extend(kept)
        called = {operator_of(node) for node in nodes_of(model)}
        removable = {operator_of(function) for function in kept} & helpers - called
    return True


def _merge_opsets(model: ModelProto, function: FunctionProto, origin: str) -> None:
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


def _call_problem(node: NodeProto, function: FunctionProto) -> str:
    for side, found, parameters in (
        ("input", node.input, function.input),
        ("output", node.output, function.output),
    ):
        if len(found) > len(parameters):
            return f"the node has {len(found)} {side}s, the function {len(parameters)}"
    given = [attribute.name for attribute in node.attribute]
    known = {*function.attribute, *(attribute.name for attribute in function.attribute_proto)}
    if unknown := [name for name in given if name not in known]:
        names = ", ".join(sorted(known)) or "none"
        return f"the node has the attribute {unknown[0]}, the function only {names}"
    if missing := [name for name in function.attribute if name not in given]:
        return f"the function needs the attribute {missing[0]}, which the node does not have"
    return ""
