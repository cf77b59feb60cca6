"""Fields of manifests about the accuracy on data."""

from typing import Annotated, Literal

from pydantic import Field

from buildsys.manifest.schema.base import Callable, OneOf, Spec, TensorName
from buildsys.manifest.schema.engines import Percentage
from buildsys.manifest.schema.files import FilePattern, ProjectFile, ProjectFolder

_FILES = "A file or pattern, relative to the project."
_PATTERN = "A folder, or a pattern such as data/val/*.jpg, relative to the project."
MetricName = Literal[
    "top1", "top5", "f1", "auroc", "rmse", "mae", "r2", "miou", "map50_95", "map50", "wer", "cer",
    "perplexity",
]  # fmt: skip


class LabelledImages(Spec):
    """Image files, and their labels in a CSV file."""

    images: FilePattern = Field(min_length=1, description=_PATTERN)
    labels: ProjectFile = Field(description="CSV file with the columns file and label.")


class ClassFolders(Spec):
    """Image files in a folder per class, numbered in order of their names."""

    folder: ProjectFolder = Field(description="The folder of the folders.")


class NpzSamples(Spec):
    """An .npz file with an array per input, and one of labels."""

    npz: ProjectFile = Field(description="Path relative to the project.")
    labels: str = Field("labels", description="The array of labels.")


class PythonSamples(Spec):
    """A generator function that yields ({input: array}, label) per sample, or per batch."""

    python: Callable = Field(description="FILE.py:FUNCTION.")


class ParquetSamples(Spec):
    """Parquet files with a column per input."""

    parquet: FilePattern = Field(min_length=1, description=_FILES)
    label: str = Field("label", description="The column of labels.")


class ArrowSamples(Spec):
    """Arrow files with a column per input."""

    arrow: FilePattern = Field(min_length=1, description=_FILES)
    label: str = Field("label", description="The column of labels.")


class SavedDataset(Spec):
    """A dataset that Hugging Face datasets saved by save_to_disk."""

    dataset: ProjectFolder = Field(description="Its folder.")
    label: str = Field("label", description="The column of labels.")


EvaluationData = Annotated[
    LabelledImages
    | ClassFolders
    | NpzSamples
    | PythonSamples
    | ParquetSamples
    | ArrowSamples
    | SavedDataset,
    OneOf(("images", "folder", "npz", "python", "parquet", "arrow", "dataset")),
]


class OwnMetric(Spec):
    """A metric of the project."""

    python: Callable = Field(description="FILE.py:FUNCTION, f(outputs, labels) -> number.")


class EvaluateSpec(Spec):
    """Accuracy on labelled data, of engines against the original model."""

    data: EvaluationData = Field(description="The samples and their labels.")
    metric: Annotated[
        MetricName | OwnMetric,
        OneOf(("name", "python"), choose=lambda v: "name" if isinstance(v, str) else "python"),
    ] = Field(description="What is measured.")
    drop: Percentage = 0.01
    """Largest loss against the original model, of a share absolute, else relative; such as 0.5%."""
    output: TensorName | None = Field(None, description="The output with predictions, if several.")
    postprocess: Callable | None = None
    """FILE.py:FUNCTION, f({output: array}) -> {name: array}, before the metric."""
    batch_size: int | None = Field(None, ge=1)
    """Samples at a time; default: `opt` of the first dimension."""
    samples: int | None = Field(None, ge=1, description="Only so many samples; default: all.")


class Sections(Spec):
    """The section of the stage."""

    evaluate: EvaluateSpec | None = Field(None, description="Accuracy on data.")
