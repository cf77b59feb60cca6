"""The fields of all TensorRT builders."""

from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from buildsys.manifest.backend_choices import QUANTIZED, base_precision, int8_layers
from buildsys.manifest.problem import Problems, suggest
from buildsys.manifest.schema.base import (
    Bytes,
    Callable,
    DType,
    OneOf,
    Precision,
    Spec,
    TensorName,
    fields_of,
)
from buildsys.manifest.schema.engines import EngineBase
from buildsys.manifest.value_tree import FieldPath
from buildsys.manifest.view import ManifestView, shapes_after_surgery

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
    """Yield unknown names in ``io``."""
    inputs, outputs = shapes_after_surgery(view), view.map("outputs")
    if not outputs:
        return  # names of undeclared outputs are known once the engine is built
    names = [*inputs, *outputs]
    for name in view.map(*path, "io"):
        if name not in names:
            hint = suggest(name, names, what="inputs and outputs")
            text = f'unknown input or output "{name}"'
            yield view.problem((*path, "io", name), text, hint, of_key=True)


_UNQUANTIZED = tuple(precision for precision in get_args(Precision) if precision not in QUANTIZED)
OtherFlag = Literal[
    "strict_nans", "editable_timing_cache", "disable_compilation_cache", "monitor_memory",
    "distributive_independence", "debug",
]  # fmt: skip
TacticSource = Literal["cublas", "cublas_lt", "cudnn", "edge_mask_convolutions", "jit_convolutions"]


class LayerPrecision(Spec):
    """The precision of layers selected by name."""

    layers: str = Field(min_length=1, description="Name pattern with * and ?, such as /layer4/*.")
    precision: Literal["fp32", "fp16", "bf16", "int8"] = Field(
        description="Precision of the layers."
    )


class TensorRtEngine(TensorRtBase):
    """A TensorRT 8.6, 10 or 11 engine for the GPU building it."""

    backend: Literal["tensorrt"] = Field(description="TensorRT.")
    typing: Literal["auto", "weak", "strong"] = Field(
        "auto", description="weak: the builder chooses layer types; strong: the graph does."
    )
    quantization: Literal["auto", "implicit", "explicit"] = Field(
        "auto", description="implicit: the builder calibrates; explicit: quantizers of the graph."
    )
    tf32: bool = Field(True, description="Allow TF32 (10 bits of mantissa) in fp32 layers.")
    profiling_verbosity: Literal["layer_names_only", "none", "detailed"] = Field(
        "detailed", description="Below detailed, the engine's precisions cannot be inspected."
    )
    tactic_dram: Bytes | None = Field(None, description="Device memory limit of a tactic.")
    tactic_sources: tuple[TacticSource, ...] | None = Field(
        None, description="Allowed sources of tactics; default: TensorRT's."
    )
    sparsity: bool = Field(False, description="Use sparse kernels for 2:4 sparse weights.")
    refit: bool = Field(
        False, description="Give an earlier engine new weights if nothing else has changed."
    )
    refit_identical: bool = Field(False, description="By equal values only; not on 8.6.")
    refit_individual: bool = Field(False, description="Only those marked by the hook; not on 8.6.")
    strip_plan: bool = Field(False, description="Leave the weights out of the engine; not on 8.6.")
    version_compatible: bool = Field(False, description="Run on later versions as well.")
    exclude_lean_runtime: bool = Field(
        False, description="Leave the lean runtime out of a version-compatible engine."
    )
    hardware_compatibility: Literal["none", "ampere_plus", "same_compute_capability"] = Field(
        "none", description="Other supported GPUs; same_compute_capability: not on 8.6."
    )
    weight_streaming: bool = Field(
        False, description="Allow weights in host memory; strong typing, not on 8.6."
    )
    dla_core: int | None = Field(None, ge=0, description="Deep learning accelerator to build for.")
    gpu_fallback: bool = Field(False, description="Run layers unsupported by the DLA on the GPU.")
    dla_managed_sram: Bytes | None = Field(None, description="Limit of the DLA's managed SRAM.")
    dla_local_dram: Bytes | None = Field(None, description="Limit of the DLA's local DRAM.")
    dla_global_dram: Bytes | None = Field(None, description="Limit of the DLA's global DRAM.")
    direct_io: bool = Field(False, description="Refuse formats of `io` that need a copy.")
    layer_precisions: tuple[LayerPrecision, ...] = Field(
        (), description="Precisions of single layers, later entries win; weak typing only."
    )
    precision_constraints: Literal["obey", "prefer"] = Field(
        "obey", description="obey: fail if no kernel has a layer's precision."
    )
    flags: dict[OtherFlag, bool] = Field({}, description="Other builder flags; not on 8.6.")


ENGINE = TensorRtEngine


def problems(view: ManifestView, path: FieldPath, engine: dict[str, Any]) -> Problems:
    """Yield contradictions between the fields of an engine."""
    yield from common_problems(view, path, engine)
    yield from _contradictions(view, path, engine)
    yield from _quantization(view, path, engine)


def _contradictions(view: ManifestView, path: FieldPath, engine: dict[str, Any]) -> Problems:
    typing = engine.get("typing")
    if typing == "strong" and engine.get("layer_precisions"):
        text = "a strongly typed engine takes the type of each layer from the graph"
        hint = "remove it, or set typing: weak"
        yield view.problem((*path, "layer_precisions"), text, hint, of_key=True)
    if typing == "weak" and base_precision(engine) == "fp8":
        text = "a weakly typed engine cannot use fp8"
        yield view.problem((*path, "typing"), text, "set typing: strong, or remove it")


def _quantization(view: ManifestView, path: FieldPath, engine: dict[str, Any]) -> Problems:
    chosen, precision = engine.get("quantization"), base_precision(engine)
    field = (*path, "quantization")
    int8 = int8_layers(engine)
    if chosen == "explicit" and precision in _UNQUANTIZED:
        text = f"an {precision} engine has no quantizers in its graph, only int8 and fp8 engines do"
        yield view.problem(field, text, "set precision: int8, or remove it")
    if chosen == "explicit" and engine.get("typing") != "strong":
        for number in int8:
            text = "the quantizers of the graph decide which layers are int8"
            hint = "remove it, and choose layers with quantize.exclude and quantize.operators"
            yield view.problem((*path, "layer_precisions", number, "precision"), text, hint)
    if chosen == "implicit" and engine.get("typing") == "strong":
        text = "a strongly typed engine takes types from the graph, so its builder cannot calibrate"
        yield view.problem(field, text, "set typing: weak, or quantization: explicit")
    elif chosen == "implicit" and (precision == "fp8" or (precision in _UNQUANTIZED and not int8)):
        other = "quantization: explicit" if precision == "fp8" else "precision: int8"
        text = f"builders calibrate int8 only, and the precision of this engine is {precision}"
        yield view.problem(field, text, f"set {other}, or remove it")
