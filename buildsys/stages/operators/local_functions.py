"""Local functions: made from a manifest, added to models and removed."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import FunctionProto, ModelProto, NodeProto, checker

from buildsys.errors import StageError
from buildsys.models.user_code import find_object, first_line, load_module, reraise_as_stage_error
from buildsys.onnx_graphs.onnx_file import STANDARD, all_nodes, nodes_of
from buildsys.onnx_graphs.tensor_types import since_version
from buildsys.system.user_modules import source_of

_FUNCTIONS_IR_VERSION, _IR_VERSION = 8, 10  # the first with local functions, ours
OF_PYTORCH = "is PyTorch's, left untranslated by export.operator_export_type; no backend runs it"
_PYTORCH = "org.pytorch."  # the domain of nodes from operator_export_type


def function_model(references: Mapping[str, str], project: Path) -> ModelProto:
    """Make a model with only the functions of ``references``: operator -> ``FILE.py:NAME``.

    Its metadata hold their origins. Equal functions give equal bytes, whatever their doc strings.
    Raises: StageError: a function fails, is invalid, or differs from its namesake.
    """
    model = ModelProto(ir_version=_IR_VERSION)
    functions: dict[str, FunctionProto] = {}
    origins: dict[str, str] = {}
    for op, reference in references.items():
        loaded = load_functions(reference, project)
        if op not in map(operator_of, loaded):  # any name is taken for that of the operator
            loaded[0].domain, _, loaded[0].name = op.partition("::")
        for function in loaded:
            name = operator_of(function)
            _check_function(function, f"{name} ({reference})")
            if functions.setdefault(name, function) != function:
                raise StageError(
                    f"{origins[name]} and {reference} define {name} differently",
                    "rename one of the functions",
                )
            origins.setdefault(name, reference)
    model.functions.extend(functions.values())
    for op, reference in origins.items():
        model.metadata_props.add(key=op, value=reference)
    return model


def _check_function(function: FunctionProto, title: str) -> None:
    context = checker.C.CheckerContext()
    context.ir_version = _IR_VERSION
    context.opset_imports = {entry.domain: entry.version for entry in function.opset_import}
    try:
        checker.check_function(function, context)
    except checker.ValidationError as error:
        problem = f"the local function {title} is invalid: {first_line(error)}"
        raise StageError(problem, "correct the function") from error


def load_functions(reference: str, project: Path) -> list[FunctionProto]:
    """Load the functions of ``FILE.py:NAME``, the first with those that it calls.

    Raises: StageError: it raises, or is something else.
    """
    target = find_object(load_module(source_of(reference), project), reference)
    with reraise_as_stage_error(f"{reference} failed", project):
        if callable(target) and not hasattr(target, "to_function_proto"):
            target = target()
        members = list(target) if isinstance(target, (list, tuple)) else [target]
        functions = [proto for member in members for proto in _protos(member)]
    if not functions or len(functions) < len(members):
        raise StageError(
            f"{reference} gives {type(target).__name__}",
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
        items: list[Any] = [result, *all_nodes(result)]
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
    return f"{'onnx' if item.domain in STANDARD else item.domain}::{name}"


def pytorch_operators(nodes: Iterable[NodeProto]) -> list[str]:
    """List the operators that an exporter left untranslated, such as ``aten::bessel_j0``."""
    names = []
    for node in nodes:
        if node.domain.startswith((_PYTORCH, "prim")):
            called = [field.s.decode() for field in node.attribute if field.name == "operator"]
            names.append(f"{node.domain.removeprefix(_PYTORCH)}::{(*called, node.op_type)[0]}")
    return list(dict.fromkeys(names))


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
    by_name = {operator_of(function): function for function in functions.functions}
    for op, function in by_name.items():
        _merge_opsets(model, function, f"{op} ({origins[op]})")
    model.ir_version = max(model.ir_version, _FUNCTIONS_IR_VERSION)
    called = set()
    for node in nodes_of(model):
        op = operator_of(node)
        if op in by_name:
            called.add(op)
            _check_call(node, by_name[op], f"{op} ({origins[op]})")
    return [
        f"the local function {origin} is unused: no node of the graph is {op}"
        for op, origin in origins.items()
        if op not in called
    ]


def remove_functions(model: ModelProto, operators: Collection[str]) -> bool:
    """Remove functions; return False if there were none."""
    remaining = [f for f in model.functions if operator_of(f) not in operators]
    is_changed = len(remaining) < len(model.functions)
    del model.functions[:]
    model.functions.extend(remaining)
    return is_changed


def _merge_opsets(model: ModelProto, function: FunctionProto, title: str) -> None:
    """Add the domains that a function imports to a model.

    Raises: StageError: the model imports another version, with other operators.
    """
    versions = {_domain(entry): entry.version for entry in model.opset_import}
    for entry in function.opset_import:
        domain = _domain(entry)
        if domain not in versions:
            model.opset_import.add().CopyFrom(entry)
        elif (domain and entry.version != versions[domain]) or (not domain and any(
            since_version(node, versions[domain]) != since_version(node, entry.version)
            for node in all_nodes(function)
        )):  # fmt: skip
            name = domain or "opset"
            raise StageError(
                f"the local function {title} is of {name} {entry.version}, the model of {name}"
                f" {versions[domain]}, with other versions of its operators",
                f"write the function for {name} {versions[domain]}",
            )


def _domain(entry: Any) -> str:
    return "" if entry.domain in STANDARD else str(entry.domain)


def _check_call(node: NodeProto, function: FunctionProto, title: str) -> None:
    """Compare a node with the function that it calls.

    Raises: StageError: the node has other inputs, outputs or attributes.
    """
    attributes = {attribute.name for attribute in node.attribute}
    required = set(function.attribute)
    optional = {attribute.name for attribute in function.attribute_proto}
    problem = ""
    if missing := sorted(required - attributes):
        problem = f"the node lacks the attribute {missing[0]}"
    elif unknown := sorted(attributes - required - optional):
        problem = f"the function lacks the attribute {unknown[0]}"
    elif len(node.input) > len(function.input) or len(node.output) > len(function.output):
        problem = (
            f"the node has {len(node.input)} inputs and {len(node.output)} outputs, the function"
            f" {len(function.input)} and {len(function.output)}"
        )
    if problem:
        raise StageError(
            f"the local function {title} does not fit the node {node.name or node.output[0]}:"
            f" {problem}",
            "correct the inputs and attributes of the function",
        )
