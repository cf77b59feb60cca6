"""Steps on nodes: replacement by local functions, removal, and hooks."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import onnx.inliner
from onnx import FunctionProto, ModelProto, NodeProto, helper

from buildsys.errors import StageError
from buildsys.manifest.problem import suggest
from buildsys.models.user_code import (
    check_parameters,
    load_callable,
    reraise_as_stage_error,
    with_article,
)
from buildsys.onnx_graphs.onnx_file import (
    all_nodes,
    operator_counts,
    operator_name,
    opsets,
)

Step = Mapping[str, Any]
_FUNCTIONS_IR_VERSION = 8  # the first with local functions
_KINDS = {"onnx": "an onnx.ModelProto", "graphsurgeon": "an onnx-graphsurgeon graph"}


def replace(model: ModelProto, step: Step, project: Path) -> ModelProto:
    """Replace an operator by a local function, inlined unless disabled.

    Raises: StageError: there is no such operator, or the function does not fit nodes or opset.
    """
    op, reference = step["replace"]["op"], step["replace"]["function"]
    nodes = [node for node in all_nodes(model.graph) if operator_name(node) == op]
    if not nodes:
        raise StageError(
            f"the graph has no {op}", suggest(op, operator_counts(model), what="it has")
        )
    function = _load_function(reference, project)
    _add_function(model, function, reference)
    for node in nodes:
        _check_call(node, function, reference)
        node.domain, node.op_type = function.domain, function.name
    if not step["replace"]["inline"]:
        return model
    name = (function.domain, function.name)
    inlined: ModelProto = onnx.inliner.inline_selected_functions(model, [name])
    if any(operator_name(node) == "::".join(name) for node in all_nodes(inlined.graph)):
        raise StageError(
            f"onnx cannot inline {reference} into this graph",
            "keep it as a function: inline: false",
        )
    return inlined


def _load_function(reference: str, project: Path) -> FunctionProto:
    found = load_callable(reference, project)
    with reraise_as_stage_error(f"{reference} failed", project):
        made = found.to_function_proto() if hasattr(found, "to_function_proto") else found()
    if not isinstance(made, FunctionProto):
        kind = "nothing" if made is None else with_article(type(made).__name__)
        raise StageError(
            f"{reference} returned {kind}",
            "name an onnxscript function, or a callable that returns an onnx.FunctionProto",
        )
    return made


def _add_function(model: ModelProto, function: FunctionProto, reference: str) -> None:
    present = opsets(model)
    imports = {entry.domain: entry.version for entry in function.opset_import}
    for domain, version in imports.items():
        own = present.get(domain or "ai.onnx")
        if own not in (None, version):
            raise StageError(
                f"{reference} is written for opset {version} of {domain or 'ai.onnx'}, the graph"
                f" has {own}",
                f"write the function for opset {own}, or export to opset {version}",
            )
    name = (function.domain, function.name)
    if name in {(other.domain, other.name) for other in model.functions}:
        raise StageError(
            f"the graph already has a local function {'::'.join(name)}", "rename the replacement"
        )
    model.functions.append(function)
    for domain, version in {function.domain: 1, **imports}.items():
        if (domain or "ai.onnx") not in present:
            model.opset_import.append(helper.make_opsetid(domain, version))
    model.ir_version = max(model.ir_version, _FUNCTIONS_IR_VERSION)


def _check_call(node: NodeProto, function: FunctionProto, reference: str) -> None:
    what = f"{operator_name(node)} {node.name}".strip()
    for side, found, parameters in (
        ("input", node.input, function.input),
        ("output", node.output, function.output),
    ):
        if len(found) > len(parameters):
            own, others = (
                f"{count} {side}{'s' * (count != 1)}" for count in (len(found), len(parameters))
            )
            problem = f"{what} has {own}, and {reference} {others}"
            raise StageError(problem, "give the function as many parameters and results")
    known = {*function.attribute, *(attribute.name for attribute in function.attribute_proto)}
    for attribute in node.attribute:
        if attribute.name not in known:
            raise StageError(
                f"{what} has the attribute {attribute.name}, which {reference} does not take",
                suggest(attribute.name, known, what="its attributes")
                or f"give it a parameter {attribute.name}: …",
            )


def call_hook(model: ModelProto, step: Mapping[str, Any], project: Path) -> ModelProto:
    """Return the hook's graph; the hook may change ``model``.

    Raises: StageError: the function is missing, has other parameters, raises or returns no graph.
    """
    reference, kind = step["function"], step["graph"]
    surgeon: ModuleType | None = None
    if kind == "graphsurgeon":
        try:
            surgeon = import_module("onnx_graphsurgeon")
        except ImportError as error:
            raise StageError(
                f"{reference} needs onnx-graphsurgeon, which is not installed ({error})",
                "pip install onnx-graphsurgeon",
            ) from error
    hook = load_callable(reference, project)
    check_parameters(hook, reference, 1, "a surgery hook takes one, the graph", "def f(graph): …")
    ir_version = model.ir_version
    with reraise_as_stage_error(f"{reference} failed", project):
        returned = hook(surgeon.import_onnx(model) if surgeon else model)
        if surgeon and isinstance(returned, surgeon.Graph):
            returned = surgeon.export_onnx(returned)
            returned.ir_version = ir_version  # its default, the newest, is too new for runtimes
    if isinstance(returned, ModelProto):
        return returned
    hint = "end it with: return graph" if returned is None else f"return {_KINDS[kind]}"
    what = "nothing" if returned is None else with_article(type(returned).__name__)
    raise StageError(f"{reference} returned {what}; a surgery hook returns the graph", hint)
