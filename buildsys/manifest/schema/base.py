"""Base class of all sections, and the types of names and quantities."""

import re
from collections.abc import Callable as Function
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError, core_schema

from buildsys.manifest.schema.files import NAMES_FILE
from buildsys.stages.table import STAGE_INFO
from buildsys.system.units import parse_duration, parse_size
from buildsys.system.user_modules import REFERENCE_PATTERN

DType = Literal[
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8",
    "uint16", "uint32", "uint64", "bool", "complex64", "complex128", "string", "int4", "uint4",
    "float4e2m1", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz",
]  # fmt: skip
Case = Literal["min", "opt", "max", "odd"]
Precision = Literal["fp32", "fp16", "bf16", "int8", "fp8", "int4"]
EnginePrecision = Literal[
    "fp32", "fp16", "bf16", "int8", "fp8", "int4",
    "auto", "auto-fp16", "auto-bf16", "auto-int8", "auto-fp8",
]  # fmt: skip
if TYPE_CHECKING:
    Stage = str
else:
    Stage = Literal[tuple(STAGE_INFO)]
PATTERN_WORDS: dict[str, str] = {}  # the words of error messages


def text(pattern: str, words: str, longest: int | None = None) -> Any:
    """Declare the form of a string; an error says "expected ``words``"."""
    PATTERN_WORDS[pattern] = words
    return Field(pattern=pattern, max_length=longest)


NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$"
WORD_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
_NAME = "a name of letters, digits and _ . + - that starts with a letter or digit"
_TENSOR = "a tensor name of letters, digits and _ . : / + -, not starting with . : / + -"
Name = Annotated[str, text(NAME_PATTERN, _NAME, 100)]
TensorName = Annotated[str, text(r"^[A-Za-z0-9_][A-Za-z0-9_.:/+-]*$", _TENSOR, 200)]
_WORD = "a word of letters, digits and _ that does not start with a digit"
Word = Annotated[str, text(WORD_PATTERN, _WORD)]
_VARIABLE = "the name of an environment variable such as LD_LIBRARY_PATH"
Variable = Annotated[str, text(r"^[A-Za-z_][A-Za-z0-9_]{0,99}$", _VARIABLE)]
_CALLABLE = "a callable such as plugins/models/net.py:make or package.module:make"
Callable = Annotated[str, text(REFERENCE_PATTERN, _CALLABLE), NAMES_FILE]
_DIGEST = "a SHA-256 digest of 64 lowercase hexadecimal digits"
Digest = Annotated[str, text(r"^[0-9a-f]{64}$", _DIGEST)]


def form(words: str, accepts: Function[[Any], bool]) -> BeforeValidator:
    """Make a validator with the error "expected ``words``"."""

    def check(value: object) -> object:
        if accepts(value):
            return value
        raise PydanticCustomError("form", "wrong form", {"words": words})

    return BeforeValidator(check)


def _every_stage(value: object) -> object:
    """List the stages of ``true`` and ``false``."""
    return (tuple(STAGE_INFO) if value else ()) if isinstance(value, bool) else value


_STAGES_SCHEMA = {"type": "array", "items": {"type": "string", "enum": [*STAGE_INFO]}}
Stages = Annotated[
    tuple[Stage, ...],
    BeforeValidator(_every_stage),
    form("true, false or a list of stages", lambda value: isinstance(value, (bool, tuple))),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, _STAGES_SCHEMA]}),
]


