"""Functions of user files for an exporter: symbolics and translations.

Both exporters keep registrations in global registries and cannot forget them reliably, so they may
be made only in a process that exports once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from onnxscript import OnnxFunction
from torch.onnx._internal.torchscript_exporter import registration as torch_registration

from buildsys.backends.operator_support import load_symbolics
from buildsys.errors import BuildsysError, StageError
from buildsys.models.user_code import describe_exception, find_callable, load_module, module_name
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


class PluginFiles:
    """User files with registrations, each executed once."""

    def __init__(self, project: Path, source: Mapping[str, Any]) -> None:
        """Reuse the module of the network's file, already executed for ``source``."""
        self._project = project
        self._modules: dict[str, ModuleType] = {}
        network = str(source["python"]).rpartition(":")[0] if "python" in source else ""
        loaded = sys.modules.get(module_name(network)) if network else None
        if loaded is not None:  # a second execution would define its operators twice
            self._modules[network] = loaded

    def module(self, file: str) -> ModuleType:
        """Load the module of a file."""
        if file not in self._modules:
            self._modules[file] = load_module(file, self._project)
        return self._modules[file]

    def function(self, reference: str) -> Callable[..., Any]:
        """Load the callable ``FILE.py:CALLABLE``."""
        return find_callable(self.module(reference.rpartition(":")[0]), reference)


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
    files = PluginFiles(project, options["source"])
    table: Table = {}
    registrations = []
    for entry in options["translations"]:
        reference = entry["function"]
        function, overload = files.function(reference), _overload(entry["op"])
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
    name, _, overload = op.partition(".")
    namespace, _, word = name.partition("::")
    try:
        packet = getattr(getattr(torch.ops, namespace), word)
        overloads: list[str] = packet.overloads()
    except AttributeError:
        names = {candidate.partition(".")[0] for candidate in torch._C._dispatch_get_all_op_names()}
        raise _unknown_operator(name, sorted(names)) from None
    if (overload or "default") in overloads:
        return getattr(packet, overload or "default")
    choices = ", ".join(f"{name}.{candidate}" for candidate in overloads)
    raise StageError(f"{name} has no overload {overload or 'default'}", f"name one of {choices}")


def register_symbolics(
    options: Mapping[str, Any], project: Path, of_network: Sequence[Registration] = ()
) -> list[Registration]:
    """Register the symbolics of an export.

    The network must be built already, as its file may define operators. ``of_network`` are those
    that it registered itself.
    Raises: StageError: a file fails, or an operator is unknown or registered twice.
    """
    load_symbolics()  # the checks below use torch's own
    files = PluginFiles(project, options["source"])
    registrations: dict[tuple[str, int | None], Registration] = {}
    for registration in _load_symbolics(options, files, of_network):
        key = registration.op, registration.opset
        if key in registrations:
            raise StageError(
                f"{registration.described} is already registered by {registrations[key].origin}",
                "keep one of the two",
            )
        registrations[key] = registration
        schemas = torch._C._jit_get_schemas_for_operator(registration.op)
        if not schemas and registration.op not in torch_registration.registry.all_functions():
            names = {schema.name for schema in torch._C._jit_get_all_schemas()}
            raise _unknown_operator(registration.op, sorted(names))
        function = _monitored(registration, project, str(schemas[0]) if schemas else "")
        assert registration.opset is not None
        torch_registration.registry.register(
            registration.op, registration.opset, function, custom=True
        )
    return list(registrations.values())


def _load_symbolics(
    options: Mapping[str, Any], files: PluginFiles, of_network: Sequence[Registration]
) -> Iterator[Registration]:
    """Yield the entries' functions and their files' own registrations."""
    for entry in options["symbolics"]:
        file = entry["module"] or entry["function"].rpartition(":")[0]
        own: list[Registration] = []
        with collected_registrations(own, file):
            files.module(file)
        if entry["module"]:  # executed when the network was built
            own += [registration for registration in of_network if registration.origin == file]
        yield from own
        if entry["function"]:
            opset = entry["opset"] or options["export"]["opset"]
            function = files.function(entry["function"])
            yield Registration(entry["op"], entry["function"], function, opset)
        elif not own:
            raise StageError(
                f"{file} registers no symbolic when it is imported",
                f'decorate one with {_NEW}.registration.onnx_symbolic("aten::…", opset=…),'
                " or name op and function",
            )


@contextmanager
def collected_registrations(
    registrations: list[Registration], origin: str, *, pass_on: bool = False
) -> Iterator[None]:
    """Collect registrations, with ``pass_on`` in addition to torch's registry."""
    original = torch_registration.registry.register

    def record(name: str, opset: int, func: Callable[..., Any], **options: Any) -> None:
        if pass_on:
            original(name, opset, func, **options)
        registrations.append(Registration(name, origin, func, opset))

    methods = vars(torch_registration.registry)
    methods["register"] = record
    try:
        yield
    finally:
        del methods["register"]
