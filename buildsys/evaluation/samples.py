"""Open the data of an evaluation, whatever its source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from buildsys.errors import StageError
from buildsys.evaluation.array_sources import npz_samples, python_samples
from buildsys.evaluation.batch import Inputs, Samples
from buildsys.evaluation.image_sources import folder_samples, image_samples
from buildsys.evaluation.table_sources import table_samples

_SOURCES = {
    "images": image_samples, "folder": folder_samples, "npz": npz_samples,
    "python": python_samples, "parquet": table_samples, "arrow": table_samples,
    "dataset": table_samples,
}  # fmt: skip


def open_samples(data: Mapping[str, Any], inputs: Inputs, project: Path) -> Samples:
    """Open the samples of ``evaluate.data``, which are read in batches.

    ``inputs`` are as in the manifest; dimensions by name, but for images, may vary.
    Raises: StageError: the data does not exist, or labels do not match.
    """
    for kind, open_source in _SOURCES.items():
        if kind in data:
            for name, declared in inputs.items():
                if not declared["shape"]:
                    problem = f"the input {name} is a scalar, which has no axis for samples"
                    raise StageError(problem, "give it a batch axis")
            return open_source(data, inputs, project)
    raise StageError("evaluate.data has no source", f"give one of {', '.join(_SOURCES)}")
