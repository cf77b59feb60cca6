"""Fields of manifests about the export."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from buildsys.manifest.schema.base import Callable, Spec, form, section, text
from buildsys.manifest.schema.files import NAMES_FILE


def _is_bool_or_strings(value: object) -> bool:
    return isinstance(value, bool) or (
        isinstance(value, tuple) and all(isinstance(name, str) for name in value)
    )


Modules = Annotated[
    bool | tuple[str, ...], form("true, false or a list of class paths", _is_bool_or_strings)
]
_FILE = "a Python file such as plugins/symbolics/asinh.py"
PythonFile = Annotated[str, text(r"^[^:]+\.py$", _FILE), NAMES_FILE]
_SYMBOL = "an operator of PyTorch without overload such as aten::asinh"
Symbol = Annotated[str, text(r"^\w+::\w+$", _SYMBOL)]
_OVERLOAD = "an operator with its namespace such as aten::add.Tensor"
Overload = Annotated[str, text(r"^\w+::\w+(\.\w+)?$", _OVERLOAD)]
RandomOperator = Literal[
    "BatchNormalization", "Bernoulli", "Dropout", "Multinomial", "RandomNormal",
    "RandomNormalLike", "RandomUniform", "RandomUniformLike",
]  # fmt: skip
_TORCHSCRIPT = Field(None, description="torchscript only.")
_DYNAMO = Field(None, description="dynamo only.")


class ExportSpec(Spec):
    """Options of torch.onnx.export under torch's names; unset options keep torch's defaults."""

    exporter: Literal["torchscript", "dynamo"] = "torchscript"
    """Exporter of torch.onnx; both take the same manifest."""
    opset: int = Field(17, description="Opset of the file: torchscript 6 to 23, dynamo 7 to 28.")
    export_params: bool | None = None
    """Keep the weights in the file; false is refused."""
    keep_initializers_as_inputs: bool | None = None
    """List initializers as graph inputs as well."""
    do_constant_folding: bool | None = _TORCHSCRIPT
    training: Literal["eval", "preserve", "train"] | None = _TORCHSCRIPT
    custom_opsets: dict[str, int] | None = _TORCHSCRIPT
    autograd_inlining: bool | None = _TORCHSCRIPT
    operator_export_type: (
        Literal["onnx", "onnx_aten", "onnx_aten_fallback", "onnx_fallthrough"] | None
    ) = _TORCHSCRIPT
    export_modules_as_functions: Modules | None = None
    """torchscript only; true, or class paths such as torch.nn.ReLU."""
    optimize: bool | None = _DYNAMO
    verify: bool | None = _DYNAMO
    report: bool | None = Field(None, description="dynamo only; written next to the model.")
    profile: bool | None = _DYNAMO
    dump_exported_program: bool | None = _DYNAMO
    external_data: bool | None = None
    """dynamo only; default: weights above 64 MiB go to model.onnx.data."""
    random: tuple[RandomOperator, ...] | None = None
    """Random operators, or layers in training mode, that the graph may have; others fail."""
    verbose: bool | None = Field(None, description="Print the exporter's progress to the log.")


class SymbolicSpec(Spec):
    """A symbolic function, or a file registering such functions, for torchscript."""

    op: Symbol | None = Field(None, description="Operator without overload, such as aten::asinh.")
    function: Callable | None = None
    """FILE.py:CALLABLE: f(g, *inputs) returns the result of g.op(...)."""
    opset: int | None = Field(None, ge=6, le=23)
    """First opset of the function; default: the export's opset only."""
    module: PythonFile | None = None
    """Instead of the others: a file that registers symbolics on import."""

    @model_validator(mode="after")
    def _check_form(self) -> "SymbolicSpec":
        is_module = self.module is not None
        fields = (self.op, self.function, self.opset)
        if any(fields) if is_module else None in fields[:2]:
            raise ValueError("expected {op: …, function: …, opset: …} or {module: FILE.py}")
        return self


class TranslationSpec(Spec):
    """A translation of an operator to ONNX for exporter: dynamo."""

    op: Overload
    """Operator of PyTorch or the network's file, such as aten::add.Tensor."""
    function: Callable = Field(description="FILE.py:CALLABLE of onnxscript operators: f(*inputs).")


class Sections(Spec):
    """The sections of the stage."""

    export: ExportSpec = section()
    symbolics: tuple[SymbolicSpec, ...] = ()
    """Operators registered with exporter: torchscript."""
    translations: tuple[TranslationSpec, ...] = ()
    """Operators registered with exporter: dynamo."""
