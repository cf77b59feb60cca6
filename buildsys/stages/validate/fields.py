"""Fields of manifests about the check of the graphs."""

from typing import Literal

from pydantic import Field

from buildsys.manifest.schema.base import ALL_CASES, Case, Spec, Tolerance, section


class ValidateSpec(Tolerance):
    """Comparison of the exported and simplified graphs with PyTorch.

    Default: rtol 1e-4, cosine 0.9999, wider for networks of 16-bit floats.
    """

    cases: tuple[Case, ...] = Field(ALL_CASES, min_length=1, description="Shape cases to compare.")
    drawn_sizes: int = Field(3, ge=0, le=32)
    """Most further sizes to draw from the ranges of `dims`; 0: none."""
    uncompared: Literal["fail", "warn"] | None = None
    """Verdict on cases that rounding alone decides, and on outputs that are zero, NaN, infinite or
    empty in all cases. Default: fail if no shape case, or no case of an output, is compared."""
    accepted: tuple[str, ...] = ()
    """Places (FILE:LINE) of branches, values and state that the verdict need not name."""
    other_values: bool = True
    """Also compare other seeds and extreme values, at the smallest sizes."""


class Sections(Spec):
    """The section of the stage."""

    validation: ValidateSpec = section(alias="validate")
