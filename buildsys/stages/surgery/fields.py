"""The section ``surgery``: changes to the exported or simplified graph."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from buildsys.manifest.schema.base import Callable, Dim, DType, OneOf, Spec, TensorName
from buildsys.manifest.schema.files import ProjectFile
from buildsys.manifest.schema.network import InputData
from buildsys.manifest.shape_cases import KINDS

# exporters use any characters in the names of inner tensors
InnerName = Annotated[str, Field(min_length=1, max_length=500)]


class TensorSpec(Spec):
    """A tensor to be an input or output."""

    shape: tuple[Dim | None, ...] | None = None
    """Numbers, names of `dims`, or null; required if it was not an input."""
    dtype: DType | None = None
    """Type of the elements; default: float32 if it was not an input."""


class NewInput(Spec):
    """An input of the graph returned by a hook."""

    shape: tuple[Dim, ...] = Field(description="Numbers and names of `dims`.")
    dtype: DType = Field("float32", description="Type of the elements.")
    data: InputData | None = None
    """As for `inputs`; default: the values of the input of this name."""


class Reference(Spec):
    """Expected outputs after a numeric change."""

    npz: ProjectFile | None = None
    """File with arrays CASE.OUTPUT, or OUTPUT if there is one case."""
    python: Callable | None = None
    """FILE.py:CALLABLE: f(inputs) or f(inputs, outputs) of a case."""

    @model_validator(mode="after")
    def _check_one_of_both(self) -> "Reference":
        if (self.npz is None) == (self.python is None):
            raise ValueError("expected either npz: FILE or python: FILE.py:CALLABLE")
        return self


class _Step(Spec):
    when: Literal["after_export", "after_simplify"] = "after_export"
    """The graph to change."""


class FunctionStep(_Step):
    """A hook of the project, called with the graph."""

    function: Callable
    """FILE.py:CALLABLE, which takes the graph, may change it and returns a graph."""
    graph: Literal["onnx", "graphsurgeon"] = "onnx"
    """onnx.ModelProto, or a graph of onnx-graphsurgeon."""
    inputs: dict[TensorName, NewInput] | None = None
    """The inputs, if the hook changes them; new ones need changes: numbers."""
    outputs: dict[TensorName, TensorSpec] | None = None
    """The outputs, if the hook changes them; new ones need changes: numbers."""
    changes: Literal["nothing", "numbers"] = "nothing"
    """numbers: the outputs change, to those of `reference`."""
    reference: Reference | None = Field(None, description="With changes: numbers.")

    @model_validator(mode="after")
    def _check_reference(self) -> "FunctionStep":
        if self.changes == "numbers" and self.reference is None:
            raise ValueError(
                "changes: numbers needs expected outputs; add reference: {npz: …} or {python: …}"
            )
        if self.changes == "nothing" and self.reference is not None:
            raise ValueError("reference has no effect without changes: numbers")
        return self


class RenameStep(_Step):
    """Rename inputs and outputs."""

    rename: dict[InnerName, TensorName] = Field(min_length=1)
    """Old name -> new name, of inputs and outputs."""


class Cut(Spec):
    """The tensors to cut a graph at."""

    inputs: dict[InnerName, TensorSpec] | None = Field(None, description="Default: unchanged.")
    outputs: tuple[InnerName, ...] | None = Field(None, min_length=1)
    """Default: unchanged."""

    @model_validator(mode="after")
    def _check_not_empty(self) -> "Cut":
        if self.inputs is None and self.outputs is None:
            raise ValueError("expected inputs, outputs or both")
        return self


class CutStep(_Step):
    """Keep the part of the graph between named tensors."""

    cut: Cut = Field(description="The tensors between which the graph is kept.")


class CastStep(_Step):
    """Change the type of inputs and cast them in the graph."""

    cast: dict[InnerName, DType] = Field(min_length=1, description="Input -> its new type.")


SurgeryStep = Annotated[FunctionStep | RenameStep | CutStep | CastStep, OneOf(KINDS)]


class Sections(Spec):
    """The section of the stage."""

    surgery: tuple[SurgeryStep, ...] = Field((), description="Changes to the graph, in order.")
