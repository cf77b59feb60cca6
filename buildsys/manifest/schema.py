"""The manifest as frozen pydantic models: every field, its default and its meaning.

The JSON Schema that editors use is generated from these models, so a description here is what a user
reads while typing. Nothing in this module touches a file or imports a library that a stage uses.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from buildsys.manifest.units import parse_duration, parse_size

DType = Literal[
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16",
    "uint32", "uint64", "bool", "complex64", "complex128", "string", "int4", "uint4", "float4e2m1",
    "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz",
]  # fmt: skip
Case = Literal["min", "opt", "max", "odd"]
Precision = Literal["fp32", "fp16", "bf16"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=100)]
DimName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Dim = Annotated[int, Field(ge=0)] | DimName
Seconds = Annotated[float, BeforeValidator(parse_duration), Field(json_schema_extra={"type": ["string", "number"]})]
Bytes = Annotated[int, BeforeValidator(parse_size), Field(json_schema_extra={"type": ["string", "integer"]})]
ALL_CASES: tuple[Case, ...] = ("min", "opt", "max", "odd")


class Spec(BaseModel):
    """Base of every manifest section: immutable, and a typo is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _sequences_are_tuples(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


# --- source ---------------------------------------------------------------------------------------


class WeightsFile(Spec):
    """A state dict in a file of the project, loaded with ``weights_only=True``."""

    file: str = Field(description="Path relative to the project.")
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        None, description="When given, the file must have this digest."
    )


class _Source(Spec):
    seed: int = Field(0, ge=0, description="Seed of weights that are not loaded, and of random inputs.")


class TorchvisionSource(_Source):
    """A model of torchvision's registry, by name."""

    torchvision: str = Field(description="A name that torchvision.models.list_models() knows.")
    weights: str | WeightsFile | None = Field(
        None, description="null: random from `seed`; DEFAULT or an enum name such as IMAGENET1K_V2; or a file."
    )
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Further arguments of the model's builder.")


class PythonSource(_Source):
    """A callable of the project that returns a torch.nn.Module."""

    python: str = Field(pattern=r"^[^:]+\.py:[A-Za-z_][A-Za-z0-9_.]*$", description="FILE.py:CALLABLE")
    weights: WeightsFile | None = Field(None, description="null: as the callable made them; or a file.")
    randomize: bool = Field(False, description="Draw weights and batch-norm statistics from `seed`, as for torchvision.")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Arguments of the callable.")


class OnnxSource(_Source):
    """A ready ONNX file; its outputs in ONNX Runtime without optimization are the reference."""

    onnx: str = Field(description="Path relative to the project.")


def _source_kind(value: object) -> str | None:
    keys = value.keys() if isinstance(value, dict) else vars(value).keys()
    return next((kind for kind in ("torchvision", "python", "onnx") if kind in keys), None)


Source = Annotated[
    Annotated[TorchvisionSource, Tag("torchvision")]
    | Annotated[PythonSource, Tag("python")]
    | Annotated[OnnxSource, Tag("onnx")],
    Discriminator(
        _source_kind,
        custom_error_type="source_kind",
        custom_error_message="a source needs one of the fields torchvision, python or onnx",
    ),
]

# --- inputs, outputs, dimensions ------------------------------------------------------------------


class RandomData(Spec):
    """Values drawn from the source's seed, the same on every machine."""

    random: Literal["normal", "uniform", "integers"]
    mean: float = 0.0
    std: float = Field(1.0, ge=0)
    low: float = 0.0
    high: float = Field(1.0, description="Exclusive for integers.")


class NpzData(Spec):
    """Values from an array of a .npz file, cut to each case's shape from the front."""

    npz: str = Field(description="Path relative to the project.")
    key: str | None = Field(None, description="Array in the file; default: the input's name.")


class PythonData(Spec):
    """Values from a callable of the project: ``f(shape, dtype, case, seed) -> numpy array``."""

    python: str = Field(pattern=r"^[^:]+\.py:[A-Za-z_][A-Za-z0-9_.]*$", description="FILE.py:CALLABLE")


class ConstantData(Spec):
    """One value everywhere."""

    constant: float | int | bool | str


def _data_kind(value: object) -> str | None:
    keys = value.keys() if isinstance(value, dict) else vars(value).keys()
    return next((kind for kind in ("random", "npz", "python", "constant") if kind in keys), None)


InputData = Annotated[
    Annotated[RandomData, Tag("random")]
    | Annotated[NpzData, Tag("npz")]
    | Annotated[PythonData, Tag("python")]
    | Annotated[ConstantData, Tag("constant")],
    Discriminator(
        _data_kind,
        custom_error_type="data_kind",
        custom_error_message="data needs one of the fields random, npz, python or constant",
    ),
]


