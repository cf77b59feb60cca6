"""Fields of manifests about the calibration."""

from typing import Literal

from pydantic import Field

from buildsys.manifest.schema.base import Spec, TensorName
from buildsys.manifest.schema.network import InputData

DEFAULT_PERCENTILE = 99.99


class CalibrationSpec(Spec):
    """Data and algorithm for the value ranges of int8 and fp8 networks."""

    data: dict[TensorName, InputData] = Field({})
    """Values by input; default: the data of `inputs`, if given."""
    algorithm: Literal["entropy", "minmax", "percentile"] = "entropy"
    """Treatment of outliers: entropy and percentile cut them off, minmax not."""
    percentile: float = Field(DEFAULT_PERCENTILE, gt=50, le=100)
    """Percentage of values within the range, with algorithm: percentile."""
    batches: int = Field(8, ge=1, description="Number of batches.")
    batch_size: int | None = Field(None, ge=1)
    """Size of the first dimension; default: its `opt`."""
    seed: int = Field(0, ge=0, description="Seed of random values, also passed to callables.")


class Sections(Spec):
    """The section of the stage."""

    calibration: CalibrationSpec | None = Field(None, description="Calibration of int8 and fp8.")
