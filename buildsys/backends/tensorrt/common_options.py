"""The fields of all TensorRT builders."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from buildsys.manifest.checks.surgery import shapes_after_surgery
from buildsys.manifest.checks.view import ManifestView
from buildsys.manifest.problem import Problems, suggest
from buildsys.manifest.schema.base import Bytes, Callable, DType, OneOf, Spec, TensorName, fields_of
from buildsys.manifest.schema.engine_base import EngineBase
from buildsys.manifest.value_tree import FieldPath

Sizes = tuple[Annotated[int, Field(ge=0)], ...]
Integers = tuple[int, ...]
TensorFormat = Literal[
    "linear", "chw2", "chw4", "chw16", "chw32", "hwc", "hwc8", "hwc16", "dhwc", "dhwc8", "cdhw32",
    "dla_linear", "dla_hwc4",
]  # fmt: skip


class ShapeRange(Spec):
    """The shapes of one input in an optimization profile."""

    min: Sizes = Field(description="Smallest shape.")
    opt: Sizes = Field(description="Shape that the engine is tuned for.")
    max: Sizes = Field(description="Largest shape.")


class ValueRange(Spec):
    """The values of one input in an optimization profile, one per element."""

    min: Integers = Field(description="Smallest values.")
    opt: Integers = Field(description="Values that the engine is tuned for.")
    max: Integers = Field(description="Largest values.")


class ShapeValues(Spec):
    """An input with values determining shapes inside the network."""

    values: ValueRange = Field(description="The values, one per element of the input.")


ProfileRange = Annotated[
    ShapeRange | ShapeValues,
    OneOf(("shape", "values"), choose=lambda v: "values" if "values" in fields_of(v) else "shape"),
]


class TensorIo(Spec):
    """Layout and type of an input or output in device memory."""

    format: TensorFormat | None = Field(None, description="Memory layout; default: linear.")
    dtype: DType | None = Field(None, description="Type in the engine; default: the graph's.")


class TensorRtBase(EngineBase):
    """The fields of all TensorRT builders."""

    profiles: tuple[dict[str, ProfileRange], ...] | None = Field(
        None, description="Optimization profiles by input; default: one from `dims`."
    )
    builder_optimization_level: int = Field(
        3, ge=0, le=5, description="Effort of the builder, 0 to 5."
    )
    workspace: Bytes | None = Field(None, description="Workspace memory limit, such as 4GiB.")
    tactic_shared_memory: Bytes | None = Field(
        None, description="Shared memory limit of a tactic; not on 8.6."
    )
    tiling_optimization_level: Literal["none", "fast", "moderate", "full"] = Field(
        "none", description="Effort of the search for tilings; not on 8.6."
    )
    l2_limit_for_tiling: Bytes | None = Field(None, description="L2 cache for tilings; not on 8.6.")
    max_aux_streams: int | None = Field(None, ge=0, description="Auxiliary streams.")
    avg_timing_iterations: int = Field(1, ge=1, description="Runs per tactic while timing.")
    max_threads: int | None = Field(None, ge=1, description="Threads of the builder.")
    io: dict[TensorName, TensorIo] = Field(
        {}, description="Layout and type of inputs and outputs in device memory."
    )
    network: Callable | None = Field(
        None, description="FILE.py:NAME, called with network and builder config before the build."
    )
    precision_share: float = Field(
        0.1, ge=0, le=1, description="Minimum share of layers in the engine's precision."
    )


def common_problems(view: ManifestView, path: FieldPath, engine: dict[str, Any]) -> Problems:
    """Yield unknown names in ``io``, and a workspace without memory."""
    if engine.get("workspace") == 0:
        text = "an engine cannot be built without workspace memory"
        yield view.problem((*path, "workspace"), text, "set a size such as 4GiB, or remove it")
    inputs, outputs = shapes_after_surgery(view), view.map("outputs")
    if inputs is None or not outputs:
        return  # names of undeclared outputs are known once the engine is built
    names = [*inputs, *outputs]
    for name in view.map(*path, "io"):
        if name not in names:
            hint = suggest(name, names, what="inputs and outputs")
            text = f'unknown input or output "{name}"'
            yield view.problem((*path, "io", name), text, hint, of_key=True)
