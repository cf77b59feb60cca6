"""Functions of user files for an exporter: symbolics and translations.

Both exporters keep registrations in global registries and cannot forget them reliably, so they may
be made only in a process that exports once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from onnxscript import OnnxFunction
from torch.onnx._internal.torchscript_exporter.registration import registry

from buildsys.backends.operator_support import load_symbolics
from buildsys.errors import BuildsysError, StageError
from buildsys.models.user_code import describe_exception, load_callable, load_module
from buildsys.system.printable import did_you_mean

_NEW = "torch.onnx._internal.torchscript_exporter"
Table = dict[Any, Callable[..., Any]]  # overload -> function: torch's custom_translation_table


@dataclass(eq=False)
class Registration:
    """One registered function and the number of its calls."""

    op: str
    origin: str  # FILE.py:CALLABLE, or a file that registers on import
    function: Callable[..., Any]
    opset: int | None = None
    calls: int = 0

    @property
    def described(self) -> str:
        """E.g. ``aten::asinh (plugins/symbolics/asinh.py:asinh, opset 9)``."""
        return f"{self.op} ({self.origin}{'' if self.opset is None else f', opset {self.opset}'})"


def _monitored(registration: Registration, project: Path, schema: str) -> Callable[..., Any]:
    """Wrap the function with a call counter and readable errors."""

    def call(*arguments: Any, **attributes: Any) -> Any:
        registration.calls += 1
        try:
            result = registration.function(*arguments, **attributes)
        except BuildsysError:
            raise
        except Exception as error:
            raise StageError(
                f"{registration.described} raised {describe_exception(error, project)}",
                f"its schema: {schema}" if schema else "",
            ) from error
        if result is None:
            raise StageError(f"{registration.described} returned None", "return its results")
        return result

    call.__name__ = registration.origin.rpartition(":")[2]  # for messages of the exporter
    return call


def _unknown_operator(op: str, names: Sequence[str]) -> StageError:
    hint = did_you_mean(op, names, "import the file that defines it", cutoff=0.7)
    return StageError(f"torch has no operator {op}", hint)


def make_translations(
    options: Mapping[str, Any], project: Path
) -> tuple[Table, list[Registration]]:
    """Make the translation table of an export and its registrations.

    The network must be built already, as its file may define operators.
    Raises: StageError: a file fails, or an operator or annotation is wrong.
    """
    table: Table = {}
    registrations = []
    for entry in options["translations"]:
        reference = entry["function"]
        function, overload = load_callable(reference, project), _overload(entry["op"])
        registration = Registration(entry["op"], reference, function)
        if isinstance(function, OnnxFunction) and not (
            function.op_signature and function.op_signature.outputs
        ):
            raise StageError(
                f"{registration.described} is an onnxscript function without an annotated result;"
                " the exporter takes it for one without outputs",
                "annotate it: -> FLOAT[...], or a tuple of several",
            )
        table[overload] = _monitored(registration, project, str(overload._schema))
        registrations.append(registration)
    return table, registrations


def _overload(op: str) -> Any:
    """Find torch's object for ``ns::name`` or ``ns::name.overload``."""
    namespace, _, name = op.partition("::")
    word, _, overload = name.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), word), overload or "default")
    except AttributeError:
        names = torch._C._dispatch_get_all_op_names()
        raise _unknown_operator(op, sorted(names)) from None


def register_symbolics(
    options: Mapping[str, Any], project: Path, of_network: Sequence[Registration]
) -> list[Registration]:
    """Register the symbolics of an export.

    The network must be built already, as its file may define operators. ``of_network`` are those
    that it registered itself.
    Raises: StageError: a file fails, or an operator is unknown.
    """
    load_symbolics()
    operators = set(registry.all_functions())
    registrations: list[Registration] = []
    for entry in options["symbolics"]:
        if reference := entry["function"]:
            opset, function = entry["opset"], load_callable(reference, project)
            opset = opset or options["export"]["opset"]
            registrations.append(Registration(entry["op"], reference, function, opset))
            continue
        with collected_registrations(entry["module"]) as of_module:
            load_module(entry["module"], project)
        if not (of_module or of_network):
            raise StageError(
                f"{entry['module']} registers no symbolic when it is imported",
                f'decorate one with {_NEW}.registration.onnx_symbolic("aten::…", opset=…),'
                " or name op and function",
            )
        registrations += of_module or of_network
    for registration in registrations:
        schemas = torch._C._jit_get_schemas_for_operator(registration.op)
        if not schemas and registration.op not in operators:
            names = {schema.name for schema in torch._C._jit_get_all_schemas()}
            raise _unknown_operator(registration.op, sorted(names))
        function = _monitored(registration, project, str(schemas[0]) if schemas else "")
        assert registration.opset is not None
        registry.register(registration.op, registration.opset, function, custom=True)
    return registrations


@contextmanager
def collected_registrations(origin: str) -> Iterator[list[Registration]]:
    """Collect what the block adds to torch's registry, as of the file ``origin``."""
    original, registrations = registry.register, list[Registration]()

    def record(name: str, opset: int, func: Callable[..., Any], **options: Any) -> None:
        original(name, opset, func, **options)
        registrations.append(Registration(name, origin, func, opset))

    vars(registry)["register"] = record
    try:
        yield registrations
    finally:
        del vars(registry)["register"]
