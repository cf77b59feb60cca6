"""Functions of user files for an exporter: checked, registered and monitored.

Both exporters keep registrations in global registries and cannot forget them reliably, so they may
be made only in a process that exports once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from onnxscript import OnnxFunction

from buildsys.errors import BuildsysError, StageError
from buildsys.models.user_code import (
    describe_exception,
    find_callable,
    load_module,
    module_name,
    with_article,
)
from buildsys.system.suggestions import nearest

_SHOWN_SCHEMAS = 3


@dataclass(eq=False)
class Registration:
    """One registered function and the number of its calls."""

    op: str
    origin: str  # FILE.py:CALLABLE, or a file that registers on import
    function: Callable[..., Any]
    opset: int | None = None
    calls: int = 0
    why_unused: str = ""  # if known before the export

    @property
    def described(self) -> str:
        """E.g. ``aten::asinh (plugins/symbolics/asinh.py:asinh, opset 9)``."""
        return f"{self.op} ({self.origin}{'' if self.opset is None else f', opset {self.opset}'})"


class PluginFiles:
    """User files with registrations, each executed once."""

    def __init__(self, project: Path, source: dict[str, Any]) -> None:
        """Reuse the module of the network's file, already executed for ``source``."""
        self._project = project
        self._modules: dict[str, ModuleType] = {}
        network = str(source["python"]).rpartition(":")[0] if "python" in source else ""
        loaded = sys.modules.get(module_name(network)) if network else None
        if loaded is not None:  # a second execution would define its operators twice
            self._modules[network] = loaded

    def module(self, shown: str) -> ModuleType:
        """Load the module of a file."""
        if shown not in self._modules:
            self._modules[shown] = load_module(shown, self._project)
        return self._modules[shown]

    def function(self, reference: str) -> Callable[..., Any]:
        """Load the callable ``FILE.py:CALLABLE``."""
        return find_callable(self.module(reference.rpartition(":")[0]), reference)


def monitored(
    registration: Registration, check: Callable[[Any, Any], str], project: Path, schema: str
) -> Callable[..., Any]:
    """Wrap the function with a call counter and readable errors.

    ``check`` receives the first argument and the result, and returns the problem or "". ``schema``
    describes the operator.
    """

    def call(*arguments: Any, **attributes: Any) -> Any:
        registration.calls += 1
        try:
            result = registration.function(*arguments, **attributes)
        except BuildsysError:
            raise
        except Exception as error:
            hint = schema
            text = f"{error} {error.__cause__ or ''}"
            if "No schema registered" in text or "OpSchema not found" in text:
                hint = (
                    "give it one: onnxscript.values.Op(domain, name, onnx.defs.OpSchema(…)), or"
                    " call it in an @script function"
                )
            raise StageError(
                f"{registration.described} raised {describe_exception(error, project)}", hint
            ) from error
        problem = check(arguments[0] if arguments else None, result)
        if problem:
            raise StageError(f"{registration.described} {problem}", schema)
        return result

    return call


def describe_result(result: Any) -> str:
    """Return e.g. ``None`` or ``an int``."""
    return "None" if result is None else with_article(type(result).__name__)


def unknown_operator(op: str, known: Sequence[str]) -> StageError:
    """Explain that torch has no such operator, with similar names."""
    namespace, _, name = op.partition("::")
    near = nearest(op, known, cutoff=0.7)
    near = near or [other for other in known if other.endswith(f"::{name}")][:3]
    same = sorted(other for other in known if other.startswith(f"{namespace}::"))[:3]
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    elif same:
        hint = f"{namespace} has {', '.join(same)}"
    else:
        hint = "import the file that defines it"
    return StageError(f"torch has no operator {op}", hint)


def format_schemas(schemas: Sequence[Any]) -> str:
    """Format the signatures of an operator in torch's notation."""
    more = f" and {len(schemas) - _SHOWN_SCHEMAS} more" if len(schemas) > _SHOWN_SCHEMAS else ""
    return "; ".join(str(schema) for schema in schemas[:_SHOWN_SCHEMAS]) + more


Table = dict[Any, Callable[..., Any]]  # overload -> function: torch's custom_translation_table


def make_translations(
    options: Mapping[str, Any], project: Path
) -> tuple[Table, list[Registration]]:
    """Make the translation table of an export and its registrations.

    The network must be built already, as its file may define operators.
    Raises: StageError: a file fails, or an operator or annotation is wrong.
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
    """Find torch's object for ``ns::name`` or ``ns::name.overload``."""
    name, _, overload = op.partition(".")
    namespace, _, word = name.partition("::")
    try:
        packet = getattr(getattr(torch.ops, namespace), word)
        overloads: list[str] = packet.overloads()
    except AttributeError:
        names = {candidate.partition(".")[0] for candidate in torch._C._dispatch_get_all_op_names()}
        raise unknown_operator(name, sorted(names)) from None
    if overload in overloads:
        return getattr(packet, overload)
    # operators on numbers are evaluated during the capture
    schemas = {candidate: getattr(packet, candidate)._schema for candidate in overloads}
    captured = [
        candidate
        for candidate, schema in schemas.items()
        if any("Tensor" in str(argument.type) for argument in schema.arguments)
        and not schema.is_mutable
    ]
    if not overload and "default" in (captured or overloads):
        return packet.default
    missing = f"overload {overload}" if overload else "default overload for tensors"
    choices = ", ".join(f"{name}.{candidate}" for candidate in captured or overloads)
    raise StageError(f"{name} has no {missing}", f"name one of {choices}")


def _check(registration: Registration, overload: Any) -> None:
    """Refuse an onnxscript function without an annotated result."""
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
