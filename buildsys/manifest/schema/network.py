"""The inputs, outputs and dynamic dimensions of the network, and the data of its files."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from buildsys.manifest.schema.base import (
    Callable,
    Dim,
    DType,
    OneOf,
    Spec,
    TensorName,
    Word,
    form,
    text,
)
from buildsys.manifest.schema.files import ProjectFile, ProjectFolder

POLICIES = ("auto", "elementwise", "per_channel", "top_k", "detections", "tokens", "set")
LABEL_KINDS = ("file", "torchvision", "names")
DATA_KINDS = ("random", "npz", "python", "constant", "images")


class RandomData(Spec):
    """Values drawn from the source's seed, identical on every machine."""

    random: Literal["normal", "uniform", "integers"]
    """Distribution of the values."""
    mean: float = Field(0.0, description="Mean of normal values.")
    std: float = Field(1.0, ge=0, description="Standard deviation of normal values.")
    low: float = Field(0.0, description="Lower bound of uniform and integers.")
    high: float = 1.0
    """Upper bound, exclusive for integers (default: 10; bool 2; int4 8)."""


class NpzData(Spec):
    """Values from a .npz file, cropped from the start to the shape of each case."""

    npz: ProjectFile = Field(description="Path relative to the project.")
    key: str | None = Field(None, description="Array in the file; default: the input's name.")


class PythonData(Spec):
    """Values from a callable.

    `case` is `min`, `opt`, `max`, `odd`, `batch=12` (of a profile) or `drawn-1`; for a calibration,
    the number of the batch.
    """

    python: Callable
    """FILE.py:CALLABLE: f(shape, dtype, case, seed) returns a numpy array."""


Scalar = Annotated[
    bool | int | float | str,
    form("a number, a string, true or false", lambda v: isinstance(v, (bool, int, float, str))),
    WithJsonSchema({"type": ["boolean", "integer", "number", "string"]}),
]


class ConstantData(Spec):
    """The same value everywhere."""

    model_config = ConfigDict(allow_inf_nan=True)  # a mask is often minus infinity

    constant: Scalar = Field(description="Value of all elements.")


# Labels, and preprocessing outside of engines, decide no target: ``plan`` removes them.
class _Pixels(Spec):
    resize: int | None = Field(None, ge=1)
    """Shorter side before the center crop; default: scale to height and width."""
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"
    """Interpolation while resizing."""
    color: Literal["rgb", "bgr", "gray"] = Field("rgb", description="Order of the channels.")
    layout: Literal["nchw", "nhwc"] = "nchw"
    """Position of height and width in the shape."""
    divide: float = Field(255.0, gt=0, description="Divisor of pixel values (0 to 255).")
    mean: tuple[float, ...] = Field((0.0,), min_length=1)
    """Subtracted next: one value, or one per channel."""
    std: tuple[Annotated[float, Field(gt=0)], ...] = Field((1.0,), min_length=1)
    """Divisor of the result."""


class ImagesData(_Pixels):
    """Values from the image files of a folder, sorted by name."""

    images: ProjectFolder
    """A folder, relative to the project; searched recursively."""


class Preprocess(_Pixels):
    """The steps from an image file to an input."""

    pad: int | None = Field(None, ge=0, le=255)
    """Scale to fit into height and width; fill the rest with this pixel value."""
    inside: bool = False
    """Let engines do all steps: this input of theirs is uint8, [batch, height, width, channels]."""
    size: tuple[Dim, Dim] | None = None
    """Height and width of the images for `inside`; default: the input's, without a resize."""

    @model_validator(mode="after")
    def _check_inside(self) -> "Preprocess":
        if self.size is not None and not self.inside:
            raise ValueError("size has no effect without inside: true")
        return self


class _Labels(Spec):
    activation: Literal["softmax", "sigmoid", "none"] = "softmax"
    """Turns the output into probabilities; none: it has them."""


class LabelsFile(_Labels):
    """Class names from a text file."""

    file: ProjectFile = Field(description="One name per line, relative to the project.")


_WEIGHTS = "weights of torchvision such as ResNet50_Weights.IMAGENET1K_V2"


class LabelsTorchvision(_Labels):
    """Class names of trained weights of torchvision."""

    torchvision: Annotated[str, text(r"^[A-Za-z0-9_]+_Weights\.[A-Za-z0-9_]+$", _WEIGHTS)]
    """Weights such as ResNet50_Weights.IMAGENET1K_V2; nothing is downloaded."""


class LabelsNames(_Labels):
    """Class names in the manifest."""

    names: tuple[str, ...] = Field(min_length=1, description="The names, first class first.")


Labels = Annotated[LabelsFile | LabelsTorchvision | LabelsNames, OneOf(LABEL_KINDS)]
InputData = Annotated[
    RandomData | NpzData | PythonData | ConstantData | ImagesData, OneOf(DATA_KINDS)
]


class InputSpec(Spec):
    """One input of the model."""

    shape: tuple[Dim, ...]
    """Numbers and names of `dims`, such as [batch, 3, 224, 224]."""
    dtype: DType = Field("float32", description="Type of the elements, any type of ONNX.")
    data: InputData | None = None
    """Default: normal for floats, 0 to 9 for integers, 0 or 1 for bool."""
    keyword: Word | None = None
    """Keyword argument of forward(); default: positional."""
    preprocess: Preprocess | None = None
    """Steps from an image file to this input, for `buildsys run`, or inside of engines."""


class _AnyPolicy(Spec):
    allow_zero: bool = False
    """Accept an output that is zero or empty in every case."""