class InputSpec(Spec):
    """One input of the model."""

    shape: tuple[Dim, ...] = Field(description="Numbers and names of `dims`.")
    dtype: DType = "float32"
    data: InputData | None = Field(
        None, description="Default: random normal for floats, integers 0 to 9 for integers, 0 or 1 for bool."
    )
    keyword: str | None = Field(None, description="Pass it to forward() by this keyword instead of by position.")


class OutputSpec(Spec):
    """One output of the model."""

    shape: tuple[Dim | None, ...] | None = Field(
        None, description="Numbers, names of `dims`, or null for a size that follows from others."
    )
    dtype: DType | None = None
    key: str | None = Field(None, description="Key in the dict that forward() returns; default: the output's name.")


class DimSpec(Spec):
    """The range of a named, dynamic dimension."""

    min: int = Field(ge=0)
    opt: int = Field(ge=0)
    max: int = Field(ge=0)
    odd: int | None = Field(None, description="The odd value that is also validated; default: chosen in the range.")
    multiple_of: int = Field(1, ge=1, description="Every value is a multiple of this.")

    @model_validator(mode="after")
    def _ordered(self) -> DimSpec:
        if not self.min <= self.opt <= self.max:
            raise ValueError(f"min {self.min}, opt {self.opt}, max {self.max} are not in ascending order")
        values = {"min": self.min, "opt": self.opt, "max": self.max, "odd": self.odd}
        for name, value in values.items():
            if value is not None and value % self.multiple_of:
                raise ValueError(f"{name} {value} is not a multiple of {self.multiple_of}")
        if self.odd is not None and not self.min <= self.odd <= self.max:
            raise ValueError(f"odd {self.odd} is outside the range {self.min} to {self.max}")
        return self


# --- stages ---------------------------------------------------------------------------------------


class ExportSpec(Spec):
    """Options of torch.onnx.export under torch's names. An unset option keeps torch's default."""

    exporter: Literal["torchscript", "dynamo"] = "torchscript"
    opset: int = Field(17, description="Opset of the written file; it is read back and compared.")
    export_params: bool | None = None
    keep_initializers_as_inputs: bool | None = None
    do_constant_folding: bool | None = Field(None, description="torchscript only.")
    training: Literal["eval", "preserve", "train"] | None = Field(None, description="torchscript only.")
    custom_opsets: dict[str, int] | None = Field(None, description="torchscript only.")
    autograd_inlining: bool | None = Field(None, description="torchscript only.")
    operator_export_type: Literal["onnx", "onnx_aten", "onnx_aten_fallback", "onnx_fallthrough"] | None = Field(
        None, description="torchscript only."
    )
    export_modules_as_functions: bool | tuple[str, ...] | None = Field(
        None, description="torchscript only; true, or class paths such as torch.nn.ReLU."
    )
    optimize: bool | None = Field(None, description="dynamo only.")
    verify: bool | None = Field(None, description="dynamo only.")
    report: bool | None = Field(None, description="dynamo only; the report lies beside the model.")
    profile: bool | None = Field(None, description="dynamo only.")
    dump_exported_program: bool | None = Field(None, description="dynamo only.")
    external_data: bool | None = Field(None, description="dynamo only; default here: false below 1.5 GB of weights.")
    verbose: bool | None = None


class SimplifySpec(Spec):
    """How the exported graph is simplified."""

    tool: Literal["onnxsim", "onnxslim", "none"] = "onnxsim"
    constant_folding: bool = True
    shape_inference: bool = True
    fuse: bool = Field(True, description="Let the tool fuse operators (onnxsim: its optimizer).")
    tensor_size_threshold: Bytes | None = Field(
        None, description="Constants larger than this are not folded into the file (onnxsim), e.g. 1MiB."
    )


class Tolerance(Spec):
    """When two outputs count as equal. All given limits must hold; rtol and cosine always do."""

    rtol: float = Field(1e-4, ge=0, description="max |a - b| over max |b|.")
    cosine: float = Field(0.9999, ge=-1, le=1, description="At least this cosine similarity.")
    atol: float | None = Field(None, ge=0, description="An additional limit on max |a - b|.")
    top1: float | None = Field(None, ge=0, le=1, description="At least this share of equal arg-max on the last axis.")


class ValidateSpec(Tolerance):
    """PyTorch against ONNX Runtime, on the exported and on the simplified graph."""

    cases: tuple[Case, ...] = Field(ALL_CASES, min_length=1)


class VerifySpec(Spec):
    """Engine outputs against the golden outputs; the tolerance goes by the engine's precision."""

    cases: tuple[Case, ...] = Field(ALL_CASES, min_length=1)
    fp32: Tolerance = Tolerance(rtol=1e-3, cosine=0.9999)
    fp16: Tolerance = Tolerance(rtol=2e-2, cosine=0.999)
    bf16: Tolerance = Tolerance(rtol=1e-1, cosine=0.99)


