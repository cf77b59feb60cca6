"""The section of a manifest about graph surgery: steps that change the exported or the simplified graph."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from buildsys.manifest.schema.base import (
    AXIS_PATTERN,
    NODE_PATTERN,
    Callable,
    Dim,
    DimName,
    DType,
    Spec,
    TensorName,
)
from buildsys.manifest.schema.network import InputData, _kind
from buildsys.manifest.surgery_interface import KINDS

InnerName = Annotated[
    str, Field(min_length=1, max_length=500)
]  # exporters name tensors as they like
Axis = Annotated[str, Field(pattern=AXIS_PATTERN)]
NodeType = Annotated[str, Field(pattern=NODE_PATTERN)]


class TensorSpec(Spec):
    """A tensor that becomes an input or output."""

    shape: tuple[Dim | None, ...] | None = Field(
        None, description="Numbers, names of `dims`, or null."
    )
    dtype: DType | None = None


class NewInput(Spec):
    """An input of the graph that a hook returns."""

    shape: tuple[Dim, ...] = Field(description="Numbers and names of `dims`.")
    dtype: DType = "float32"
    data: InputData | None = Field(
        None, description="As for `inputs`; not set: as before for an input of this name."
    )


class Reference(Spec):
    """What the outputs are after a step that changes the numbers."""

    npz: str | None = Field(
        None, description="Arrays named CASE.OUTPUT, or OUTPUT where there is one case."
    )
    python: Callable | None = Field(
        None, description="FILE.py:CALLABLE, called with a case's golden inputs."
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Reference:
        if (self.npz is None) == (self.python is None):
            raise ValueError("give either npz: FILE or python: FILE.py:CALLABLE")
        return self


class _Step(Spec):
    when: Literal["after_export", "after_simplify"] = Field(
        "after_export", description="Which graph it changes."
    )


class _Numbers(_Step):
    changes: Literal["nothing", "numbers"] = Field(
        "nothing", description="Whether other outputs are meant."
    )
    reference: Reference | None = Field(None, description="With changes: numbers.")

    @model_validator(mode="after")
    def _reference_for_numbers(self) -> _Numbers:
        if self.changes == "numbers" and self.reference is None:
            raise ValueError(
                "changes: numbers needs a reference to compare with: reference: {npz: …} or {python: …}"
            )
        if self.changes == "nothing" and self.reference is not None:
            raise ValueError("a reference is compared only with changes: numbers")
        return self


class FunctionStep(_Numbers):
    """A hook of the project, called with the graph; it returns the graph to go on with."""

    function: Callable = Field(description="FILE.py:CALLABLE")
    graph: Literal["onnx", "graphsurgeon"] = Field(
        "onnx", description="onnx.ModelProto or an onnx-graphsurgeon graph."
    )
    inputs: dict[TensorName, NewInput] | None = Field(
        None, description="Its inputs, where it changes them."
    )
    outputs: dict[TensorName, TensorSpec] | None = Field(
        None, description="Its outputs, where it changes them."
    )


class RenameStep(_Step):
    """Other names for inputs and outputs."""

    rename: dict[InnerName, TensorName] = Field(min_length=1, description="Old name -> new name.")


class FixDimsStep(_Step):
    """One value for dynamic dimensions."""

    fix_dims: dict[DimName, Annotated[int, Field(ge=1)]] = Field(
        min_length=1, description="Dimension -> its value."
    )


class FreeDimsStep(_Step):
    """Fixed dimensions become dynamic ones."""

    free_dims: dict[InnerName, Annotated[dict[Axis, DimName], Field(min_length=1)]] = Field(
        min_length=1, description="Input or output -> {axis: name of `dims`}."
    )
    reference: Reference | None = Field(
        None, description="Not set: the items along the dimension are independent."
    )


class Cut(Spec):
    """Between which tensors the graph is kept."""

    inputs: dict[InnerName, TensorSpec] | None = Field(
        None, description="Not set: the inputs stay."
    )
    outputs: tuple[InnerName, ...] | None = Field(
        None, min_length=1, description="Not set: the outputs stay."
    )

    @model_validator(mode="after")
    def _something(self) -> Cut:
        if self.inputs is None and self.outputs is None:
            raise ValueError(
                "give inputs, outputs or both: between which tensors the graph is kept"
            )
        return self


class CutStep(_Step):
    """The part of the graph between named tensors."""

    cut: Cut


class Replacement(Spec):
    """An operator and the local function that takes its place."""

    op: NodeType = Field(description="Gelu, or with its domain ns::Op.")
    function: Callable = Field(
        description="FILE.py:NAME of an onnxscript function or what returns a FunctionProto."
    )
    inline: bool = Field(True, description="Put the function's nodes in place of each call.")


class ReplaceStep(_Numbers):
    """A local function in place of an operator."""

    replace: Replacement


class RemoveStep(_Numbers):
    """Nodes that pass on their first input."""

    remove: tuple[NodeType, ...] = Field(
        min_length=1, description="Operators such as Identity, Dropout, Cast."
    )
    name: str | None = Field(
        None, min_length=1, description="Only nodes whose name fits, such as *head*."
    )


class CastStep(_Step):
    """Inputs of another type, cast in the graph."""

    cast: dict[InnerName, DType] = Field(
        min_length=1, description="Input -> the type that it then has."
    )


STEP_KINDS = KINDS


def _step_kind(value: object) -> str | None:
    return _kind(value, STEP_KINDS)


SurgeryStep = Annotated[
    Annotated[FunctionStep, Tag("<function>")]
    | Annotated[RenameStep, Tag("<rename>")]
    | Annotated[FixDimsStep, Tag("<fix_dims>")]
    | Annotated[FreeDimsStep, Tag("<free_dims>")]
    | Annotated[CutStep, Tag("<cut>")]
    | Annotated[ReplaceStep, Tag("<replace>")]
    | Annotated[RemoveStep, Tag("<remove>")]
    | Annotated[CastStep, Tag("<cast>")],
    Discriminator(
        _step_kind, custom_error_type="step_kind", custom_error_message="no kind of step"
    ),
]
