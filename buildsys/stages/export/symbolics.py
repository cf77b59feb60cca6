"""Symbolic functions for the exporter that traces: found, checked against torch's schemas, registered and watched."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch
from torch.onnx._internal import torchscript_exporter
from torch.onnx._internal.torchscript_exporter import registration as torch_registration

from buildsys.errors import StageError
from buildsys.manifest.checks.symbolics import reaches
from buildsys.stages.export.registrations import (
    PluginFiles,
    Registration,
    arity_of,
    described_result,
    network_file,
    shown_schemas,
    unknown_operator,
    watched,
)

_UNPACKED = (
    "prim",
    "quantized",
)  # namespaces whose inputs are not those of the schema when a symbolic gets them
_MOVED = (
    "registration",
    "jit_utils",
)  # modules that torch.onnx._internal had itself until torch 2.9
_OLD, _NEW = "torch.onnx._internal", "torch.onnx._internal.torchscript_exporter"


def register_symbolics(options: Mapping[str, Any], project: Path) -> list[Registration]:
    """Register the symbolics of an export's options; the network has been made, so that its operators are known.

    Raises: StageError: a file fails, an operator or number of inputs is wrong, or the export's opset reaches none.
    """
    load_own_symbolics()
    opset = options["export"]["opset"]
    found = list(
        _found(options["symbolics"], PluginFiles(project, network_file(options["source"])), opset)
    )
    for index, registration in enumerate(found):
        _check_unique(registration, found[:index])
        _check_opset(registration, opset)
        schemas = _schemas(registration)
        _check_arity(registration, schemas)
        registration.why_unused = _shadowed(registration, opset)
    for registration in found:
        _register(registration, project)
    return found


def load_own_symbolics() -> None:
    """Complete torch's registry with its own symbolics of all opsets, most of which torch imports as it exports."""
    for module in iter_modules(torchscript_exporter.__path__):
        if module.name.startswith("symbolic_opset"):
            import_module(f"{_NEW}.{module.name}")


def _found(
    entries: Sequence[Mapping[str, Any]], files: PluginFiles, opset: int
) -> Iterator[Registration]:
    """Yield what the entries name, and what their files register by themselves when they are imported."""
    for entry in entries:
        file = entry["module"] or entry["function"].rpartition(":")[0]
        own: list[Registration] = []
        with _recording(own, file), _old_names():
            files.module(file)
        yield from own
        if entry["function"]:
            function = files.function(entry["function"])
            yield Registration(entry["op"], entry["function"], function, entry["opset"] or opset)
        elif not own:
            raise StageError(
                f"{file} registers no symbolic when it is imported",
                f'decorate one with {_NEW}.registration.onnx_symbolic("aten::…", opset=…), or name op and function',
            )


@contextmanager
def _recording(found: list[Registration], origin: str) -> Iterator[None]:
    """Collect what is registered inside instead of registering it."""

    def record(name: str, opset: int, func: Callable[..., Any], custom: bool = False) -> None:  # noqa: ARG001
        if "::" not in name or name.startswith("onnx::"):
            raise StageError(
                f"{origin} registers {name}, which is no operator of PyTorch",
                "wanted is a name such as aten::asinh",
            )
        found.append(Registration(name, origin, func, opset))

    methods = vars(torch_registration.registry)
    methods["register"] = record
    try:
        yield
    finally:
        del methods["register"]


@contextmanager
def _old_names() -> Iterator[None]:
    """Let a file import torch's modules of symbolics from where they were when the tutorials were written."""
    parent = import_module(_OLD)
    missing = [
        name for name in _MOVED if f"{_OLD}.{name}" not in sys.modules and not hasattr(parent, name)
    ]
    for name in missing:
        sys.modules[f"{_OLD}.{name}"] = import_module(f"{_NEW}.{name}")
        setattr(parent, name, sys.modules[f"{_OLD}.{name}"])
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[f"{_OLD}.{name}"]
            delattr(parent, name)


def _check_unique(registration: Registration, before: Sequence[Registration]) -> None:
    for other in before:
        if (other.op, other.opset) == (registration.op, registration.opset):
            raise StageError(
                f"{registration.described} is registered already by {other.origin}",
                "keep one of the two",
            )


def _check_opset(registration: Registration, asked: int) -> None:
    assert registration.opset is not None
    if not reaches(asked, registration.opset):
        raise StageError(
            f"an export to opset {asked} does not reach {registration.described}",
            f"register it at {asked} or lower, or raise export.opset",
        )


def _schemas(registration: Registration) -> list[Any]:
    """Return the operator's schemas; none for what torch's own symbolics know and no schema tells."""
    schemas = torch._C._jit_get_schemas_for_operator(registration.op)
    known = torch_registration.registry.all_functions()
    if registration.op.endswith("_") and registration.op not in known:
        raise StageError(
            f"{registration.described} would never be used: symbolics are looked up without the last underscore",
            f"write {registration.op[:-1]}",
        )
    if not schemas and registration.op not in known:
        names = {schema.name for schema in torch._C._jit_get_all_schemas()}
        raise unknown_operator(registration.op, sorted(names))
    return [
        schema for schema in schemas if not any(argument.is_out for argument in schema.arguments)
    ] or schemas


def _check_arity(registration: Registration, schemas: Sequence[Any]) -> None:
    arity = arity_of(registration.function, skip=1)
    if arity is None or not schemas or registration.op.partition("::")[0] in _UNPACKED:
        return
    if not any(arity.takes(len(schema.arguments)) for schema in schemas):
        takes = (
            f"takes the graph and {arity}" if arity.least >= 0 else "does not even take the graph"
        )
        raise StageError(
            f"{registration.described} {takes}, which fits no schema of the operator",
            f"its schema: {shown_schemas(schemas)}",
        )


def _shadowed(registration: Registration, asked: int) -> str:
    """Return why a symbolic cannot be used: torch has one of its own of a later opset."""
    group = torch_registration.registry.get_function_group(registration.op)
    if group is None:
        return ""
    own = torch_registration._dispatch_opset_version(asked, group._functions)
    if own is None or registration.opset is None or own <= registration.opset:
        return ""
    return f"at opset {asked} torch's own symbolic of opset {own} comes first; leave opset out to replace it"


def _register(registration: Registration, project: Path) -> None:
    assert registration.opset is not None
    schemas = torch._C._jit_get_schemas_for_operator(registration.op)
    takes = f"its schema: {shown_schemas(schemas)}" if schemas else ""
    function = watched(registration, _result_problem, project, takes)
    torch_registration.registry.register(registration.op, registration.opset, function, custom=True)


def _result_problem(graph: Any, result: Any) -> str:
    """Return what is wrong with what a symbolic returned for the node that ``graph`` stands at."""
    values = result if isinstance(result, tuple | list) else (result,)
    wrong = [value for value in values if not isinstance(value, torch._C.Value)]
    if not values:
        return "returned nothing; a symbolic returns what g.op(…) returns"
    outputs = graph.original_node.outputsSize()
    if len(values) != outputs:
        return f"returned {len(values)} outputs, and the operator has {outputs}"
    if isinstance(result, tuple | list) and any(
        isinstance(value, torch._C.Value) for value in values
    ):
        wrong = [
            value for value in wrong if value is not None
        ]  # an output that the network does not use
    return (
        f"returned {described_result(wrong[0])}; a symbolic returns what g.op(…) returns"
        if wrong
        else ""
    )
