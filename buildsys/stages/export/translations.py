"""Translations for dynamo: onnxscript functions per overload, checked and monitored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from onnxscript import OnnxFunction

from buildsys.errors import StageError
from buildsys.stages.export.registrations import (
    PluginFiles,
    Registration,
    arity_of,
    describe_result,
    monitored,
    unknown_operator,
)

Table = dict[Any, Callable[..., Any]]  # overload -> function: torch's custom_translation_table


def make_translations(
    options: Mapping[str, Any], project: Path
) -> tuple[Table, list[Registration]]:
    """Return the translation table of an export and its registrations.

    The network must be built already, as its file may define operators.
    Raises: StageError: a file fails, or an operator, arity or annotation is wrong.
    """
    files = PluginFiles(project, options["source"])
    table: Table = {}
    registrations = []
    for entry in options["translations"]:
        reference = entry["function"]
        registration = Registration(entry["op"], reference, files.function(reference))
        overload = _overload(entry["op"])
        if overload in table:
            raise StageError(
                f"{registration.described} is registered already", "keep one of the two"
            )
        _check(registration, overload)
        table[overload] = _monitored_translation(registration, overload, project)
        registrations.append(registration)
    return table, registrations


def _overload(op: str) -> Any:
    """Return torch's object for ``ns::name`` or ``ns::name.overload``."""
    name, _, overload = op.partition(".")
    namespace, _, word = name.partition("::")
    try:
        packet = getattr(getattr(torch.ops, namespace), word)
        overloads: list[str] = packet.overloads()
    except AttributeError:
        names = {known.partition(".")[0] for known in torch._C._dispatch_get_all_op_names()}
        raise unknown_operator(name, sorted(names)) from None
    if overload in overloads:
        return getattr(packet, overload)
    # operators on numbers are evaluated during the capture
    schemas = {known: getattr(packet, known)._schema for known in overloads}
    captured = [
        known
        for known, schema in schemas.items()
        if any("Tensor" in str(argument.type) for argument in schema.arguments)
        and not schema.is_mutable
    ]
    if not overload and "default" in (captured or overloads):
        return packet.default
    missing = f"overload {overload}" if overload else "default overload for tensors"
    choices = ", ".join(f"{name}.{known}" for known in captured or overloads)
    raise StageError(f"{name} has no {missing}", f"name one of {choices}")


def _check(registration: Registration, overload: Any) -> None:
    """Compare with the schema; calls may omit inputs with a default."""
    function, schema = registration.function, overload._schema
    is_annotated = not isinstance(function, OnnxFunction) or (
        function.op_signature and function.op_signature.outputs
    )
    if not is_annotated:
        returns = len(schema.returns)
        several = f"tuple[{', '.join(['FLOAT[...]'] * returns)}]"
        raise StageError(
            f"{registration.described} is an onnxscript function without an annotated result;"
            " the exporter takes it for one without outputs",
            f"annotate it: -> {'FLOAT[...]' if returns == 1 else several}",
        )
    arguments = schema.arguments
    required = sum(not a.kwarg_only and not a.has_default_value() for a in arguments)
    arity = arity_of(function)
    if arity is None:
        return
    if arity.least > len(arguments) or (arity.most is not None and arity.most < required):
        raise StageError(
            f"{registration.described} takes {arity}, which does not fit the operator",
            f"its schema: {schema}",
        )


def _monitored_translation(
    registration: Registration, overload: Any, project: Path
) -> Callable[..., Any]:
    returns = len(overload._schema.returns)

    def problem(_: Any, result: Any) -> str:
        values = result if isinstance(result, tuple | list) else (result,)
        for value in values:
            if not hasattr(value, "dtype") or isinstance(value, torch.Tensor):
                return (
                    f"returned {describe_result(value)};"
                    " a translation returns the results of onnxscript operators"
                )
        if len(values) != returns:
            return f"returned {len(values)} outputs, but the operator has {returns}"
        return ""

    call = monitored(registration, problem, project, f"its schema: {overload._schema}")
    call.__name__ = registration.origin.rpartition(":")[2]  # for messages of the exporter
    return call
