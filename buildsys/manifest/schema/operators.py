"""The section ``ops``: custom operators and their implementations."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from buildsys.manifest.schema.base import (
    CXX_SOURCE_PATTERN,
    OPERATOR_PATTERN,
    Callable,
    Spec,
    kind_by_field,
    section,
)

Operator = Annotated[str, Field(pattern=OPERATOR_PATTERN)]
LibrarySource = Annotated[str, Field(pattern=CXX_SOURCE_PATTERN)]
LIBRARY_KINDS = ("sources", "file")
PLUGIN_KINDS = ("python", "library")


class FunctionPerBackend(Spec):
    """A different local function for each backend."""

    onnxruntime: Callable | None = Field(None, description="FILE.py:NAME")
    tensorrt: Callable | None = Field(None, description="FILE.py:NAME")
    tensorrt_rtx: Callable | None = Field(None, description="FILE.py:NAME")


class BuiltLibrary(Spec):
    """A library of ONNX Runtime custom operators, compiled from sources."""

    sources: tuple[LibrarySource, ...] = Field(min_length=1, description="C or C++ files.")
    flags: tuple[str, ...] = Field((), description="Compiler arguments, such as -O3 or -lm.")


class GivenLibrary(Spec):
    """An existing library of ONNX Runtime custom operators."""

    file: str = Field(description="Path relative to the project.")


class PythonPlugin(Spec):
    """A TensorRT plugin in Python."""

    python: str = Field(description="A file of the project with IPluginV3 creators.")


class PluginLibrary(Spec):
    """A TensorRT plugin in a shared library."""

    library: str = Field(description="Path relative to the project.")


def _function_kind(value: object) -> str:
    return "<each>" if isinstance(value, (dict, FunctionPerBackend)) else "<all>"


OperatorFunction = Annotated[
    Annotated[Callable, Tag("<all>")] | Annotated[FunctionPerBackend, Tag("<each>")],
    Discriminator(_function_kind),
]
OperatorLibrary = Annotated[
    Annotated[BuiltLibrary, Tag("<sources>")] | Annotated[GivenLibrary, Tag("<file>")],
    Discriminator(
        kind_by_field(LIBRARY_KINDS),
        custom_error_type="library_kind",
        custom_error_message="unknown kind of library",
    ),
]
OperatorPlugin = Annotated[
    Annotated[PythonPlugin, Tag("<python>")] | Annotated[PluginLibrary, Tag("<library>")],
    Discriminator(
        kind_by_field(PLUGIN_KINDS),
        custom_error_type="plugin_kind",
        custom_error_message="unknown kind of plugin",
    ),
]
PluginUse = Literal["function", "plugin"]


class OperatorUse(Spec):
    """The implementation used by each backend."""

    onnxruntime: Literal["function", "library"] | None = Field(
        None, description="Default: the function, else the library."
    )
    tensorrt: PluginUse | None = Field(None, description="Default: function, else plugin.")
    tensorrt_rtx: PluginUse | None = Field(None, description="Default: function, else plugin.")


class OperatorSpec(Spec):
    """A custom operator and its implementations."""

    op: Operator = Field(description="The operator in the graph: DOMAIN::NAME.")
    function: OperatorFunction | None = Field(
        None,
        description="ONNX local function: an onnxscript function, a FunctionProto or a factory.",
    )
    library: OperatorLibrary | None = Field(None, description="ONNX Runtime custom-op library.")
    plugin: OperatorPlugin | None = Field(None, description="TensorRT plugin.")
    use: OperatorUse = section()