class AutoPolicy(_AnyPolicy):
    """The output relative to its largest magnitude, and small parts alone."""

    policy: Literal["auto"] = Field(description="The default policy.")


class _Policy(_AnyPolicy):
    rtol: float | None = Field(None, ge=0)
    """Default: `rtol` of `validate` or of the engine's precision."""


class ElementwisePolicy(_Policy):
    """Every element within rtol * its reference + atol."""

    policy: Literal["elementwise"] = Field(description="Compare element by element.")
    atol: float | None = Field(None, ge=0)
    """Default: rtol * the root mean square of the output."""


class PerChannelPolicy(_Policy):
    """Every slice of an axis relative to its own largest magnitude."""

    policy: Literal["per_channel"] = Field(description="Compare each channel by its own magnitude.")
    axis: int = Field(1, description="Axis of the channels.")
    atol: float | None = Field(None, ge=0, description="Added to the limit of every channel.")


class TopKPolicy(_Policy):
    """The k largest entries of each row, with values; ties may swap."""

    policy: Literal["top_k"] = Field(description="Compare the largest elements.")
    k: int = Field(5, ge=1, description="Number of entries.")
    axis: int = Field(-1, description="Axis of the classes.")
    agreement: float = Field(1.0, ge=0, le=1, description="Share of rows that must agree.")


class DetectionsPolicy(_AnyPolicy):
    """Boxes in any order, matched by label, score and intersection over union.

    One may be missing if its score is at the end of a list that was cut off.
    """

    policy: Literal["detections"] = Field(description="Match boxes.")
    labels: TensorName | None = Field(None, description="Output with the labels of the boxes.")
    scores: TensorName | None = Field(None, description="Output with the scores of the boxes.")
    rows: tuple[TensorName, ...] = ()
    """Further outputs with a row per box, such as masks, in matched order."""
    label_column: int | None = Field(None, ge=4, description="Column of the label in each row.")
    score_column: int | None = Field(None, ge=4, description="Column of the score in each row.")
    format: Literal["xyxy", "xywh", "cxcywh"] = "xyxy"
    """Meaning of the first four columns."""
    iou: float = Field(0.9, gt=0, le=1, description="Least intersection over union of a match.")
    score: float | None = Field(None, ge=0)
    """Largest difference of scores; default: rtol * the largest score."""
    min_score: float = Field(0.0, description="Detections with lower scores are ignored.")


class TokensPolicy(_Policy):
    """Equal integers; floats by the last axis's largest entry, ties may swap."""

    policy: Literal["tokens"] = Field(description="Compare integers exactly.")
    agreement: float = Field(1.0, ge=0, le=1, description="Share of tokens that must agree.")


class SetPolicy(_Policy):
    """The slices of an axis in any order."""

    policy: Literal["set"] = Field(description="Compare rows in any order.")
    axis: int = Field(0, description="Axis of the rows.")
    atol: float | None = Field(None, ge=0, description="Added to the limit of every element.")


def _name_to_map(value: object) -> object:
    return {"policy": value} if isinstance(value, str) else value


def _allow_name(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [{"enum": [*POLICIES]}, *schema["anyOf"]]


Compare = Annotated[
    Annotated[
        AutoPolicy
        | ElementwisePolicy
        | PerChannelPolicy
        | TopKPolicy
        | DetectionsPolicy
        | TokensPolicy
        | SetPolicy,
        OneOf(POLICIES, field="policy"),
    ],
    BeforeValidator(_name_to_map),
]


class CallSpec(Spec):
    """The arguments of forward(), for inputs in lists, dicts and other values.

    A string is the name of an input. Lists and maps stay lists and dicts, `{tuple: [...]}` is a
    tuple and `{text: ...}` a string; other values are passed as they are.
    """

    args: tuple[Any, ...] = Field((), description="Positional arguments.")
    kwargs: dict[Word, Any] = Field({})
    """Keyword arguments."""


class OutputSpec(Spec):
    """One output of the model."""

    shape: tuple[Dim | None, ...] | None = None
    """Numbers, names of `dims`, or null for a size that follows from others."""
    dtype: DType | None = Field(None, description="Expected type.")
    key: str | None = None
    """Key in the dict returned by forward(); default: the output's name."""
    compare: Compare | None = Field(None, json_schema_extra=_allow_name)
    """Policy of every comparison: its name, or a map with `policy` and options."""
    labels: Labels | None = None
    """Names of the classes on the last axis, for `buildsys run`."""


class DimSpec(Spec):
    """The range of a dynamic dimension."""

    min: int = Field(ge=0, description="Smallest value.")
    opt: int = Field(ge=0, description="Value that engines are tuned for.")
    max: int = Field(ge=0, description="Largest value.")
    odd: int | None = None
    """An additional value to validate; default: chosen from the range."""
    multiple_of: int = Field(1, ge=1, description="All values are multiples of this.")

    @model_validator(mode="after")
    def _check_range(self) -> "DimSpec":
        if not self.min <= self.opt <= self.max:
            raise ValueError(f"min {self.min}, opt {self.opt}, max {self.max} are not ascending")
        values = {"min": self.min, "opt": self.opt, "max": self.max, "odd": self.odd}
        for name, value in values.items():
            if value is not None and value % self.multiple_of:
                raise ValueError(f"{name} {value} is not a multiple of {self.multiple_of}")
        if self.odd is not None and not self.min <= self.odd <= self.max:
            raise ValueError(f"odd {self.odd} is outside the range {self.min} to {self.max}")
        return self
