"""Steps on nodes: an operator by a local function, and nodes that only pass a tensor on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, helper

from buildsys.errors import StageError
from buildsys.manifest.problem import suggest
from buildsys.models.user_code import load_callable, reraise_as_stage_error, with_article
from buildsys.onnx_graphs.onnx_file import (
    all_nodes,
    operator_counts,
    operator_name,
    opsets,
    subgraphs,
)
from buildsys.stages.surgery.tensor_names import input_names, rename_tensors, rename_uses, used_by

Step = Mapping[str, Any]


def replace(model: ModelProto, step: Step, project: Path) -> ModelProto:
    """Let a local function of the project take the place of an operator, inlined unless told otherwise.

    Raises: StageError: the operator is not there, the function does not fit its nodes or the model's opset.
    """
    wanted, reference = step["replace"]["op"], step["replace"]["function"]
    nodes = [node for node in _all_nodes(model) if operator_name(node) == wanted]
    if not nodes:
        raise StageError(
            f"the graph has no {wanted}", suggest(wanted, operator_counts(model), what="it has")
        )
    function = _load_function(reference, project)
    _check_opsets(model, function, reference)
    for node in nodes:
        _check_call(node, function, reference)
        node.domain, node.op_type = function.domain, function.name
    _add_function(model, function)
    return _inlined(model, function, reference) if step["replace"]["inline"] else model


def remove(model: ModelProto, step: Step) -> ModelProto:
    """Remove nodes of some operators, so that what reads them reads their first input.

    A node between an input and an output stays, as an output cannot be an input.
    Raises: StageError: there is no such node, none can go, or more than its first output is used.
    """
    there = operator_counts(model)
    for operator in step["remove"]:
        if operator not in there:
            raise StageError(
                f"the graph has no {operator}", suggest(operator, there, what="it has")
            )
    found = 0
    for graph in _graphs(model.graph):
        chosen = [node for node in graph.node if _is_chosen(node, step)]
        found += len(chosen)
        for node in chosen:
            found -= 0 if _bypass(graph, node, model) else 1
    if not found:
        fits = f" whose name fits {step['name']}" if step["name"] else ""
        names = [node.name for node in _all_nodes(model) if operator_name(node) in step["remove"]]
        hint = (
            suggest(step["name"], filter(None, names), what="their names") if step["name"] else ""
        )
        raise StageError(f"no {' or '.join(step['remove'])}{fits} can be removed", hint)
    return model


def _is_chosen(node: NodeProto, step: Step) -> bool:
    return operator_name(node) in step["remove"] and (
        step["name"] is None or fnmatchcase(node.name, step["name"])
    )


def _bypass(graph: GraphProto, node: NodeProto, model: ModelProto) -> bool:
    """Remove one node; return False where it has to stay."""
    source, target = node.input[0], node.output[0]
    _check_other_outputs(graph, node)
    ends = {value.name for value in graph.output}
    made_here = {name for other in graph.node for name in other.output}
    if target not in ends:
        rename_uses(graph, {target: source})
    elif source in made_here and source not in ends and source not in input_names(model):
        graph.node.remove(node)  # first: the tensor takes the name of what this node makes
        rename_tensors(graph, {source: target})
        return True
    else:
        return False
    graph.node.remove(node)
    return True


def _check_other_outputs(graph: GraphProto, node: NodeProto) -> None:
    further = {name for name in node.output[1:] if name}
    used = {name for other in graph.node for name in used_by(other)} | {
        value.name for value in graph.output
    }
    if further & used:
        name = min(further & used)
        raise StageError(
            f"{operator_name(node)} {node.name} cannot be removed: its output {name} is used"
        )


def _load_function(reference: str, project: Path) -> FunctionProto:
    found = load_callable(reference, project)
    with reraise_as_stage_error(f"{reference} failed", project):
        made = found.to_function_proto() if hasattr(found, "to_function_proto") else found()
    if not isinstance(made, FunctionProto):
        kind = "nothing" if made is None else with_article(type(made).__name__)
        raise StageError(
            f"{reference} returned {kind}; a replacement is an onnxscript function, or returns an onnx.FunctionProto"
        )
    return made


def _check_opsets(model: ModelProto, function: FunctionProto, reference: str) -> None:
    own, theirs = (
        opsets(model),
        {entry.domain or "ai.onnx": entry.version for entry in function.opset_import},
    )
    for domain, version in theirs.items():
        if domain in own and own[domain] != version:
            raise StageError(
                f"{reference} is written in opset {version} of {domain}, the graph has {own[domain]}",
                f"write the function in opset {own[domain]}, or export in opset {version}",
            )


def _check_call(node: NodeProto, function: FunctionProto, reference: str) -> None:
    what = f"{operator_name(node)} {node.name}".strip()
    for side, has, takes in (
        ("input", node.input, function.input),
        ("output", node.output, function.output),
    ):
        if len(has) > len(takes):
            raise StageError(
                f"{what} has {_count(len(has), side)}, and {reference} {_count(len(takes), side)}"
            )
    known = {*function.attribute, *(attribute.name for attribute in function.attribute_proto)}
    for attribute in node.attribute:
        if attribute.name not in known:
            raise StageError(
                f"{what} has the attribute {attribute.name}, which {reference} does not take",
                suggest(attribute.name, known, what="its attributes")
                or f"give it a parameter {attribute.name}: …",
            )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _add_function(model: ModelProto, function: FunctionProto) -> None:
    names = {(other.domain, other.name) for other in model.functions}
    if (function.domain, function.name) in names:
        raise StageError(
            f"the graph has a local function {function.domain}::{function.name} already"
        )
    model.functions.append(function)
    present = opsets(model)
    version = next(
        (entry.version for entry in function.opset_import if entry.domain == function.domain), 1
    )
    wanted = {
        function.domain: version,
        **{entry.domain: entry.version for entry in function.opset_import},
    }
    for domain, number in wanted.items():
        if (domain or "ai.onnx") not in present:
            model.opset_import.append(helper.make_opsetid(domain, number))
    model.ir_version = max(model.ir_version, 8)  # the first with local functions


def _inlined(model: ModelProto, function: FunctionProto, reference: str) -> ModelProto:
    inlined: ModelProto = onnx.inliner.inline_selected_functions(
        model, [(function.domain, function.name)]
    )
    left = f"{function.domain}::{function.name}"
    if any(operator_name(node) == left for node in _all_nodes(inlined)):
        raise StageError(
            f"onnx cannot inline {reference} into this graph",
            "keep it as a function: inline: false",
        )
    return inlined


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for body in subgraphs(node):
            yield from _graphs(body)


def _all_nodes(model: ModelProto) -> Iterable[NodeProto]:
    """Return the nodes of the graph and its subgraphs; local functions stay as they are."""
    return list(all_nodes(model.graph))
