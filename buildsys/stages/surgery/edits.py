"""Edits of a graph: names, types and cuts of its ends, replaced operators, and hooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import onnx.inliner
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper, shape_inference

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
    elem_type,
    operator_counts,
    operator_name,
    opsets,
    subgraphs,
)
from buildsys.onnx_graphs.tensor_types import FreshNames, rename_uses
from buildsys.stages.operators.local_functions import (
    FUNCTIONS_IR_VERSION,
    check_call,
    load_functions,
    merge_opsets,
    nodes_of,
    operator_of,
    remove_functions,
)

Step = Mapping[str, Any]
Inputs = Mapping[str, Mapping[str, Any]]
Kinds = Mapping[str, tuple[str, int]]  # tensor -> dtype and number of dimensions


def rename(model: ModelProto, step: Step) -> ModelProto:
    """Rename inputs and outputs.

    Raises: StageError: there is no such name, or the new one is in use.
    """
    names: Mapping[str, str] = step["rename"]
    for old in names:
        _require(old, [*input_names(model), *output_names(model)], "input or output")
    used = {name for name in _tensor_names(model.graph) if name not in names}
    for old, new in names.items():
        if new in used:
            raise StageError(
                f"{old} cannot be renamed to {new}: the graph has a tensor of this name",
                "choose another name",
            )
    _rename_tensors(model.graph, names)
    return model


def _rename_tensors(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Rename tensors everywhere, including subgraphs; new names must be unused."""
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = names.get(value.name, value.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = names.get(sparse.values.name, sparse.values.name)
    for note in graph.quantization_annotation:
        note.tensor_name = names.get(note.tensor_name, note.tensor_name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for body in subgraphs(node):
            _rename_tensors(body, names)


def fix_dims(model: ModelProto, step: Step, inputs: Inputs) -> ModelProto:
    """Set dynamic dimensions to one value; ``inputs`` has the manifest's names."""
    values: dict[str, int] = dict(step["fix_dims"])
    for value in model.graph.input:
        for axis, size in enumerate(inputs[value.name]["shape"] if value.name in inputs else ()):
            if size in step["fix_dims"]:
                dim = value.type.tensor_type.shape.dim[axis]
                values.setdefault(dim.dim_param, step["fix_dims"][size])  # the file's own name
                dim.dim_value = step["fix_dims"][size]
    values.pop("", None)
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in values:
                dim.dim_value = values[dim.dim_param]
    return model


def cast(model: ModelProto, step: Step) -> ModelProto:
    """Change input types, with a Cast to the old type.

    Raises: StageError: there is no such input, or it is an output as well.
    """
    types: Mapping[str, str] = step["cast"]
    for name in types:
        _require(name, input_names(model), "input")
    fresh_names = FreshNames(model.graph)
    chosen = [value for value in model.graph.input if value.name in types]
    for number, value in enumerate(chosen):
        tensor = value.type.tensor_type
        if value.name in output_names(model):
            raise StageError(
                f"the input {value.name} is also an output, so its type cannot be changed",
                "put an Identity node between them in the network",
            )
        inner = fresh_names.new(f"{value.name}_as_it_was")
        rename_uses(model.graph, {value.name: inner})
        name = fresh_names.new(f"Cast_{value.name}")
        node = helper.make_node("Cast", [value.name], [inner], name=name, to=tensor.elem_type)
        model.graph.node.insert(number, node)
        tensor.elem_type = elem_type(types[value.name])
    return model


def cut_tensors(model: ModelProto, step: Step) -> tuple[list[str], list[str]]:
    """List the inputs and outputs of the part.

    Raises: StageError: there is no such tensor.
    """
    cut = step["cut"]
    inputs = list(input_names(model) if cut["inputs"] is None else cut["inputs"])
    outputs = list(output_names(model) if cut["outputs"] is None else cut["outputs"])
    tensors = _tensor_names(model.graph)
    for name in (*inputs, *outputs):
        _require(name, tensors, "tensor")
    return inputs, outputs


def cut(
    model: ModelProto, step: Step, shapes: Mapping[str, Sequence[Any]], kinds: Kinds
) -> ModelProto:
    """Reduce the model to the nodes between the step's tensors.

    ``shapes`` are those of the new inputs, ``kinds`` those of all cut tensors, as computed.
    Raises: StageError: nothing is left, an input is unused, or another input is still needed.
    """
    inputs, outputs = cut_tensors(model, step)
    graph = model.graph
    needed, nodes = set(outputs) - set(inputs), []
    for node in reversed(graph.node):  # topologically sorted
        if needed.intersection(node.output):
            nodes.append(node)
            needed.update(name for name in _used_by(node) if name not in inputs)
    nodes.reverse()
    used = {name for node in nodes for name in _used_by(node)}
    made = {name for node in nodes for name in node.output}
    for name in outputs:
        if name not in made:
            problem = f"the cut leaves no node: {name} is not computed from"
            problem += f" {', '.join(inputs) or 'any input'}"
            raise StageError(problem, "name outputs downstream of the inputs")
    for name in inputs:
        if name not in used:
            problem = f"{', '.join(outputs)} does not depend on {name}"
            raise StageError(problem, "list only needed tensors in cut.inputs")
    for name in input_names(model):
        if name in used and name not in inputs:
            problem = f"the cut part still needs the input {name}"
            raise StageError(problem, "name it in cut.inputs as well")
    try:
        inferred = shape_inference.infer_shapes(model).graph
        values = (*inferred.output, *inferred.value_info)
    except (ValueError, RuntimeError):  # 2 GiB and more; use the computed types
        values = ()
    typed = {value.name: value for value in values if value.type.tensor_type.elem_type}

    def port(name: str, shape: Sequence[Any]) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, elem_type(kinds[name][0]), list(shape))

    stored = (used | set(outputs)) - set(inputs)
    new_outputs = [typed.get(name) or port(name, [None] * kinds[name][1]) for name in outputs]
    replace_messages(graph.node, nodes)
    replace_messages(graph.initializer, [t for t in graph.initializer if t.name in stored])
    replace_messages(graph.input, [port(name, shapes[name]) for name in inputs])
    replace_messages(graph.output, new_outputs)
    called = {operator_of(node) for node in nodes_of(model)}
    remove_functions(model, {operator_of(f) for f in model.functions} - called)
    return model


def input_names(model: ModelProto) -> list[str]:
    """List the inputs without initializers."""
    stored = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name not in stored]