def _is_dim(value: object) -> bool:
    if isinstance(value, str):
        return bool(re.fullmatch(WORD_PATTERN, value))
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_DIM_SCHEMA = [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": WORD_PATTERN}]
Dim = Annotated[
    int | str,
    form("a non-negative integer or the name of a dimension", _is_dim),
    WithJsonSchema({"anyOf": _DIM_SCHEMA}),
]
Seconds = Annotated[
    float, BeforeValidator(parse_duration), Field(json_schema_extra={"type": ["string", "number"]})
]
Bytes = Annotated[
    int, BeforeValidator(parse_size), Field(json_schema_extra={"type": ["string", "integer"]})
]
ALL_CASES: tuple[Case, ...] = ("min", "opt", "max", "odd")


class Spec(BaseModel):
    """Base of every section: immutable, with unknown fields refused.

    Validators are built on first use: one for a whole model, not one per section.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        defer_build=True,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _lists_to_tuples(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
        return {**fields, **lists} if lists else fields


_GPU = "words of a GPU's name such as H100 or RTX 6000"
_CAPABILITY = "a compute capability such as 9.0"


class NeedsSpec(Spec):
    """What a machine must have to run a stage."""

    gpu: Annotated[str, text(r"^[A-Za-z0-9][A-Za-z0-9 ./-]*$", _GPU, 100)] | None = None
    """Words of the GPU's name: H100."""
    compute_capability: Annotated[str, text(r"^[0-9]{1,2}\.[0-9]$", _CAPABILITY)] | None = None
    """Compute capability of the GPU, such as 9.0."""
    count: int | None = Field(None, ge=1, le=64, description="Number of such GPUs; default: 1.")
    memory: Bytes | None = Field(None, gt=0, description="Main memory of the machine.")
    labels: tuple[Name, ...] = Field((), description="Labels of the machine (BUILDSYS_LABELS).")
    exclusive: bool = Field(False, description="Nothing else may run on the machine meanwhile.")
    time: Seconds | None = Field(None, gt=0)
    """Time limit for schedulers that ask for one; default: timeout."""


def section(alias: str | None = None, description: str | None = None) -> Any:
    """Declare a field with the section's own defaults."""
    return Field(default_factory=dict, validate_default=True, alias=alias, description=description)


@dataclass(frozen=True)
class OneOf:
    """Annotation of a union with one member per kind of value.

    Members are in the order of ``kinds``. The kind of a value is the first of them that is a field
    of it, unless ``field`` holds the kind or ``choose`` returns it. Error paths contain steps such
    as ``<OnnxSource>``, which no user wrote.
    """

    kinds: tuple[str, ...]
    field: str = ""
    choose: Function[[object], str] | None = None

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Build the schema of the tagged union."""
        # a union of one type is that type
        members = dict(zip(self.kinds, get_args(source) or (source,), strict=True))
        tags = {kind: f"<{getattr(spec, '__name__', kind)}>" for kind, spec in members.items()}

        def tag(value: object) -> str | None:
            if self.choose:
                return tags[self.choose(value)]
            fields = fields_of(value)
            names = (fields.get(self.field),) if self.field else fields
            return next((tag for kind, tag in tags.items() if kind in names), None)

        return core_schema.tagged_union_schema(
            {tags[kind]: handler.generate_schema(spec) for kind, spec in members.items()},
            tag,
            custom_error_type="one_of",
            custom_error_message="unknown kind",
            custom_error_context={"kinds": ", ".join(self.kinds), "field": self.field},
        )


def fields_of(value: object) -> dict[str, Any]:
    """Return the fields of a parsed or unparsed section."""
    return value if isinstance(value, dict) else getattr(value, "__dict__", {})


class Tolerance(Spec):
    """Limits for equal outputs; all must hold."""

    rtol: float | None = Field(None, ge=0, description="Limit on max |a - b| / max |b|.")
    cosine: float | None = Field(None, ge=-1, le=1, description="Minimum cosine similarity.")
    atol: float | None = Field(None, ge=0, description="Additional limit on max |a - b|.")
    top1: float | None = Field(None, ge=0, le=1)
    """Minimum share of equal arg-max along the last axis."""
    spread_error: float | None = Field(
        None, ge=0, description="Largest error relative to the output's spread."
    )


_OF_PRECISION = "Not set: the limit for the precision; none for fp32."


class EngineTolerance(Tolerance):
    """Limits of one engine; unset ones come from `verify`."""

    correlation: float | None = Field(
        None, ge=-1, le=1, description=f"Minimum centered correlation. {_OF_PRECISION}"
    )
    slope: float | None = Field(
        None, ge=0, description=f"Largest distance of the slope from 1. {_OF_PRECISION}"
    )
    channel_error: float | None = Field(
        None, ge=0, description=f"As `spread_error`, of the worst channel. {_OF_PRECISION}"
    )
    class_agreement: float | None = Field(
        None, ge=0, le=1, description=f"Minimum share of samples of equal class. {_OF_PRECISION}"
    )
