"""Fields of manifests about graphs in other precisions."""

from typing import Annotated, Literal

from pydantic import Field

from buildsys.manifest.schema.base import Spec, section

QuantizedOperator = Literal[
    "Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Mul", "AveragePool", "GlobalAveragePool",
    "MaxPool",
]  # fmt: skip
Fusion = Literal[
    "attention", "layer_norm", "skip_layer_norm", "bias_skip_layer_norm", "embed_layer_norm",
    "gelu", "bias_gelu", "gelu_approximation", "gemm_fast_gelu", "qordered_matmul",
    "rotary_embeddings",
]  # fmt: skip


class ConvertSpec(Spec):
    """Conversion to fp16 and bf16."""

    tool: Literal["builtin", "autocast"] = "builtin"
    """autocast is NVIDIA ModelOpt's, which chooses nodes by their values."""
    exclude: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Name patterns of nodes to leave in fp32, such as */head/* (builtin)."""


class QuantizeSpec(Spec):
    """Insertion of quantizers into a graph."""

    tool: Literal["builtin", "modelopt", "source"] | None = None
    """Default: builtin; modelopt is NVIDIA's; source: the network has its own quantizers."""
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


class Sections(Spec):
    """The sections of the stage."""

    convert: ConvertSpec = section()
    quantize: QuantizeSpec = section()
    optimize: OptimizeSpec | None = None
    """Fusions of engines with `optimized: true` (ONNX Runtime)."""
    quantize_weights: QuantizeWeightsSpec = section()
