"""Sections for the stages of every model."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from buildsys.manifest.default_limits import DEFAULT_LIMITS, STEADY_INTERVAL
from buildsys.manifest.schema.base import (
    ALL_CASES,
    MODULE_PATTERN,
    Bytes,
    Callable,
    Case,
    Seconds,
    Spec,
    TensorName,
    form,
    section,
)
from buildsys.manifest.schema.network import InputData


def _is_bool_or_strings(value: object) -> bool:
    return isinstance(value, bool) or (
        isinstance(value, tuple) and all(isinstance(name, str) for name in value)
    )


def _check_switches(value: object) -> object:
    if isinstance(value, bool):
        return (value,)
    if isinstance(value, tuple) and value and all(isinstance(entry, bool) for entry in value):
        return tuple(dict.fromkeys(value))
    raise PydanticCustomError("form", "wrong form", {"words": "true, false or a list of both"})


_BOOLEAN = {"type": "boolean"}
_BOOLEANS = {"type": "array", "items": _BOOLEAN, "minItems": 1}
Modules = Annotated[
    bool | tuple[str, ...],
    form("true, false or a list of class paths", _is_bool_or_strings),
]
CudaGraph = Annotated[
    tuple[bool, ...],
    BeforeValidator(_check_switches),
    WithJsonSchema({"anyOf": [_BOOLEAN, _BOOLEANS]}),
]
PythonFile = Annotated[str, Field(pattern=MODULE_PATTERN)]
QuantizedOperator = Literal[
    "Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Mul", "AveragePool", "GlobalAveragePool",
    "MaxPool",
]  # fmt: skip
DEFAULT_PERCENTILE = 99.99
Baseline = Literal["torch", "torch_cuda_graph", "torch_compile", "onnxruntime"]
_TORCHSCRIPT = Field(None, description="torchscript only.")
_DYNAMO = Field(None, description="dynamo only.")
_OF_PRECISION = "Not set: that of the precision, none for fp32."


class ExportSpec(Spec):
    """Options of torch.onnx.export under torch's names; unset options keep torch's defaults."""

    exporter: Literal["torchscript", "dynamo"] = "torchscript"
    """Exporter of torch.onnx; both take the same manifest."""
    opset: int = Field(17, description="Opset of the file: torchscript 6 to 23, dynamo 7 to 28.")
    export_params: bool | None = None
    """Keep the weights in the file; false is refused."""
    keep_initializers_as_inputs: bool | None = None
    """List initializers as graph inputs as well."""
    do_constant_folding: bool | None = _TORCHSCRIPT
    training: Literal["eval", "preserve", "train"] | None = _TORCHSCRIPT
    custom_opsets: dict[str, int] | None = _TORCHSCRIPT
    autograd_inlining: bool | None = _TORCHSCRIPT
    operator_export_type: (
        Literal["onnx", "onnx_aten", "onnx_aten_fallback", "onnx_fallthrough"] | None
    ) = _TORCHSCRIPT
    export_modules_as_functions: Modules | None = None
    """torchscript only; true, or class paths such as torch.nn.ReLU."""
    optimize: bool | None = _DYNAMO
    verify: bool | None = _DYNAMO
    report: bool | None = Field(None, description="dynamo only; written next to the model.")
    profile: bool | None = _DYNAMO
    dump_exported_program: bool | None = _DYNAMO
    external_data: bool | None = None
    """dynamo only; default: weights above 64 MiB go to model.onnx.data."""
    verbose: bool | None = Field(None, description="Print the exporter's progress to the log.")


class SymbolicSpec(Spec):
    """A symbolic function, or a file registering such functions, for torchscript."""

    op: str | None = Field(None, description="Operator without overload, such as aten::asinh.")
    function: Callable | None = None
    """FILE.py:CALLABLE: f(g, *inputs) returns the result of g.op(...)."""
    opset: int | None = None
    """First opset of the function; default: the export's opset only."""
    module: PythonFile | None = None
    """Instead of the others: a file that registers symbolics on import."""


class TranslationSpec(Spec):
    """A translation of an operator to ONNX for exporter: dynamo."""

    op: str
    """Operator of PyTorch or the network's file, such as aten::add.Tensor."""
    function: Callable = Field(description="FILE.py:CALLABLE of onnxscript operators: f(*inputs).")


class SimplifySpec(Spec):
    """Simplification of the exported graph."""

    tool: Literal["onnxsim", "onnxslim", "none"] = "onnxsim"
    """Simplifier of the graph; none keeps the exported one."""
    constant_folding: bool = Field(True, description="Compute constant parts of the graph.")
    shape_inference: bool = Field(True, description="Infer the shapes of inner tensors.")
    fuse: bool = Field(True, description="Let the tool fuse operators (onnxsim: its optimizer).")
    tensor_size_threshold: Bytes | None = None
    """Largest constant folded into the file (onnxsim), such as 1MiB."""


