"""Gates: limits on an engine's figures, absolute or relative to a baseline."""

from functools import partial
from typing import Annotated

from pydantic import BeforeValidator, Field

from buildsys.manifest.schema.base import Name, Seconds, Spec
from buildsys.system.units import parse_duration, parse_percentage, parse_size

METRICS = ("latency", "throughput", "size", "memory", "error", "build_time")
Percentage = Annotated[
    float,
    BeforeValidator(parse_percentage),
    Field(gt=0, le=1, json_schema_extra={"type": ["string", "number"]}),
]
_TEXT = Field(json_schema_extra={"type": "string"})
LimitSeconds = Annotated[float, BeforeValidator(partial(parse_duration, needs_unit=True)), _TEXT]
LimitBytes = Annotated[int, BeforeValidator(partial(parse_size, needs_unit=True)), _TEXT]
_TOLERANCE = "Largest change for the worse against the baseline, such as 5%."


class GateLimit(Spec):
    """Limits of one figure."""

    tolerance: Percentage | None = Field(None, description=_TOLERANCE)


class DurationGate(GateLimit):
    """Limits of a duration."""

    limit: LimitSeconds | None = Field(None, gt=0, description="Longest duration, such as 2ms.")


class RateGate(GateLimit):
    """Limits of a throughput."""

    limit: float | None = Field(None, gt=0, description="Least number of items per second.")


class SizeGate(GateLimit):
    """Limits of a size."""

    limit: LimitBytes | None = Field(None, gt=0, description="Largest size, such as 50MB.")


class ErrorGate(GateLimit):
    """Limits of the relative error."""

    limit: float | None = Field(None, ge=0, description="Largest relative error.")


class GatesSpec(Spec):
    """Gates of an engine.

    The baseline is the last build that did not fail them.
    """

    engine: Name | None = Field(None, description="Baseline: another engine of this model.")
    latency: DurationGate | None = Field(None, description="Median latency of an inference.")
    throughput: RateGate | None = Field(None, description="Items per second.")
    size: SizeGate | None = Field(None, description="Size of the engine's files.")
    memory: SizeGate | None = None
    """Memory of a process with the engine; on a GPU, of the device."""
    error: ErrorGate | None = Field(None, description="Worst relative error in `verify`.")
    build_time: DurationGate | None = Field(None, description="Time to build the engine.")
    rounds: int | None = Field(None, ge=6, le=50)
    """Processes per side; default: 10, then 20 and 40 while noisy."""
    duration: Seconds = Field(0.5, gt=0, description="Least measured time of a process.")
    required: bool = Field(False, description="Fail if there is nothing comparable.")
