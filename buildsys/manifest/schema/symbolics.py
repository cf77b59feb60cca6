"""The sections of a manifest that teach an exporter operators: `symbolics` (torchscript), `translations` (dynamo)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from buildsys.manifest.schema.base import MODULE_PATTERN, Callable, Spec

PythonFile = Annotated[str, Field(pattern=MODULE_PATTERN)]


class SymbolicSpec(Spec):
    """A function that writes an operator as ONNX for exporter: torchscript; or a file that registers such functions."""

    op: str | None = Field(
        None, description="Operator of PyTorch without an overload, such as aten::asinh."
    )
    function: Callable | None = Field(
        None, description="FILE.py:CALLABLE, called as f(g, *inputs)."
    )
    opset: int | None = Field(
        None, description="First opset that the function is for; not set: that of the export alone."
    )
    module: PythonFile | None = Field(
        None,
        description="Instead of the others: a file that registers symbolics when it is imported.",
    )


class TranslationSpec(Spec):
    """A function that writes an operator as ONNX for exporter: dynamo."""

    op: str = Field(description="Operator of PyTorch, such as aten::asinh or aten::add.Tensor.")
    function: Callable = Field(
        description="FILE.py:CALLABLE of onnxscript operators, called as f(*inputs)."
    )
