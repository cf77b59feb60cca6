"""Likely inputs of a network, and facts on trained weights, for ``buildsys new``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import nn

    from buildsys.models.sources.source_module import SourceModule

Inputs = Mapping[str, Mapping[str, Any]]  # name -> shape, dtype, and further fields of the manifest
BATCH = "batch"
_LENGTH, _DECODER_LENGTH = "length", "decoder_length"
_IMAGE_SIZES = (224, 32, 28, 64, 299, 512)
_AUDIO_SAMPLES = 16_000
_TOKENS = 3  # tokens in the first call with a cache
_PAST = "past"
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Candidate(NamedTuple):
    """Likely inputs of a model."""

    inputs: Inputs
    call: Mapping[str, Any] | None = None  # as in the manifest
    least: Mapping[str, int] = MappingProxyType({})  # dimension -> smallest size to try


def likely_inputs(
    made: SourceModule, described: Inputs, image_size: int | None = None
) -> Iterator[Candidate]:
    """Yield possible inputs of the network, the likeliest first.

    ``described`` are the user's; ``image_size`` is that of its training, if known.
    """
    if made.program is not None:
        yield Candidate(described or _program_inputs(made))
        return
    if made.by_keyword:
        for inputs in [described] if described else _transformers_inputs(made.module):
            has_past = any(name.startswith("past_key_values.") for name in inputs)
            yield Candidate(inputs, least={_LENGTH: 1} if has_past else {})
        return
    parameters = [*inspect.signature(made.module.forward).parameters.values()]
    if described:
        plain = [_with_keywords(described, parameters)]
    else:
        names = {
            parameter.name: None if parameter.kind in _POSITIONAL else parameter.name
            for parameter in parameters
            if parameter.default is parameter.empty
            if parameter.kind in (*_POSITIONAL, parameter.KEYWORD_ONLY)
        } or {"input0": None}
        plain = [
            {name: {"shape": shape, "dtype": dtype, "keyword": keyword}
             for name, keyword in names.items()}
            for shape, dtype in _first_shapes(made.module, image_size)
        ]  # fmt: skip
    yield from map(Candidate, plain)
    for inputs in plain:
        first, *others = inputs
        structures: list[list[Any]] = [[[*inputs]], [{"tuple": [*inputs]}]]
        structures += [[{name: name for name in inputs}]]
        structures += [[first, {"tuple": others}]] if others else []
        for args in structures:
            yield Candidate(inputs, {"args": args, "kwargs": {}})


def _with_keywords(described: Inputs, parameters: Sequence[inspect.Parameter]) -> Inputs:
    """Pass inputs with the names of parameters by keyword, unless they are in order."""
    positional = [parameter.name for parameter in parameters if parameter.kind in _POSITIONAL]
    names = {parameter.name for parameter in parameters}
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    is_in_order = [*described] == positional[: len(described)]
    if is_in_order or not (takes_any or described.keys() <= names):
        return described
    return {name: {**spec, "keyword": name} for name, spec in described.items()}


def _program_inputs(made: SourceModule) -> Inputs:
    """List the inputs of a saved program."""
    names: dict[str, str] = {}  # symbol -> dimension
    inputs: dict[str, dict[str, Any]] = {}
    for name, saved in (made.program or {}).items():
        shape: list[int | str] = []
        for axis, size in enumerate(saved.shape):
            if isinstance(size, str) and size not in names:
                is_batch = axis == 0 and BATCH not in names.values()
                names[size] = BATCH if is_batch else f"{name}_{axis}"
            shape.append(names[size] if isinstance(size, str) else size)
        inputs[name] = {"shape": shape, "dtype": saved.dtype, "keyword": saved.keyword}
    return inputs


def _transformers_inputs(model: nn.Module) -> Iterator[Inputs]:
    """Yield inputs of a model by their usual names and its configuration."""
    from buildsys.models.sources.transformers import WithCache

    cached = model if isinstance(model, WithCache) else None
    model = cached.model if cached else model
    config: Any = model.config
    parameters = inspect.signature(model.forward).parameters
    image = getattr(config, "vision_config", None) or config
    inputs: dict[str, dict[str, Any]] = {}

    def add(name: str, shape: list[int | str], dtype: str = "float32", **more: Any) -> None:
        if name in parameters:
            inputs[name] = {"shape": shape, "dtype": dtype, **more}

    main = getattr(model, "main_input_name", "input_ids")
    if main == "input_ids":
        add("input_ids", [BATCH, _LENGTH], "int64")
        if cached:  # a mask would be as long as past and new tokens together
            yield {**inputs, **_past_inputs(cached)}
            return
        add("attention_mask", [BATCH, _LENGTH], "int64", data={"constant": 1})
    if main == "pixel_values" or hasattr(config, "vision_config"):
        size = getattr(image, "image_size", None) or _IMAGE_SIZES[0]
        height, width = (size, size) if isinstance(size, int) else [*size][-2:]
        add("pixel_values", [BATCH, getattr(image, "num_channels", 3), height, width])
    elif main == "input_values":
        add("input_values", [BATCH, _AUDIO_SAMPLES])
    elif main == "input_features":
        frames = 2 * getattr(config, "max_source_positions", 1500)
        add("input_features", [BATCH, getattr(config, "num_mel_bins", 80), frames])
    if getattr(config, "is_encoder_decoder", False):
        add("decoder_input_ids", [BATCH, _DECODER_LENGTH], "int64")
    if inputs:
        yield inputs
    if main in inputs:
        yield {main: inputs[main]}


def _past_inputs(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Derive the inputs of a cache, whose shapes are those that a first call returns.

    Raises: StageError: the model has no such cache.
    """
    import torch

    with torch.inference_mode():
        layers = model(input_ids=torch.ones(1, _TOKENS, dtype=torch.int64))["present"]
    inputs: dict[str, dict[str, Any]] = {}
    for index, layer in enumerate(layers):
        for kind, tensor in layer.items():
            _, heads, _, width = tensor.shape
            dtype = str(tensor.dtype).removeprefix("torch.")
            shape = [BATCH, heads, _PAST, width]
            inputs[f"past_key_values.{index}.{kind}"] = {"shape": shape, "dtype": dtype}
    return inputs


