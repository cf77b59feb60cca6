"""Engines in a manifest with their gates, and the options of their backend."""

from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, create_model, model_validator

from buildsys.errors import Unavailable
from buildsys.manifest.schema.base import (
    EnginePrecision,
    EngineTolerance,
    Name,
    NeedsSpec,
    Seconds,
    Spec,
)
from buildsys.system.backend_registry import BrokenBackendError, describe_backend, import_backend
from buildsys.system.units import parse_duration, parse_percentage, parse_size

METRICS = (
    *("latency", "throughput", "size", "memory", "error", "accuracy", "build_time"),
    *("load_time", "first_call"),
)
Percentage = Annotated[
    float,
    BeforeValidator(parse_percentage),
    Field(gt=0, le=1, json_schema_extra={"type": ["string", "number"]}),
]
_TEXT = Field(json_schema_extra={"type": "string"})
LimitSeconds = Annotated[float, BeforeValidator(partial(parse_duration, needs_unit=True)), _TEXT]
LimitBytes = Annotated[int, BeforeValidator(partial(parse_size, needs_unit=True)), _TEXT]
_TOLERANCE = "Largest change for the worse against the baseline, such as 5%."


class Gate(Spec):
    """A gate; without a map, a percentage is its tolerance, any other value its limit."""

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            return value
        relative, *limits = cls.model_fields
        is_relative = not limits or str(value).endswith("%")
        return {relative if is_relative else limits[0]: value}


class GateLimit(Gate):
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


class AccuracyGate(Gate):
    """Limit of the metric of `evaluate`, on the same samples as the baseline's."""

    drop: Percentage
    """Largest loss against the baseline, of a share absolute, else relative; such as 0.5%."""


def _allow_value(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [{"type": ["number", "string"]}, *schema["anyOf"]]


_Gate = TypeVar("_Gate", bound=Gate)
InShort = Annotated[_Gate | None, Field(json_schema_extra=_allow_value)]  # or spelled out


class GatesSpec(Spec):
    """Gates of an engine.

    The baseline is the last build that did not fail them.
    """

    engine: Name | None = Field(None, description="Baseline: another engine of this model.")
    latency: InShort[DurationGate] = Field(None, description="Median latency of an inference.")
    throughput: InShort[RateGate] = Field(None, description="Items per second.")
    size: InShort[SizeGate] = Field(None, description="Size of the engine's files.")
    memory: InShort[SizeGate] = None
    """Memory of a process with the engine; on a GPU, of the device."""
    error: InShort[ErrorGate] = Field(None, description="Worst relative error in `verify`.")
    accuracy: InShort[AccuracyGate] = Field(None, description="Metric of `evaluate`.")
    build_time: InShort[DurationGate] = Field(None, description="Time to build the engine.")
    load_time: InShort[DurationGate] = None
    """Time to load the engine, after imports and checks of its files."""
    first_call: InShort[DurationGate] = Field(None, description="Time of the first inference.")
    rounds: int | None = Field(None, ge=6, le=50)
    """Processes per side; default: 10, then 20 and 40 while noisy."""
    duration: Seconds = Field(0.5, gt=0, description="Least measured time of a process.")
    required: bool = Field(False, description="Fail if there is nothing comparable.")


class EngineBase(Spec):
    """The fields of every engine."""

    name: Name = Field(description="Name of the engine in targets and paths.")
    precision: EnginePrecision = "fp32"
    """Of graph or layers; auto keeps the nodes in fp32 that exceed the limits."""
    required: bool = Field(False, description="Fail the build if this engine cannot be built.")
    tolerance: EngineTolerance | None = None
    """Limits of this engine, overriding `verify`."""
    toolchain: Name | None = Field(None, description="Toolchain of project.yaml to build and run.")
    needs: NeedsSpec | None = None
    """Needs of this engine, instead of the model's."""
    gates: GatesSpec | None = None
    """Gates of this engine, instead of the model's."""


class _UnusableEngine(EngineBase):
    """An engine of a broken package: its fields are unknown, and it is never built."""

    model_config = ConfigDict(extra="allow")


def engine_spec(backend: str) -> type[EngineBase]:
    """Import the fields of a backend's engines."""
    problem = describe_backend(backend).problem
    try:
        if problem:
            raise BrokenBackendError(problem)
        spec = getattr(import_backend(backend, "options"), "ENGINE", None)
        if isinstance(spec, type) and issubclass(spec, EngineBase):
            return spec
        problem = f"the backend {backend} has no ENGINE with the fields of EngineBase"
    except BrokenBackendError as error:
        problem = str(Unavailable(error.problem, error.hint))
    fields: dict[str, Any] = {
        "backend": (Literal[backend], Field(description="A broken package.")),
        "unusable": (str, problem),
    }
    return create_model(f"{backend}_unusable", __base__=_UnusableEngine, **fields)
