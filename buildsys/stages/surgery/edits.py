"""Edits of a graph: names, types and cuts of its ends, and hooks."""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from onnx import ModelProto, ValueInfoProto, helper

from buildsys.errors import StageError
from buildsys.manifest.problem import suggest
from buildsys.models.user_code import load_callable, reraise_as_stage_error
from buildsys.onnx_graphs.onnx_file import elem_type, nodes_of
from buildsys.onnx_graphs.tensor_names import rename_tensors
from buildsys.onnx_graphs.tensor_types import FreshNames, outer_names, rename_uses
from buildsys.stages.operators.local_functions import operator_of, remove_functions

Step = Mapping[str, Any]
Kinds = Mapping[str, tuple[str, int]]  # tensor -> dtype and number of dimensions


def rename(model: ModelProto, step: Step) -> ModelProto:
    """Rename inputs and outputs.

    Raises: StageError: there is no such name, or the new one is in use.
    """
    names, ports = step["rename"], [*input_names(model), *output_names(model)]
    for old, new in names.items():
        _require(old, ports, "input or output")
        if new in ports and new not in names:
            raise StageError(
                f"{old} cannot be renamed to {new}: the graph has a tensor of this name",
                "choose another name",
            )
    rename_tensors(model, names)
    return model


def cast(model: ModelProto, step: Step) -> ModelProto:
    """Change input types, with a Cast to the old type.

    Raises: StageError: there is no such input, or it is an output as well.
    """
    fresh = FreshNames(model.graph)
    for name, dtype in step["cast"].items():
        _require(name, input_names(model), "input")
        if name in output_names(model):
            raise StageError(
                f"the input {name} is also an output, so its type cannot be changed",
                "put an Identity node between them in the network",
            )
        tensor = next(v for v in model.graph.input if v.name == name).type.tensor_type
        inner = fresh.new(f"{name}_as_it_was")
        rename_uses(model.graph, {name: inner})
        node = helper.make_node(
            "Cast", [name], [inner], fresh.new(f"Cast_{name}"), to=tensor.elem_type
        )
        model.graph.node.insert(0, node)
        tensor.elem_type = elem_type(dtype)
    return model


def cut_tensors(model: ModelProto, step: Step) -> tuple[list[str], list[str]]:
    """List the inputs and outputs of the part. Raises: StageError: there is no such tensor."""
    cut = step["cut"]
    inputs = list(input_names(model) if cut["inputs"] is None else cut["inputs"])
    outputs = list(output_names(model) if cut["outputs"] is None else cut["outputs"])
    tensors = _tensor_names(model)
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
    graph, needed, nodes = model.graph, set(outputs) - set(inputs), []
    for node in reversed(graph.node):  # topologically sorted
        if needed.intersection(node.output):
            nodes.append(node)
            needed |= {*node.input, *outer_names(node)} - set(inputs)
    nodes.reverse()
    used = {name for node in nodes for name in (*node.input, *outer_names(node))}
    made = {name for node in nodes for name in node.output}
    for names, text in (
        ([n for n in outputs if n not in made], "no node of the cut part computes {}"),
        ([n for n in inputs if n not in used], "the outputs do not depend on {}"),
        ([n for n in input_names(model) if n in needed], "the cut part also needs the input {}"),
    ):
        if names:
            raise StageError(text.format(names[0]), "correct cut.inputs or cut.outputs")

    def port(name: str, shape: Sequence[Any]) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, elem_type(kinds[name][0]), list(shape))

    old_outputs = {value.name: value for value in graph.output}
    new_outputs = [old_outputs.get(name) or port(name, [None] * kinds[name][1]) for name in outputs]
    replace_messages(graph.node, nodes)
    replace_messages(graph.initializer, [t for t in graph.initializer if t.name in needed])
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


def _tensor_names(model: ModelProto) -> list[str]:
    """List inputs, initializers and node outputs, without those of subgraphs."""
    names = [tensor.name for tensor in (*model.graph.input, *model.graph.initializer)]
    names += [name for node in model.graph.node for name in node.output if name]
    return [*dict.fromkeys(names)]


def _require(name: str, names: Sequence[str], what: str) -> None:
    if name not in names:
        raise StageError(
            f"the graph has no {what} {name}", suggest(name, names, what=f"its {what}s")
        )


def replace_messages(field: Any, messages: Iterable[Any]) -> None:
    """Set a repeated field to copies of ``messages``, also from the field."""
    copies = [deepcopy(message) for message in messages]
    del field[:]
    field.extend(copies)


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
    ir_version = model.ir_version
    with reraise_as_stage_error(f"{reference} failed", project):
        returned = hook(surgeon.import_onnx(model) if surgeon else model)
        if surgeon and isinstance(returned, surgeon.Graph):
            returned = surgeon.export_onnx(returned)
            returned.ir_version = ir_version  # its default, the newest, is too new for runtimes
    if isinstance(returned, ModelProto):
        return returned
    problem = f"{reference} returned {type(returned).__name__}, not a graph"
    raise StageError(problem, "end it with: return graph")