class ConvertSpec(Spec):
    """Conversion to fp16 and bf16."""

    tool: Literal["builtin", "autocast"] = "builtin"
    """autocast is NVIDIA ModelOpt's, which chooses nodes by their values."""
    exclude: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Name patterns of nodes to leave in fp32, such as */head/* (builtin)."""


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


class QuantizeSpec(Spec):
    """Insertion of quantizers into a graph."""

    tool: Literal["onnxruntime", "builtin", "modelopt"] | None = None
    """Default: builtin, formerly also onnxruntime; modelopt is NVIDIA's."""
    per_channel: bool = Field(True, description="One scale per output channel of a weight.")
    operators: tuple[QuantizedOperator, ...] = Field(
        ("Conv", "ConvTranspose", "Gemm", "MatMul"),
        min_length=1,
        description="Operators to quantize.",
    )
    outputs: bool = False
    """Quantize outputs as well: not for TensorRT, but for ONNX Runtime on a CPU."""
    exclude: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Name patterns of nodes to leave in fp32, such as */head/*."""


class SearchSpec(Spec):
    """Search for the nodes that engines with `precision: auto` keep in fp32."""

    trials: int = Field(100, ge=1, description="Most graphs to convert and run.")
    margin: float = Field(0.2, ge=0, lt=1)
    """Share of the limits left to the engine; raise it if verify fails."""


Fusion = Literal[
    "attention", "layer_norm", "skip_layer_norm", "bias_skip_layer_norm", "embed_layer_norm",
    "gelu", "bias_gelu", "gelu_approximation", "gemm_fast_gelu", "qordered_matmul",
    "rotary_embeddings",
]  # fmt: skip


class OptimizeSpec(Spec):
    """The transformers optimizer of ONNX Runtime, for engines with `optimized: true`."""

    model_type: Literal[
        "bart", "bert", "clip", "conformer", "gpt2", "gpt_neox", "mmdit", "phi", "qwen3", "sam2",
        "swin", "t5", "tnlr", "unet", "vae", "vit",
    ] = Field(description="Architecture of the network; bert also fits most encoders.")  # fmt: skip
    num_heads: int = Field(0, ge=0)
    """Attention heads; 0: detected, which needs constant shapes."""
    hidden_size: int = Field(0, ge=0, description="Size of hidden states; 0: detected.")
    disable: tuple[Fusion, ...] = Field((), description="Fusions to leave out.")


class QuantizeWeightsSpec(Spec):
    """Quantization without calibration: int4, and int8 with `quantization: dynamic`."""

    block_size: Literal[16, 32, 64, 128, 256] = 32
    """Weights of a column with one scale, of int4."""
    symmetric: bool = Field(True, description="Without zero points, of int4.")
    accuracy_level: Literal[0, 1, 2, 3, 4] = 0
    """Computation of int4: 0 kernel's choice, 1 fp32, 2 fp16, 3 bf16, 4 int8."""
    per_channel: bool = Field(True, description="One scale per column of a weight, of int8.")
    reduce_range: bool = True
    """7 bits: no overflow on processors without VNNI, of int8."""
    exclude: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Name patterns of nodes to leave in fp32, such as */head/*."""


class Tolerance(Spec):
    """Limits for equal outputs; all must hold."""

    rtol: float | None = Field(None, ge=0, description="Limit on max |a - b| / max |b|.")
    cosine: float | None = Field(None, ge=-1, le=1, description="Minimum cosine similarity.")
    atol: float | None = Field(None, ge=0, description="Additional limit on max |a - b|.")
    top1: float | None = Field(None, ge=0, le=1)
    """Minimum share of equal arg-max along the last axis."""


class EngineTolerance(Tolerance):
    """Limits of one engine; unset ones are those of `verify`."""

    spread_error: float | None = Field(
        None, ge=0, description=f"Largest error relative to the output's spread. {_OF_PRECISION}"
    )
    correlation: float | None = Field(
        None, ge=-1, le=1, description=f"Minimum centered correlation. {_OF_PRECISION}"
    )
    slope: float | None = Field(
        None, ge=0, description=f"Largest distance of the slope from 1. {_OF_PRECISION}"
    )
    channel_error: float | None = Field(
        None, ge=0, description=f"As `spread_error`, of the worst channel. {_OF_PRECISION}"
    )
    class_agreement: float | None = Field(
        None, ge=0, le=1, description=f"Minimum share of samples of equal class. {_OF_PRECISION}"
    )


class ValidateSpec(Tolerance):
    """Comparison of the exported and simplified graphs with PyTorch.

    Default: rtol 1e-4, cosine 0.9999, wider for networks of 16-bit floats.
    """

    cases: tuple[Case, ...] = Field(ALL_CASES, min_length=1, description="Shape cases to compare.")
    drawn_sizes: int = Field(3, ge=0, le=32)
    """Most further sizes to draw from the ranges of `dims`; 0: none."""
    other_values: bool = True
    """Also compare other seeds and extreme values, at the smallest sizes."""


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


class NoiseSpec(Spec):
    """Limits of a steady measurement; a limit of null is none."""

    budget: Seconds = Field(60.0, ge=0)
    """Most time for repeating noisy measurements; 0: never."""
    interval: float | None = Field(STEADY_INTERVAL, gt=0)
    """Distance of a median's 95 % interval from it, relative."""
    other_load: float | None = Field(0.1, ge=0, le=1)
    """Share of usable processors used by other processes."""
    throttling: float | None = Field(0.0, ge=0, le=1)
    """Share of readings with a throttled GPU."""


class BenchSpec(Spec):
    """Latency and throughput of an engine, interleaved with its baselines."""

    duration: Seconds = Field(3.0, gt=0, description="Least measured time per case and contender.")
    warmup: Seconds = Field(0.2, ge=0, description="Warm-up time per case and contender.")
    min_samples: int = Field(10, ge=1, description="Minimum number of samples.")
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
    wait: Literal["spin", "block"] = Field("spin", description="Host waits for the GPU (TensorRT).")


class ReportSpec(Spec):
    """Files of the report."""

    formats: tuple[Literal["json", "markdown", "html"], ...] = ("json", "markdown", "html")
    """Files of the report besides report.json."""