def _first_shapes(
    module: nn.Module, image_size: int | None
) -> Iterator[tuple[list[int | str], str]]:
    """Yield shapes and dtypes accepted by the first layer with weights."""
    from torch import nn

    if image_size is not None:
        yield [BATCH, 3, image_size, image_size], "float32"
    config = getattr(module, "pretrained_cfg", None)  # timm's
    if isinstance(config, Mapping) and config.get("input_size"):
        yield [BATCH, *config["input_size"]], "float32"
    for layer in module.modules():
        match layer:
            case nn.Embedding():
                yield [BATCH, 16], "int64"
            case nn.Conv1d():
                for size in (64, 16_000):
                    yield [BATCH, layer.in_channels, size], "float32"
            case nn.Conv2d():
                for size in _IMAGE_SIZES:
                    yield [BATCH, layer.in_channels, size, size], "float32"
            case nn.Conv3d():
                yield [BATCH, layer.in_channels, 16, 112, 112], "float32"
            case nn.Linear():
                yield [BATCH, layer.in_features], "float32"
                yield [BATCH, 16, layer.in_features], "float32"
            case nn.RNNBase():
                yield [BATCH, 16, layer.input_size], "float32"
            case _:
                continue
        return
    yield [BATCH, 3, 224, 224], "float32"
    yield [BATCH, 4], "float32"


class TrainedWeights(NamedTuple):
    """Facts about the training images of weights."""

    size: int  # height and width
    preprocess: Mapping[str, Any]  # as in the manifest
    labels: Mapping[str, Any]  # as in the manifest
    classes: int

    def add_to(self, interface: Mapping[str, Any]) -> dict[str, Any]:
        """Add fields of inputs and outputs to an interface."""
        inputs, outputs = interface["inputs"], interface["outputs"]
        square = [3, self.size, self.size]
        if [port["shape"][1:] for port in inputs.values()] != [square]:
            return {**interface}
        scores = [name for name, port in outputs.items()
                  if (port["shape"] or [None])[-1] == self.classes]  # fmt: skip
        return {
            **interface,
            "inputs": {n: {**port, "preprocess": self.preprocess} for n, port in inputs.items()},
            "outputs": outputs | {n: {**outputs[n], "labels": self.labels} for n in scores},
        }


def trained_weights(name: str) -> TrainedWeights | None:
    """Find the default weights of a classifier of torchvision, None if nothing is known."""
    from torchvision import models

    weights = models.get_model_weights(name).__members__.get("DEFAULT")
    classes = weights.meta.get("categories") if weights else None
    preset: Any = weights.transforms() if weights else None
    if not classes or type(preset).__name__ != "ImageClassification":
        return None
    interpolation = preset.interpolation.value
    fields: dict[str, Any] = {"resize": preset.resize_size[0]}
    fields |= {} if interpolation == "bilinear" else {"interpolation": interpolation}
    fields |= {"mean": list(preset.mean), "std": list(preset.std)}
    return TrainedWeights(preset.crop_size[0], fields, {"torchvision": str(weights)}, len(classes))
