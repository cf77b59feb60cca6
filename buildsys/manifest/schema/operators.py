"""The section of a manifest about custom operators: each one, with all that implements it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from buildsys.manifest.schema.base import (
    CXX_SOURCE_PATTERN,
    OPERATOR_PATTERN,
    Callable,
    Spec,
    section,
)

Operator = Annotated[str, Field(pattern=OPERATOR_PATTERN)]
LibrarySource = Annotated[str, Field(pattern=CXX_SOURCE_PATTERN)]
LIBRARY_KINDS = ("sources", "file")
PLUGIN_KINDS = ("python", "library")


class FunctionPerBackend(Spec):
    """Another local function for each backend."""

    onnxruntime: Callable | None = Field(None, description="FILE.py:NAME")
    tensorrt: Callable | None = Field(None, description="FILE.py:NAME")
    tensorrt_rtx: Callable | None = Field(None, description="FILE.py:NAME")


class BuiltLibrary(Spec):
    """A library of ONNX Runtime custom operators that is compiled here."""

    sources: tuple[LibrarySource, ...] = Field(
        min_length=1, description="C or C++ files of the project."
    )
    flags: tuple[str, ...] = Field(
        (), description="Further arguments of the compiler, such as -O3 or -lm."
    )


class GivenLibrary(Spec):
    """A library of ONNX Runtime custom operators that is there already."""

    file: str = Field(description="Path relative to the project.")


class PythonPlugin(Spec):
    """A TensorRT plugin in Python."""

    python: str = Field(description="A file of the project that holds IPluginV3 creators.")


class PluginLibrary(Spec):
    """A TensorRT plugin in a shared library."""

    library: str = Field(description="Path relative to the project.")


def _kind(value: object, kinds: tuple[str, ...]) -> str | None:
    fields = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return next((f"<{kind}>" for kind in kinds if kind in fields), None)


def _library_kind(value: object) -> str | None:
    return _kind(value, LIBRARY_KINDS)


def _plugin_kind(value: object) -> str | None:
    return _kind(value, PLUGIN_KINDS)


def _function_kind(value: object) -> str:
    return "<each>" if isinstance(value, (dict, FunctionPerBackend)) else "<all>"


OperatorFunction = Annotated[
    Annotated[Callable, Tag("<all>")] | Annotated[FunctionPerBackend, Tag("<each>")],
    Discriminator(_function_kind),
]
OperatorLibrary = Annotated[
    Annotated[BuiltLibrary, Tag("<sources>")] | Annotated[GivenLibrary, Tag("<file>")],
    Discriminator(
        _library_kind, custom_error_type="library_kind", custom_error_message="no kind of library"
    ),
]
OperatorPlugin = Annotated[
    Annotated[PythonPlugin, Tag("<python>")] | Annotated[PluginLibrary, Tag("<library>")],
    Discriminator(
        _plugin_kind, custom_error_type="plugin_kind", custom_error_message="no kind of plugin"
    ),
]


class OperatorUse(Spec):
    """Which implementation each backend takes."""

    onnxruntime: Literal["function", "library"] | None = Field(
        None, description="Default: the function, else the library."
    )
    tensorrt: Literal["function", "plugin"] | None = Field(
        None, description="Default: the function, else the plugin."
    )
    tensorrt_rtx: Literal["function", "plugin"] | None = Field(
        None, description="Default: the function, else the plugin."
    )


class OperatorSpec(Spec):
    """A custom operator and what implements it."""

    op: Operator = Field(description="The operator as nodes name it: DOMAIN::NAME.")
    function: OperatorFunction | None = Field(
        None,
        description="ONNX local function: an onnxscript function, a FunctionProto or a callable that returns one.",
    )
    library: OperatorLibrary | None = Field(None, description="ONNX Runtime custom-op library.")
    plugin: OperatorPlugin | None = Field(None, description="TensorRT plugin.")
    use: OperatorUse = section()
