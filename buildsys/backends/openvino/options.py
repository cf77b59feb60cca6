"""The fields of an OpenVINO engine, and checks across them."""

from typing import Any, Literal

from pydantic import Field

from buildsys.manifest.problem import Problems
from buildsys.manifest.schema.engines import EngineBase
from buildsys.manifest.value_tree import FieldPath
from buildsys.manifest.view import ManifestView


class OpenVinoEngine(EngineBase):
    """A model in OpenVINO's intermediate representation (IR)."""

    backend: Literal["openvino"] = Field(description="OpenVINO.")
    device: Literal["CPU", "GPU", "NPU"] = Field("CPU", description="Device to run on.")
    threads: int = Field(0, ge=0, description="0: one per core.")
    streams: int | None = Field(
        None, ge=1, description="Parallel streams; default: 1, or chosen by performance_hint."
    )
    performance_hint: Literal["latency", "throughput", "cumulative_throughput"] | None = Field(
        None, description="Let OpenVINO choose streams for this goal."
    )
    pin_threads: bool = Field(False, description="Pin threads to cores.")
    compiled: bool = Field(
        False, description="Run the compiled model, for this version and kind of device only."
    )
    quantization_preset: Literal["performance", "mixed"] = Field(
        "performance", description="Of int8: mixed quantizes activations asymmetrically."
    )
    model_type: Literal["transformer"] | None = Field(
        None, description="Of int8: the architecture, for NNCF's own patterns."
    )
    precision_share: float = Field(
        0.1, ge=0, le=1, description="Minimum share of layers in the engine's precision."
    )
    config: dict[str, str] = Field({}, description="Other properties of the device by name.")


ENGINE = OpenVinoEngine
_PRECISION = "INFERENCE_PRECISION_HINT"


def problems(view: ManifestView, path: FieldPath, engine: dict[str, Any]) -> Problems:
    """Yield unsupported precisions."""
    if engine.get("precision") == "fp8":
        text = "OpenVINO has no fp8 engines"
        yield view.problem((*path, "precision"), text, "use fp32, fp16, bf16 or int8")
    if _PRECISION in view.map(*path, "config"):
        place, text = (*path, "config", _PRECISION), f"{_PRECISION} cannot be set here"
        yield view.problem(place, text, "use the field precision", of_key=True)
