"""Symbolic functions for TorchScript: loaded, checked against schemas, and registered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.onnx._internal.torchscript_exporter import registration as torch_registration

from buildsys.backends.operator_support import load_symbolics
from buildsys.errors import StageError
from buildsys.stages.export.checks import reaches
from buildsys.stages.export.registrations import (
    PluginFiles,
    Registration,
    describe_result,
    format_schemas,
    monitored,
    unknown_operator,
)

_NEW = "torch.onnx._internal.torchscript_exporter"


def register_symbolics(
    options: Mapping[str, Any], project: Path, of_network: Sequence[Registration] = ()
) -> list[Registration]:
    """Register the symbolics of an export.

    The network must be built already, as its file may define operators. ``of_network`` are those
    that it registered itself.
    Raises: StageError: a file fails, an operator is wrong, or the opset is too low.
    """
    load_symbolics()  # the checks below use torch's own
    opset = options["export"]["opset"]
    files = PluginFiles(project, options["source"])
    registrations: list[Registration] = []
    for registration in list(_load(options["symbolics"], files, opset, of_network)):
        _check(registration, registrations, opset)
        registration.why_unused = _shadowed(registration, opset)
        registrations.append(registration)
    for registration in registrations:
        schemas = torch._C._jit_get_schemas_for_operator(registration.op)
        schema = f"its schema: {format_schemas(schemas)}" if schemas else ""
        function = monitored(registration, _result_problem, project, schema)
        assert registration.opset is not None
        torch_registration.registry.register(
            registration.op, registration.opset, function, custom=True
        )
    return registrations


def _load(
    entries: Sequence[Mapping[str, Any]],
    files: PluginFiles,
    opset: int,
    of_network: Sequence[Registration],
) -> Iterator[Registration]:
    """Yield the entries' functions and their files' own registrations."""
    for entry in entries:
        file = entry["module"] or entry["function"].rpartition(":")[0]
        own: list[Registration] = []
        with collected_registrations(own, file):
            files.module(file)
        if entry["module"]:  # executed when the network was built
            own += [registration for registration in of_network if registration.origin == file]
        yield from own
        if entry["function"]:
            function = files.function(entry["function"])
            yield Registration(entry["op"], entry["function"], function, entry["opset"] or opset)
        elif not own:
            raise StageError(
                f"{file} registers no symbolic when it is imported",
                f'decorate one with {_NEW}.registration.onnx_symbolic("aten::…", opset=…),'
                " or name op and function",
            )


@contextmanager
def collected_registrations(
    found: list[Registration], origin: str, *, pass_on: bool = False
) -> Iterator[None]:
    """Collect registrations, with ``pass_on`` in addition to torch's registry."""
    original = torch_registration.registry.register

    def record(name: str, opset: int, func: Callable[..., Any], **options: Any) -> None:
        if pass_on:
            original(name, opset, func, **options)
        elif "::" not in name or name.startswith("onnx::"):
            raise StageError(
                f"{origin} registers {name}, which is not an operator of PyTorch",
                "use a name such as aten::asinh",
            )
        found.append(Registration(name, origin, func, opset))

    methods = vars(torch_registration.registry)
    methods["register"] = record
    try:
        yield
    finally:
        del methods["register"]


def _check(registration: Registration, others: Sequence[Registration], opset: int) -> None:
    described = registration.described
    for other in others:
        if (other.op, other.opset) == (registration.op, registration.opset):
            raise StageError(
                f"{described} is already registered by {other.origin}", "keep one of the two"
            )
    assert registration.opset is not None
    if not reaches(opset, registration.opset):
        raise StageError(
            f"{described} is not used in an export to opset {opset}",
            f"register it at {opset} or lower, or raise export.opset",
        )
    _check_operator(registration)


def _check_operator(registration: Registration) -> None:
    op, described = registration.op, registration.described
    schemas = torch._C._jit_get_schemas_for_operator(op)
    is_known = op in torch_registration.registry.all_functions()
    if op.endswith("_") and not is_known:
        raise StageError(
            f"{described} would never be used: symbolics are looked up without the last underscore",
            f"write {op[:-1]}",
        )
    if not schemas and not is_known:
        names = {schema.name for schema in torch._C._jit_get_all_schemas()}
        raise unknown_operator(op, sorted(names))


def _shadowed(registration: Registration, opset: int) -> str:
    """Return the reason if torch's symbolic takes precedence, else ""."""
    group = torch_registration.registry.get_function_group(registration.op)
    if group is None:
        return ""
    own = torch_registration._dispatch_opset_version(opset, group._functions)
    if own is None or registration.opset is None or own <= registration.opset:
        return ""
    return (
        f"at opset {opset}, torch's own symbolic of opset {own} takes precedence;"
        " omit opset to replace it"
    )


def _result_problem(graph: Any, result: Any) -> str:
    """Check a symbolic's result; return the problem, or ""."""
    is_several = isinstance(result, tuple | list)
    values = result if is_several else (result,)
    expected = "a symbolic returns the result of g.op(…)"
    if not values:
        return f"returned nothing; {expected}"
    outputs = graph.original_node.outputsSize()
    if len(values) != outputs:
        return f"returned {len(values)} outputs, but the operator has {outputs}"
    wrong = [value for value in values if not isinstance(value, torch._C.Value)]
    if is_several and len(wrong) < len(values):
        wrong = [value for value in wrong if value is not None]  # None: an unused output
    return f"returned {describe_result(wrong[0])}; {expected}" if wrong else ""
