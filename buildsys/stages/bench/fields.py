"""Fields of manifests about benchmarks."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from buildsys.manifest.default_limits import STEADY_INTERVAL
from buildsys.manifest.schema.base import Case, Seconds, Spec, section
from buildsys.manifest.schema.engines import LimitSeconds


def _check_switches(value: object) -> object:
    if isinstance(value, bool):
        return (value,)
    if isinstance(value, tuple) and value and all(isinstance(entry, bool) for entry in value):
        return tuple(dict.fromkeys(value))
    raise PydanticCustomError("form", "wrong form", {"words": "true, false or a list of both"})


_BOOLEAN = {"type": "boolean"}
_BOOLEANS = {"type": "array", "items": _BOOLEAN, "minItems": 1}
CudaGraph = Annotated[
    tuple[bool, ...],
    BeforeValidator(_check_switches),
    WithJsonSchema({"anyOf": [_BOOLEAN, _BOOLEANS]}),
]
Count = Annotated[int, Field(ge=1, le=1024)]
Baseline = Literal["torch", "torch_cuda_graph", "torch_compile", "torch_tensorrt", "onnxruntime"]


class NoiseSpec(Spec):
    """Limits of a steady measurement; a limit of null is none."""

    interval: float | None = Field(STEADY_INTERVAL, gt=0)
    """Distance of a median's 95 % interval from it, relative."""
    other_load: float | None = Field(0.1, ge=0, le=1)
    """Share of usable processors used by other processes."""
    throttling: float | None = Field(0.0, ge=0, le=1)
    """Share of readings with a throttled GPU."""


class LoadSpec(Spec):
    """Latency of requests that arrive at random, against their rate; each list is varied."""

    p99: LimitSeconds = Field(gt=0, description="Limit of the 99th percentile, such as 20ms.")
    batches: tuple[Count, ...] = ()
    """Items of a request, which arrive together; default: those of the case."""
    instances: tuple[Count, ...] = Field((1,), min_length=1)
    """Concurrent calls, as with `load_engine(concurrency=…)`."""
    threads: tuple[Count, ...] = ()
    """Threads of the engine; default: its own field. Not used on a GPU."""
    streams: tuple[Count, ...] = ()
    """Streams of OpenVINO; default: as many as instances."""
    rates: tuple[Annotated[float, Field(gt=0, le=1e9)], ...] = ()
    """Requests per second; default: shares of the measured maximum."""
    duration: Seconds = Field(5.0, gt=0, le=60, description="Time of requests at each rate.")
    budget: Seconds = Field(300.0, gt=0, description="Time of an engine's settings.")


class BenchSpec(Spec):
    """Latency and throughput of an engine, interleaved with its baselines."""

    duration: Seconds = Field(3.0, gt=0, description="Least measured time per case and contender.")
    warmup: Seconds = Field(0.2, ge=0, description="Warm-up time per case and contender.")
    min_samples: int = Field(10, ge=1, description="Minimum number of samples.")
    budget: Seconds = Field(90.0, gt=0)
    """Time of all cases, contenders and repeats of noisy cases; `min_samples` may take longer."""
    noise: NoiseSpec | None = Field(default_factory=dict, validate_default=True)
    """Limits of a steady measurement; null accepts any."""
    cases: tuple[Case, ...] = Field(("opt",), min_length=1, description="Shape cases to time.")
    baselines: tuple[Baseline, ...] = ("torch",)
    """Contenders timed in turns with the engine."""
    baseline_precision: Literal["auto", "fp32", "fp16", "bf16"] = "auto"
    """auto: the engine's on a GPU (fp16 for int8 and fp8), fp32 on a CPU."""
    cuda_graph: CudaGraph = (False,)
    """Launch as one captured graph; [false, true] times both (TensorRT)."""
    transfers: Literal["none", "in", "out", "both"] = "none"
    """Copies between host and GPU in the measured time (TensorRT)."""
    in_flight: int = Field(1, ge=1, le=64, description="Concurrent inferences (TensorRT).")
    cold_start: int = Field(3, ge=0, le=50)
    """Fresh processes that time loading and first calls; 0: none."""
    load: LoadSpec | None = None
    """Requests at random times to every engine: target `load:MODEL:ENGINE`."""
    wait: Literal["spin", "block"] = Field("spin", description="Host waits for the GPU (TensorRT).")


class Sections(Spec):
    """The section of the stage."""

    bench: BenchSpec = section()
