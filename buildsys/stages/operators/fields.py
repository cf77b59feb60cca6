"""Custom operators and their implementations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, create_model, model_serializer

from buildsys.manifest.schema.base import (
    CXX_SOURCE_PATTERN,
    OPERATOR_PATTERN,
    Callable,
    OneOf,
    Spec,
    form,
    section,
)
from buildsys.system.backend_registry import backend_names, describe_backend

Operator = Annotated[str, Field(pattern=OPERATOR_PATTERN)]
LibrarySource = Annotated[str, Field(pattern=CXX_SOURCE_PATTERN)]


class _PerBackend(Spec):
    """A value for each backend; a backend that someone installs changes no resolved manifest."""

    @model_serializer(mode="wrap")
    def _given(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value is not None}


def _use_of(backend: str) -> Any:
    kinds = describe_backend(backend).operator_kinds
    text = f"Default: {kinds[0]}{''.join(f', else {kind}' for kind in kinds[1:])}."
    return (Literal[kinds] | None, Field(None, description=text))


if TYPE_CHECKING:

    class FunctionPerBackend(Spec):
        """A different local function for each backend."""

    class OperatorChoice(Spec):
        """The implementation used by each backend."""

else:
    _BACKENDS = [name for name in backend_names() if describe_backend(name).operator_kinds]
    _FUNCTION = (Callable | None, Field(None, description="FILE.py:NAME"))
    FunctionPerBackend = create_model(
        "FunctionPerBackend",
        __base__=_PerBackend,
        __doc__="A different local function for each backend.",
        **dict.fromkeys(_BACKENDS, _FUNCTION),
    )
    OperatorChoice = create_model(
        "OperatorChoice",
        __base__=_PerBackend,
        __doc__="The implementation used by each backend.",
        **{name: _use_of(name) for name in _BACKENDS},
    )


class BuiltLibrary(Spec):
    """A library of ONNX Runtime custom operators, compiled from sources."""

    sources: tuple[LibrarySource, ...] = Field(min_length=1)
    """C or C++ files that define RegisterCustomOps."""
    flags: tuple[str, ...] = Field((), description="Compiler arguments, such as -O3 or -lm.")


class GivenLibrary(Spec):
    """An existing library of ONNX Runtime custom operators."""

    file: str = Field(description="A library for this machine that exports RegisterCustomOps.")


class PythonPlugin(Spec):
    """A TensorRT plugin in Python."""

    python: str = Field(description="A file of the project with IPluginV3 creators.")


class PluginLibrary(Spec):
    """A TensorRT plugin in a shared library."""

    library: str = Field(description="A library for this machine with plugin creators.")


class BundledPlugin(Spec):
    """A plugin of TensorRT's own library, named like the operator."""

    bundled: Annotated[Literal[True], form("true", lambda value: value is True)]
    """true: TensorRT's library has a plugin of the operator's name."""


OperatorFunction = Annotated[
    Callable | FunctionPerBackend,
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
    use: OperatorChoice = section()


class Sections(Spec):
    """The section of the stage."""

    ops: tuple[OperatorSpec, ...] = Field((), description="Custom operators, implemented here.")
