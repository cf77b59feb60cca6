"""Fields for `run`: preprocessing of inputs, labels of outputs.

They decide no target: ``plan`` removes them, so no key contains them.
"""

from typing import Annotated, Literal

from pydantic import Field

from buildsys.manifest.schema.base import WEIGHTS_PATTERN, OneOf, Spec

LABEL_KINDS = ("file", "torchvision", "names")


class _Pixels(Spec):
    resize: int | None = Field(
        None,
        ge=1,
        description="Shorter side before the center crop; default: scale to height and width.",
    )
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"] = Field(
        "bilinear", description="Interpolation while resizing."
    )
    color: Literal["rgb", "bgr", "gray"] = Field("rgb", description="Order of the channels.")
    layout: Literal["nchw", "nhwc"] = Field(
        "nchw", description="Position of height and width in the shape."
    )
    divide: float = Field(255.0, gt=0, description="Divisor of pixel values (0 to 255).")
    mean: tuple[float, ...] = Field(
        (0.0,), min_length=1, description="Subtracted next: one value, or one per channel."
    )
    std: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (1.0,), min_length=1, description="Divisor of the result."
    )


class ImagesData(_Pixels):
    """Values from the image files of a folder, sorted by name."""

    images: str = Field(description="A folder, relative to the project; searched recursively.")


class Preprocess(_Pixels):
    """The steps from an image file to an input."""

    pad: int | None = Field(
        None,
        ge=0,
        le=255,
        description="Scale to fit into height and width; fill the rest with this pixel value.",
    )


class _Labels(Spec):
    activation: Literal["softmax", "sigmoid", "none"] = Field(
        "softmax", description="Turns the output into probabilities; none: it has them."
    )


class LabelsFile(_Labels):
    """Class names from a text file."""

    file: str = Field(description="One name per line, relative to the project.")


class LabelsTorchvision(_Labels):
    """Class names of trained weights of torchvision."""

    torchvision: Annotated[str, Field(pattern=WEIGHTS_PATTERN)] = Field(
        description="Weights such as ResNet50_Weights.IMAGENET1K_V2; nothing is downloaded."
    )


class LabelsNames(_Labels):
    """Class names in the manifest."""

    names: tuple[str, ...] = Field(min_length=1, description="The names, first class first.")


Labels = Annotated[LabelsFile | LabelsTorchvision | LabelsNames, OneOf(LABEL_KINDS)]
