"""Sources of the network: libraries, files and callables, with their weights."""

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, model_validator

from buildsys.manifest.schema.base import Callable, Digest, OneOf, Spec, form
from buildsys.manifest.schema.files import CheckpointName, WeightsName, WeightsUrl

_GRAPH_KINDS = ("torchvision", "timm", "transformers", "exported_program", "python", "onnx")
SOURCE_KINDS = (*_GRAPH_KINDS, "tensorrt")
REFERENCE_KINDS = (*_GRAPH_KINDS, "numpy")  # a network defined by hand has a numpy reference


class WeightsFile(Spec):
    """A state dict in files of the project, read without executing code."""

    file: WeightsUrl
    """A checkpoint or index of shards: a path, hf://OWNER/NAME@COMMIT/FILE, s3://, https://."""
    sha256: Digest | None = None
    """Expected digest of the file; with shards, of the index and all shards."""
    key: str | None = None
    """Of several state dicts in the file, such as model_ema or state_dict.teacher."""
    prefix: str | None = None
    """What the names begin with below key, such as model."""
    strict: bool = True
    """false: leave out other tensors; missing ones stay as created, which reports say."""


TorchvisionWeights = Annotated[
    str | WeightsFile,
    OneOf(("name", "file"), choose=lambda value: "name" if isinstance(value, str) else "file"),
]


class _Source(Spec):
    seed: int = Field(0, ge=0, description="Seed of random weights and random inputs.")


class _TorchSource(_Source):
    device: Literal["cpu", "cuda"] = "cpu"
    """cuda: build, run and trace the network on a GPU."""


class TorchvisionSource(_TorchSource):
    """A model of torchvision, by name."""

    torchvision: str = Field(description="A name in torchvision.models.list_models().")
    weights: TorchvisionWeights | None = None
    """null: random from `seed`; DEFAULT or IMAGENET1K_V2; or a file."""
    kwargs: dict[str, Any] = Field({}, description="Arguments of the model's builder.")


class TimmSource(_TorchSource):
    """A model of timm, by name."""

    timm: str = Field(description="A name in timm.list_models().")
    weights: WeightsFile | None = Field(None, description="null: random from `seed`; or a file.")
    kwargs: dict[str, Any] = Field({}, description="Arguments of timm.create_model.")


_Config = Annotated[
    WeightsName | dict[str, Any],
    OneOf(("file", "fields"), choose=lambda value: "file" if isinstance(value, str) else "fields"),
]


class TransformersSource(_TorchSource):
    """A model of transformers, from a configuration or a checkpoint."""

    transformers: str = Field(min_length=1)
    """A class such as AutoModelForMaskedLM, or a task such as fill-mask."""
    checkpoint: CheckpointName | None = None
    """Folder with config.json and safetensors, or hf://OWNER/NAME@COMMIT."""
    sha256: Digest | None = None
    """Expected digest of config.json and all files of weights, concatenated."""
    config: Annotated[
        _Config | None,
        form(
            "a map of configuration fields, or a file", lambda v: isinstance(v, str | dict | None)
        ),
        WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string"}, {"type": "null"}]}),
    ] = Field(
        None, description="Instead of a checkpoint: fields such as model_type, or a config.json."
    )
    weights: WeightsFile | None = None
    """With config: null, random from `seed`; or a file."""
    cache: bool = False
    """Inputs past_key_values.N.key and .value, outputs present.N.key, .value."""
    kwargs: dict[str, Any] = Field({})
    """attn_implementation and dtype (default: float32)."""

    @model_validator(mode="after")
    def _check_origin(self) -> "TransformersSource":
        if (self.checkpoint is None) == (self.config is None):
            raise ValueError("a transformers source has either checkpoint or config")
        if self.checkpoint is None and self.sha256 is not None:
            raise ValueError("sha256 is for checkpoints; use weights.sha256 for a file")
        if self.checkpoint is not None and self.weights is not None:
            raise ValueError("weights replace the checkpoint's; name its config.json in config")
        return self


class ExportedProgramSource(_TorchSource):
    """A program saved by torch.export.save, with its weights."""

    exported_program: WeightsName = Field(description="A .pt2 file, relative to the project.")
    trusted: bool = False
    """Must be true: torch can run code of such a file when it loads it."""


class PythonSource(_TorchSource):
    """A callable of the project, returning a torch.nn.Module."""

    python: Callable = Field(description="FILE.py:CALLABLE, which returns a torch.nn.Module.")
    weights: WeightsFile | None = None
    """null: as initialized by the callable under `seed`; or a file."""
    randomize: bool = Field(False, description="Draw weights and batch-norm statistics by `seed`.")
    kwargs: dict[str, Any] = Field({}, description="Arguments of the callable.")


class OnnxSource(_Source):
    """An ONNX model, with unoptimized ONNX Runtime as reference."""

    onnx: WeightsName
    """A file of the project, or FILE.py:CALLABLE for a ModelProto."""
    kwargs: dict[str, Any] = Field({}, description="Arguments of the callable.")


class NumpySource(_Source):
    """A function of the project on numpy arrays, as a reference only."""

    numpy: Callable
    """FILE.py:FUNCTION, of the inputs in order; returns the outputs."""
    kwargs: dict[str, Any] = Field({}, description="Keyword arguments of the function.")


_GraphSource = (
    TorchvisionSource
    | TimmSource
    | TransformersSource
    | ExportedProgramSource
    | PythonSource
    | OnnxSource
)
Reference = Annotated[_GraphSource | NumpySource, OneOf(REFERENCE_KINDS)]


class TensorRtSource(Spec):
    """A TensorRT network defined by hand, with a reference to verify it."""

    tensorrt: Callable
    """FILE.py:FUNCTION, which fills a network: define(network, trt)."""
    reference: Reference
    """Another source, or numpy: it gives the golden outputs."""
    weights: WeightsFile | None = None
    """An .npz file; default: the state dict of a PyTorch reference."""
    kwargs: dict[str, Any] = Field({}, description="Further arguments of the function.")

    @model_validator(mode="after")
    def _check_weights(self) -> "TensorRtSource":
        if (weights := self.weights) and (
            weights.model_fields_set - {"file", "sha256"} or "://" in weights.file
        ):
            raise ValueError("weights of a network defined by hand are a local file, with sha256")
        return self


Source = Annotated[_GraphSource | TensorRtSource, OneOf(SOURCE_KINDS)]
