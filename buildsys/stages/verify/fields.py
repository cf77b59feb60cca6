"""Fields of manifests about the check of engines."""

from typing import Any

from pydantic import Field

from buildsys.manifest.default_limits import DEFAULT_LIMITS
from buildsys.manifest.schema.base import ALL_CASES, Case, EngineTolerance, Spec, section


def _limits_of(precision: str) -> Any:
    """Declare a section of limits; unset ones depend on the network's types."""
    limits = ", ".join(f"{name} {limit:g}" for name, limit in DEFAULT_LIMITS[precision].items())
    return section(description=f"Limits of {precision} engines; default: {limits}.")


class VerifySpec(Spec):
    """Comparison of engines with the golden outputs, with limits per precision."""

    cases: tuple[Case, ...] = Field(ALL_CASES, min_length=1, description="Shape cases to compare.")
    fp32: EngineTolerance = _limits_of("fp32")
    fp16: EngineTolerance = _limits_of("fp16")
    bf16: EngineTolerance = _limits_of("bf16")
    int8: EngineTolerance = _limits_of("int8")
    fp8: EngineTolerance = _limits_of("fp8")
    int4: EngineTolerance = _limits_of("int4")


class Sections(Spec):
    """The section of the stage."""

    verify: VerifySpec = section()