def output_names(model: ModelProto) -> list[str]:
    """List the outputs."""
    return [value.name for value in model.graph.output]


def _tensor_names(graph: GraphProto) -> list[str]:
    """List inputs, initializers and node outputs, without those of subgraphs."""
    names = [value.name for value in graph.input] + [tensor.name for tensor in graph.initializer]
    names += [name for node in graph.node for name in node.output if name]
    return [*dict.fromkeys(names)]


def _require(name: str, names: Sequence[str], what: str) -> None:
    if name not in names:
        raise StageError(
            f"the graph has no {what} {name}", suggest(name, names, what=f"its {what}s")
        )


def _used_by(node: NodeProto) -> list[str]:
    """List the tensors a node reads, also inside its subgraphs."""
    names = [name for name in node.input if name]
    for body in subgraphs(node):
        own = {*_tensor_names(body)}
        names += [name for inner in body.node for name in _used_by(inner) if name not in own]
        names += [value.name for value in body.output if value.name not in own]
    return names


def replace_messages(field: Any, messages: Iterable[Any]) -> None:
    """Set a repeated field to copies of ``messages``, also from the field."""
    copies = []
    for message in messages:
        copies.append(type(message)())
        copies[-1].CopyFrom(message)
    del field[:]
    field.extend(copies)


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
    function = load_functions(reference, project)[0]
    if operator_of(function) in map(operator_of, model.functions):
        problem = f"the graph already has a local function {operator_of(function)}"
        raise StageError(problem, "rename the replacement")
    merge_opsets(model, function, reference)
    for entry in function.opset_import:  # with the same operators; the inliner compares numbers
        entry.version = opsets(model)[entry.domain or "ai.onnx"]
    model.functions.append(function)
    if function.domain not in opsets(model):
        model.opset_import.append(helper.make_opsetid(function.domain, 1))
    model.ir_version = max(model.ir_version, FUNCTIONS_IR_VERSION)
    for node in nodes:
        check_call(node, function, reference)
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


def call_hook(model: ModelProto, step: Step, project: Path) -> ModelProto:
    """Call the hook, which may change ``model``.

    Raises: StageError: the function is missing, has other parameters, raises or returns no graph.
    """
    reference = step["function"]
    surgeon: ModuleType | None = None
    if step["graph"] == "graphsurgeon":
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
    what = "nothing" if returned is None else with_article(type(returned).__name__)
    raise StageError(
        f"{reference} returned {what}; a surgery hook returns the graph",
        "end it with: return graph",
    )
