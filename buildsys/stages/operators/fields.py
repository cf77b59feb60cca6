"""Custom operators and their implementations."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from buildsys.manifest.schema.base import Callable, OneOf, Spec, form, text
from buildsys.manifest.schema.files import NAMES_FILE, ProjectFile
from buildsys.system.backend_registry import backend_names, describe_backend

_OPERATOR = "an operator with its domain such as custom_domain::customOp"
Operator = Annotated[str, text(r"^[A-Za-z_][A-Za-z0-9_.-]*::[A-Za-z_][A-Za-z0-9_]*$", _OPERATOR)]
_SOURCE = r"^.+\.(c|cc|cpp|cxx)$"
LibrarySource = Annotated[str, text(_SOURCE, "a C or C++ file (.c, .cc, .cpp, .cxx)"), NAMES_FILE]


if TYPE_CHECKING:
    Backend = str
    OperatorKind = str
else:
    _KINDS = {name: describe_backend(name).operator_kinds for name in backend_names()}
    Backend = Literal[tuple(name for name, kinds in _KINDS.items() if kinds)]
    OperatorKind = Literal[tuple(dict.fromkeys(chain.from_iterable(_KINDS.values())))]


class BuiltLibrary(Spec):
    """A library of ONNX Runtime custom operators, compiled from sources."""

    sources: tuple[LibrarySource, ...] = Field(min_length=1)
    """C or C++ files that define RegisterCustomOps."""
    flags: tuple[str, ...] = Field((), description="Compiler arguments, such as -O3 or -lm.")


class GivenLibrary(Spec):
    """An existing library of ONNX Runtime custom operators."""

    file: ProjectFile
    """A library for this machine that exports RegisterCustomOps."""


class PythonPlugin(Spec):
    """A TensorRT plugin in Python."""

    python: ProjectFile = Field(description="A file of the project with IPluginV3 creators.")


class PluginLibrary(Spec):
    """A TensorRT plugin in a shared library."""

    library: ProjectFile = Field(description="A library for this machine with plugin creators.")


class BundledPlugin(Spec):
    """A plugin of TensorRT's own library, named like the operator."""

    bundled: Annotated[Literal[True], form("true", lambda value: value is True)]
    """true: TensorRT's library has a plugin of the operator's name."""


OperatorFunction = Annotated[
    Callable | dict[Backend, Callable],
    OneOf(("all", "each"), choose=lambda value: "all" if isinstance(value, str) else "each"),
]
OperatorLibrary = Annotated[BuiltLibrary | GivenLibrary, OneOf(("sources", "file"))]
OperatorPlugin = Annotated[
    PythonPlugin | PluginLibrary | BundledPlugin, OneOf(("python", "library", "bundled"))
]


class OperatorSpec(Spec):
    """A custom operator and its implementations."""

    op: Operator = Field(description="The operator in the graph: DOMAIN::NAME.")
    function: OperatorFunction | None = None
    """ONNX local function: an onnxscript function, a FunctionProto or a factory."""
    library: OperatorLibrary | None = Field(None, description="ONNX Runtime custom-op library.")
    plugin: OperatorPlugin | None = Field(None, description="TensorRT plugin.")
    use: dict[Backend, OperatorKind] = Field({})
    """Kind of implementation by backend; default: the first that it has."""


class Sections(Spec):
    """The section of the stage."""

    ops: tuple[OperatorSpec, ...] = Field((), description="Custom operators, implemented here.")