class BenchSpec(Spec):
    """Latency and throughput of an engine, interleaved with its baselines."""

    duration: Seconds = Field(3.0, gt=0, description="Measured time per case and contender, at least.")
    warmup: Seconds = Field(0.2, ge=0, description="Time per case and contender before samples count.")
    min_samples: int = Field(10, ge=1, description="At least this many samples, however long they take.")
    cases: tuple[Case, ...] = Field(("opt",), min_length=1)
    baselines: tuple[Literal["torch"], ...] = Field(("torch",))


class ReportSpec(Spec):
    """What the report holds."""

    formats: tuple[Literal["json", "markdown"], ...] = Field(("json", "markdown"))


# --- engines --------------------------------------------------------------------------------------


class _Engine(Spec):
    name: Name = Field(description="Name of the engine in targets and paths.")
    precision: Precision = "fp32"
    required: bool = Field(False, description="Fail the build where this engine cannot be built.")
    tolerance: Tolerance | None = Field(None, description="Instead of the one that goes by precision.")


class OnnxRuntimeEngine(_Engine):
    """An ONNX Runtime session; the optimized model that the session saves is the engine."""

    backend: Literal["onnxruntime"]
    provider: Literal["cpu", "cuda"] = "cpu"
    intra_op_threads: int = Field(0, ge=0, description="0: one per core.")
    inter_op_threads: int = Field(1, ge=1)
    graph_optimization_level: Literal["disable", "basic", "extended", "all"] = "all"
    execution_mode: Literal["sequential", "parallel"] = "sequential"
    spinning: bool = Field(True, description="Threads wait by spinning: lower latency, a busy core.")
    session_config: dict[str, str] = Field(default_factory=dict, description="Session config entries by their key.")


class ShapeRange(Spec):
    """The shapes that one input takes in one optimization profile."""

    min: tuple[Annotated[int, Field(ge=0)], ...]
    opt: tuple[Annotated[int, Field(ge=0)], ...]
    max: tuple[Annotated[int, Field(ge=0)], ...]


RtxFlag = Literal[
    "tf32", "sparse_weights", "direct_io", "gpu_fallback", "refit", "refit_individual", "strip_plan",
    "weight_streaming", "strict_nans", "editable_timing_cache", "disable_compilation_cache", "monitor_memory",
    "distributive_independence", "require_user_allocation", "version_compatible", "exclude_lean_runtime",
    "refit_identical", "debug",
]  # fmt: skip
ComputeCapability = Literal["7.5", "8.0", "8.6", "8.9", "12.0", "12.1", "current"]


class TensorRtRtxEngine(_Engine):
    """A TensorRT-RTX engine: strongly typed, so its precision is that of the ONNX it is built from."""

    backend: Literal["tensorrt_rtx"]
    profiles: tuple[dict[str, ShapeRange], ...] | None = Field(
        None, description="Optimization profiles by input name; default: one from `dims`."
    )
    compute_capabilities: tuple[ComputeCapability, ...] = Field(
        ("8.6", "8.9", "12.0"), min_length=1, description="GPU generations that the engine runs on."
    )
    flags: dict[RtxFlag, bool] = Field(default_factory=dict, description="Builder flags to set or clear.")
    builder_optimization_level: int = Field(3, ge=0, le=5)
    workspace: Bytes | None = Field(None, description="Limit of the workspace memory pool, e.g. 4GiB.")
    tactic_shared_memory: Bytes | None = None
    tiling_optimization_level: Literal["none", "fast", "moderate", "full"] = "none"
    l2_limit_for_tiling: Bytes | None = None
    max_aux_streams: int | None = Field(None, ge=0)
    avg_timing_iterations: int = Field(1, ge=1)
    max_threads: int | None = Field(None, ge=1, description="Threads of the builder.")
    profiling_verbosity: Literal["layer_names_only", "none", "detailed"] = "layer_names_only"


Engine = Annotated[OnnxRuntimeEngine | TensorRtRtxEngine, Field(discriminator="backend")]

# --- the whole ------------------------------------------------------------------------------------


class ModelSpec(Spec):
    """One model after extends, matrix, defaults and engine profiles: what its targets finally use."""

    model: Name
    description: str = ""
    source: Source
    inputs: dict[Name, InputSpec] = Field(min_length=1)
    outputs: dict[Name, OutputSpec] = Field(
        default_factory=dict, description="In order; default: as the model returns them."
    )
    dims: dict[DimName, DimSpec] = Field(default_factory=dict)
    export: ExportSpec = ExportSpec()
    simplify: SimplifySpec = SimplifySpec()
    validation: ValidateSpec = Field(ValidateSpec(), alias="validate")
    engines: tuple[Engine, ...] = Field(())
    verify: VerifySpec = VerifySpec()
    bench: BenchSpec = BenchSpec()
    report: ReportSpec = ReportSpec()
    timeout: dict[str, Seconds] = Field(default_factory=dict, description="Limit per stage, e.g. {export: 10min}.")


class ProjectSpec(Spec):
    """configs/project.yaml: what all models of the project share."""

    defaults: dict[str, Any] = Field(default_factory=dict, description="Manifest sections under every model's own.")
