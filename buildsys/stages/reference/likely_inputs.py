"""Likely inputs of a network, and the training of its weights, for ``buildsys new``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import nn

    from buildsys.models.sources.source_module import SourceModule

Inputs = Mapping[str, Mapping[str, Any]]  # name -> shape, dtype, and further fields of the manifest
LENGTH, PAST_PREFIX = "length", "past_key_values."
_BATCH, _DECODER_LENGTH, _PAST = "batch", "decoder_length", "past"
_IMAGE_SIZES = (224, 32, 28, 64, 299, 512)
_VIDEO_SIZES = ((16, 112), (16, 224), (4, 64))  # frames, height and width
_AUDIO_SAMPLES = 16_000
_BINS = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim")
_TOKENS = 3  # tokens in the first call with a cache


class Candidate(NamedTuple):
    """Likely inputs of a model."""

    inputs: Inputs
    call: Mapping[str, Any] | None = None  # as in the manifest


class Training(NamedTuple):
    """The images on which weights were trained."""

    size: int  # height and width
    preprocess: Mapping[str, Any]  # as in the manifest
    labels: Mapping[str, Any]  # as in the manifest
    classes: int

    def add_to(self, figures: dict[str, Any]) -> None:
        """Add the fields of inputs and outputs to an interface, if it takes such images."""
        shapes = [port["shape"][1:] for port in figures["inputs"].values()]
        if shapes == [[3, self.size, self.size]]:
            for port in figures["inputs"].values():
                port["preprocess"] = self.preprocess
            for port in figures["outputs"].values():
                if port["shape"][-1:] == [self.classes]:
                    port["labels"] = self.labels


def training_of(name: str) -> Training | None:
    """Look up the training of a torchvision classifier's default weights, None without any."""
    from torchvision import models

    weights = models.get_model_weights(name).__members__.get("DEFAULT")
    classes = weights.meta.get("categories") if weights else None
    preset: Any = weights.transforms() if weights else None
    if not classes or type(preset).__name__ != "ImageClassification":
        return None
    fields: dict[str, Any] = {"resize": preset.resize_size[0]}
    if (interpolation := preset.interpolation.value) != "bilinear":
        fields["interpolation"] = interpolation
    fields |= {"mean": list(preset.mean), "std": list(preset.std)}
    return Training(preset.crop_size[0], fields, {"torchvision": str(weights)}, len(classes))


