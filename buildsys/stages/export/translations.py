"""Translations for the exporter that captures: functions of onnxscript operators by overload, checked and watched."""

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
    described_result,
    network_file,
    unknown_operator,
    watched,
)

Table = dict[
    Any, Callable[..., Any]
]  # overload -> function, as torch.onnx.export's custom_translation_table wants it


def make_translations(
    options: Mapping[str, Any], project: Path
) -> tuple[Table, list[Registration]]:
    """Return the table of an export's options; the network has been made, so that its operators are known.

    Raises: StageError: a file fails, or an operator, a number of inputs or an annotation is wrong.
    """
    files = PluginFiles(project, network_file(options["source"]))
    table: Table = {}
    registrations = []
    for entry in options["translations"]:
        registration = Registration(
            entry["op"], entry["function"], files.function(entry["function"])
        )
        overload = _overload(entry["op"])
        if overload in table:
            raise StageError(
                f"{registration.described} is registered already", "keep one of the two"
            )
        _check_annotated(registration, overload)
        _check_arity(registration, overload)
        table[overload] = _watched(registration, overload, project)
        registrations.append(registration)
    return table, registrations


def _overload(op: str) -> Any:
    """Return torch's own object for ``ns::name`` or ``ns::name.overload``."""
    name, _, overload = op.partition(".")
    namespace, _, word = name.partition("::")
    try:
        packet = getattr(getattr(torch.ops, namespace), word)
        overloads: list[str] = packet.overloads()
    except AttributeError:
        names = {known.partition(".")[0] for known in torch._C._dispatch_get_all_op_names()}
        raise unknown_operator(name, sorted(names)) from None
    of_tensors = [known for known in overloads if _may_be_captured(getattr(packet, known)._schema)]
    if overload in overloads:
        return getattr(packet, overload)
    if not overload and "default" in (of_tensors or overloads):
        return packet.default
    several = ", ".join(f"{name}.{known}" for known in of_tensors or overloads)
    problem = (
        f"{name} has no overload {overload}"
        if overload
        else f"{name} has no default overload for tensors"
    )
    raise StageError(problem, f"name one of {several}")


def _may_be_captured(schema: Any) -> bool:
    """Say whether an overload may be in a captured graph: numbers are computed while it is captured."""
    return (
        any("Tensor" in str(argument.type) for argument in schema.arguments)
        and not schema.is_mutable
    )


def _check_annotated(registration: Registration, overload: Any) -> None:
    """Find a script function that says of no output what it is: the exporter takes it for one without outputs."""
    function = registration.function
    if isinstance(function, OnnxFunction) and not (
        function.op_signature and function.op_signature.outputs
    ):
        returns = len(overload._schema.returns)
        example = (
            "-> FLOAT[...]" if returns == 1 else f"-> tuple[{', '.join(['FLOAT[...]'] * returns)}]"
        )
        raise StageError(
            f"{registration.described} is an onnxscript function whose result is not annotated, which the exporter "
            "takes for a function without outputs",
            f"annotate it: {example}",
        )


def _check_arity(registration: Registration, overload: Any) -> None:
    """Compare with the schema: inputs with a default may be left out where the network calls the operator."""
    schema = overload._schema
    positional = [argument for argument in schema.arguments if not argument.kwarg_only]
    arity, required = (
        arity_of(registration.function),
        sum(not a.has_default_value() for a in positional),
    )
    if arity is None:
        return
    if arity.least > len(schema.arguments) or (arity.most is not None and arity.most < required):
        raise StageError(
            f"{registration.described} takes {arity}, which does not fit the operator",
            f"its schema: {schema}",
        )


def _watched(registration: Registration, overload: Any, project: Path) -> Callable[..., Any]:
    returns = len(overload._schema.returns)

    def problem(_: Any, result: Any) -> str:
        values = result if isinstance(result, tuple | list) else (result,)
        wrong = [
            value
            for value in values
            if not hasattr(value, "dtype") or isinstance(value, torch.Tensor)
        ]
        if wrong:
            return f"returned {described_result(wrong[0])}; a translation returns what onnxscript operators return"
        if len(values) != returns:
            return f"returned {len(values)} outputs, and the operator has {returns}"
        return ""

    call = watched(registration, problem, project, f"its schema: {overload._schema}")
    call.__name__ = registration.origin.rpartition(":")[2]  # the exporter shows it
    return call
