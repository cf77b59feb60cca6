"""Operators registered with an exporter."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from buildsys.manifest.schema.base import MODULE_PATTERN, Callable, Spec

PythonFile = Annotated[str, Field(pattern=MODULE_PATTERN)]


class SymbolicSpec(Spec):
    """A symbolic function, or a file registering such functions, for torchscript."""

    op: str | None = Field(None, description="Operator without overload, such as aten::asinh.")
    function: Callable | None = Field(
        None, description="FILE.py:CALLABLE: f(g, *inputs) returns the result of g.op(...)."
    )
    opset: int | None = Field(
        None, description="First opset of the function; default: the export's opset only."
    )
    module: PythonFile | None = Field(
        None, description="Instead of the others: a file that registers symbolics on import."
    )


class TranslationSpec(Spec):
    """A translation of an operator to ONNX for exporter: dynamo."""

    op: str = Field(
        description="Operator of PyTorch or the network's file, such as aten::add.Tensor."
    )
    function: Callable = Field(description="FILE.py:CALLABLE of onnxscript operators: f(*inputs).")