def likely_inputs(
    made: SourceModule, described: Inputs, image_size: int | None
) -> Iterator[Candidate]:
    """Yield possible inputs of the network, the likeliest first, or the ``described`` ones."""
    if made.program is not None:
        yield Candidate(described or _program_inputs(made))
        return
    if made.by_keyword:
        yield from map(Candidate, [described] if described else _transformers_inputs(made.module))
        return
    parameters = inspect.signature(made.module.forward).parameters
    by_position = [name for name, p in parameters.items() if p.kind <= p.POSITIONAL_OR_KEYWORD]
    if described:
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        has_names = takes_any or described.keys() <= parameters.keys()
        if has_names and [*described] != by_position[: len(described)]:
            described = {name: {**spec, "keyword": name} for name, spec in described.items()}
        likely = [described]
    else:
        required = [
            name
            for name, p in parameters.items()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        keywords = {name: None if name in by_position else name for name in required}
        likely = [
            {name: {"shape": shape, "dtype": dtype, "keyword": keyword}
             for name, keyword in (keywords or {"input0": None}).items()}
            for shape, dtype in _first_shapes(made.module, image_size)
        ]  # fmt: skip
    first = str(parameters[by_position[0]].annotation) if by_position else ""
    takes_list = "list[" in first.lower()  # such as images of detectors, without a batch axis
    if takes_list:
        single = [
            {name: {**spec, "shape": spec["shape"][1:]} for name, spec in inputs.items()}
            for inputs in likely
        ]
        likely = [
            {name: _as_image(spec) for name, spec in inputs.items()}
            for inputs in [*([] if described else single), *likely]
        ]
    lists = [Candidate(inputs, {"args": [[*inputs]], "kwargs": {}}) for inputs in likely]
    tensors = [*map(Candidate, likely)]
    yield from (*lists, *tensors) if takes_list else (*tensors, *lists)


def _as_image(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Draw the values of a single image from 0 to 1."""
    is_image = len(spec["shape"]) == 3 and spec["shape"][0] in (1, 3) and "float" in spec["dtype"]
    return {**spec, "data": {"random": "uniform", "low": 0, "high": 1}} if is_image else spec


def _program_inputs(made: SourceModule) -> Inputs:
    """List the inputs of a saved program."""
    names: dict[str, str] = {}  # symbol -> dimension
    inputs: dict[str, dict[str, Any]] = {}
    for name, saved in (made.program or {}).items():
        shape: list[int | str] = []
        for axis, size in enumerate(saved.shape):
            if isinstance(size, str) and size not in names:
                is_batch = axis == 0 and _BATCH not in names.values()
                names[size] = _BATCH if is_batch else f"{name}_{axis}"
            shape.append(names[size] if isinstance(size, str) else size)
        inputs[name] = {"shape": shape, "dtype": saved.dtype, "keyword": saved.keyword}
    return inputs


def _transformers_inputs(model: nn.Module) -> Iterator[Inputs]:
    """Yield inputs of a model by their usual names and its configuration."""
    from buildsys.models.sources.transformers import WithCache

    if isinstance(model, WithCache):  # a mask would be as long as past and new tokens together
        yield {"input_ids": {"shape": [_BATCH, LENGTH], "dtype": "int64"}, **_past_inputs(model)}
        return
    config: Any = model.config
    image = getattr(config, "vision_config", None) or config
    size = getattr(image, "image_size", None) or _IMAGE_SIZES[0]
    sides = [size, size] if isinstance(size, int) else [*size][-2:]
    frames = 2 * getattr(config, "max_source_positions", 1500)
    bins = next((value for name in _BINS if (value := getattr(config, name, None))), 80)
    usual: dict[str, Any] = {
        "input_ids": {"shape": [_BATCH, LENGTH], "dtype": "int64"},
        "attention_mask": {"shape": [_BATCH, LENGTH], "dtype": "int64", "data": {"constant": 1}},
        "pixel_values": {"shape": [_BATCH, getattr(image, "num_channels", 3), *sides]},
        "input_values": {"shape": [_BATCH, _AUDIO_SAMPLES]},
        "input_features": {"shape": [_BATCH, bins, frames]},
        "decoder_input_ids": {"shape": [_BATCH, _DECODER_LENGTH], "dtype": "int64"},
    }
    main = getattr(model, "main_input_name", "input_ids")
    names = [main]
    names += ["attention_mask"] if main == "input_ids" else []
    names += ["pixel_values"] if hasattr(image, "image_size") else []
    names += ["decoder_input_ids"] if getattr(config, "is_encoder_decoder", False) else []
    accepted = usual.keys() & inspect.signature(model.forward).parameters.keys()
    chosen = [name for name in dict.fromkeys(names) if name in accepted]
    for subset in (chosen, [name for name in chosen if name == main]):
        if subset:
            yield {name: {"dtype": "float32", **usual[name]} for name in subset}
    if main in ("input_values", "input_features"):  # spectrograms, time first
        usual[main] = {"shape": [_BATCH, getattr(config, "max_length", None) or LENGTH, bins]}
        yield {name: {"dtype": "float32", **usual[name]} for name in chosen}


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
            shape = [_BATCH, heads, _PAST, width]
            inputs[f"{PAST_PREFIX}{index}.{kind}"] = {"shape": shape, "dtype": dtype}
    return inputs


def _first_shapes(
    module: nn.Module, image_size: int | None
) -> Iterator[tuple[list[int | str], str]]:
    """Yield shapes and dtypes accepted by the first layer with weights."""
    from torch import nn

    if image_size is not None:
        yield [_BATCH, 3, image_size, image_size], "float32"
    config = getattr(module, "pretrained_cfg", None)  # timm's
    if isinstance(config, Mapping) and config.get("input_size"):
        yield [_BATCH, *config["input_size"]], "float32"
    for layer in module.modules():
        match layer:
            case nn.Embedding():
                yield [_BATCH, 16], "int64"
            case nn.Conv1d():
                yield [_BATCH, layer.in_channels, _AUDIO_SAMPLES], "float32"
            case nn.Conv2d():
                for size in _IMAGE_SIZES:
                    yield [_BATCH, layer.in_channels, size, size], "float32"
            case nn.Conv3d():
                for frames, size in _VIDEO_SIZES:
                    yield [_BATCH, layer.in_channels, frames, size, size], "float32"
            case nn.Linear():
                yield [_BATCH, layer.in_features], "float32"
                yield [_BATCH, 16, layer.in_features], "float32"
            case nn.RNNBase():
                yield [_BATCH, 16, layer.input_size], "float32"
            case _:
                continue
        return
    yield [_BATCH, 4], "float32"
