"""The sections of a manifest about the stages that every model runs through."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from buildsys.manifest.schema.base import ALL_CASES, Bytes, Case, Seconds, Spec, section


def _check_modules(value: object) -> object:
    if isinstance(value, bool) or (
        isinstance(value, tuple) and all(isinstance(name, str) for name in value)
    ):
        return value
    raise PydanticCustomError("modules", "not module classes")


Modules = Annotated[
    bool | tuple[str, ...],
    BeforeValidator(_check_modules),
    WithJsonSchema(
        {"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "string"}}]}
    ),
]


def _check_switches(value: object) -> object:
    if isinstance(value, bool):
        return (value,)
    if isinstance(value, tuple) and value and all(isinstance(entry, bool) for entry in value):
        return tuple(dict.fromkeys(value))
    raise PydanticCustomError("switches", "neither true, false nor a list of both")


CudaGraph = Annotated[
    tuple[bool, ...],
    BeforeValidator(_check_switches),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "boolean"},
                {"type": "array", "items": {"type": "boolean"}, "minItems": 1},
            ]
        }
    ),
]
Baseline = Literal["torch", "torch_cuda_graph", "torch_compile", "onnxruntime"]


class ExportSpec(Spec):
    """Options of torch.onnx.export under torch's names. An unset option keeps torch's default."""

    exporter: Literal["torchscript", "dynamo"] = "torchscript"
    opset: int = Field(
        17,
        description="Opset of the written file, read back and compared; torchscript 6 to 23, dynamo 7 to 28.",
    )
    export_params: bool | None = None
    keep_initializers_as_inputs: bool | None = None
    do_constant_folding: bool | None = Field(None, description="torchscript only.")
    training: Literal["eval", "preserve", "train"] | None = Field(
        None, description="torchscript only."
    )
    custom_opsets: dict[str, int] | None = Field(None, description="torchscript only.")
    autograd_inlining: bool | None = Field(None, description="torchscript only.")
    operator_export_type: (
        Literal["onnx", "onnx_aten", "onnx_aten_fallback", "onnx_fallthrough"] | None
    ) = Field(None, description="torchscript only.")
    export_modules_as_functions: Modules | None = Field(
        None, description="torchscript only; true, or class paths such as torch.nn.ReLU."
    )
    optimize: bool | None = Field(None, description="dynamo only.")
    verify: bool | None = Field(None, description="dynamo only.")
    report: bool | None = Field(None, description="dynamo only; the report lies beside the model.")
    profile: bool | None = Field(None, description="dynamo only.")
    dump_exported_program: bool | None = Field(None, description="dynamo only.")
    external_data: bool | None = Field(
        None, description="dynamo only; not set: weights above 64 MiB lie in model.onnx.data."
    )
    verbose: bool | None = None


class SimplifySpec(Spec):
    """How the exported graph is simplified."""

    tool: Literal["onnxsim", "onnxslim", "none"] = "onnxsim"
    constant_folding: bool = True
    shape_inference: bool = True
    fuse: bool = Field(True, description="Let the tool fuse operators (onnxsim: its optimizer).")
    tensor_size_threshold: Bytes | None = Field(
        None,
        description="Constants larger than this are not folded into the file (onnxsim), e.g. 1MiB.",
    )


class Tolerance(Spec):
    """When two outputs count as equal. All given limits must hold; rtol and cosine always do."""

    rtol: float = Field(1e-4, ge=0, description="max |a - b| over max |b|.")
    cosine: float = Field(0.9999, ge=-1, le=1, description="At least this cosine similarity.")
    atol: float | None = Field(None, ge=0, description="An additional limit on max |a - b|.")
    top1: float | None = Field(
        None, ge=0, le=1, description="At least this share of equal arg-max on the last axis."
    )


class Fp32Tolerance(Tolerance):
    """When an fp32 engine counts as right."""

    rtol: float = Field(1e-3, ge=0, description="max |a - b| over max |b|.")


class Fp16Tolerance(Tolerance):
    """When an fp16 engine counts as right."""

    rtol: float = Field(2e-2, ge=0, description="max |a - b| over max |b|.")
    cosine: float = Field(0.999, ge=-1, le=1, description="At least this cosine similarity.")


class Bf16Tolerance(Tolerance):
    """When a bf16 engine counts as right."""

    rtol: float = Field(1e-1, ge=0, description="max |a - b| over max |b|.")
    cosine: float = Field(0.99, ge=-1, le=1, description="At least this cosine similarity.")


class Int8Tolerance(Tolerance):
    """When an int8 engine counts as right."""

    rtol: float = Field(2e-1, ge=0, description="max |a - b| over max |b|.")
    cosine: float = Field(0.99, ge=-1, le=1, description="At least this cosine similarity.")


class Fp8Tolerance(Tolerance):
    """When an fp8 engine counts as right."""

    rtol: float = Field(2e-1, ge=0, description="max |a - b| over max |b|.")
    cosine: float = Field(0.98, ge=-1, le=1, description="At least this cosine similarity.")


class EngineTolerance(Spec):
    """Limits of one engine; what is not given here is that of `verify` for its precision."""

    rtol: float | None = Field(None, ge=0, description="max |a - b| over max |b|.")
    cosine: float | None = Field(None, ge=-1, le=1, description="At least this cosine similarity.")
    atol: float | None = Field(None, ge=0, description="An additional limit on max |a - b|.")
    top1: float | None = Field(
        None, ge=0, le=1, description="At least this share of equal arg-max on the last axis."
    )


class ValidateSpec(Tolerance):
    """PyTorch against ONNX Runtime, on the exported and on the simplified graph."""

    cases: tuple[Case, ...] = Field(ALL_CASES, min_length=1)


class VerifySpec(Spec):
    """Engine outputs against the golden outputs; the tolerance goes by the engine's precision."""

    cases: tuple[Case, ...] = Field(ALL_CASES, min_length=1)
    fp32: Fp32Tolerance = section()
    fp16: Fp16Tolerance = section()
    bf16: Bf16Tolerance = section()
    int8: Int8Tolerance = section()
    fp8: Fp8Tolerance = section()


class BenchSpec(Spec):
    """Latency and throughput of an engine, interleaved with its baselines."""

    duration: Seconds = Field(
        3.0, gt=0, description="Measured time per case and contender, at least."
    )
    warmup: Seconds = Field(
        0.2, ge=0, description="Time per case and contender before samples count."
    )
    min_samples: int = Field(
        10, ge=1, description="At least this many samples, however long they take."
    )
    cases: tuple[Case, ...] = Field(("opt",), min_length=1)
    baselines: tuple[Baseline, ...] = Field(
        ("torch",), description="What else is timed, in turns with the engine."
    )
    baseline_precision: Literal["auto", "fp32", "fp16", "bf16"] = Field(
        "auto", description="auto: the engine's on a GPU (fp16 below that), fp32 on a CPU."
    )
    cuda_graph: CudaGraph = Field(
        (False,),
        description="Launch the engine as one captured graph; [false, true] times both (TensorRT).",
    )
    transfers: Literal["none", "in", "out", "both"] = Field(
        "none", description="Copies between host and GPU within the measured time (TensorRT)."
    )
    in_flight: int = Field(
        1, ge=1, le=64, description="Inferences at a time on the GPU (TensorRT)."
    )
    wait: Literal["spin", "block"] = Field(
        "spin", description="How the host waits for the GPU (TensorRT)."
    )


class ReportSpec(Spec):
    """What the report holds."""

    formats: tuple[Literal["json", "markdown"], ...] = Field(("json", "markdown"))
