"""A model's inputs, outputs and dynamic dimensions from trial runs, for ``buildsys new``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Tensor
from buildsys.stages.reference.stage import golden_inputs, load_original
from buildsys.system.weight_names import HUB, parse_hub_name
from buildsys.workers.job import Job, StageResult

if TYPE_CHECKING:
    from torch import nn

    from buildsys.models.sources.source_module import SourceModule

Inputs = Mapping[str, Mapping[str, Any]]  # name -> shape, dtype, and further fields of the manifest
Tensors = Mapping[str, Tensor]
_BATCH, _LENGTH, _DECODER_LENGTH, _PAST = "batch", "length", "decoder_length", "past"
_PAST_PREFIX = "past_key_values."
_BATCH_SIZES = (2, 1)  # 1 could be a broadcast
_OPT_BATCH, _LARGE_BATCH = 4, 8
_OTHER_SIZES = (16, 64, 224, 2)  # for further dimensions
_IMAGE_SIZES = (224, 32, 28, 64, 299, 512)
_AUDIO_SAMPLES = 16_000
_TOKENS = 3  # tokens in the first call with a cache
_AUTO_CLASS = "AutoModel"
_HINT = (
    "describe its inputs, e.g. `buildsys new MODEL --from SOURCE --input image=batch,3,224,224"
    " --input ids=batch,16:int64`"
)


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


class Model(NamedTuple):
    """A model to try out."""

    run: Callable[[Candidate, Tensors], Tensors]
    candidates: Iterable[Candidate]  # the likeliest first
    source: Mapping[str, Any]
    is_guessed: bool = False
    training: Training | None = None  # if it is known


class Trial(NamedTuple):
    """A successful run."""

    sizes: Mapping[str, int]
    outputs: Tensors

    @property
    def ranks(self) -> dict[str, int]:
        """The number of dimensions by output."""
        return {name: len(tensor.shape) for name, tensor in self.outputs.items()}


def run(job: Job) -> StageResult:
    """Run the model at several sizes; return its inputs, outputs and dynamic dimensions.

    A ``source`` of transformers is returned with class and commit.
    Raises: StageError: no trial succeeds.
    """
    source = job.options["source"]
    if "transformers" in source:
        source = _completed(source, job)
    model = _onnx(job, source) if "onnx" in source else _network(job, source)
    problem: StageError | None = None
    for candidate in model.candidates:
        for sizes in _first_sizes(candidate.inputs):
            job.progress(f"trying {', '.join(map(str, sizes.values())) or 'the fixed sizes'}")
            try:
                first = _try(job, model, candidate, sizes)
            except StageError as error:
                problem = problem or error  # the likeliest inputs' error counts
                continue
            figures = _figures(job, model, candidate, first)
            if model.training:
                model.training.add_to(figures)
            facts = {"call": candidate.call, "source": model.source, "guessed": model.is_guessed}
            return StageResult(figures={**figures, **facts})
    if problem is None:
        raise StageError("nothing is known about the inputs of the network", _HINT)
    raise StageError(problem.problem, problem.hint or _HINT)


def _first_sizes(inputs: Inputs) -> Iterator[dict[str, int]]:
    """Yield sizes of the dimensions to begin with."""
    names = {size for spec in inputs.values() for size in spec["shape"] if isinstance(size, str)}
    batches = _batches(inputs)
    for batch in _BATCH_SIZES if names & batches else _BATCH_SIZES[:1]:
        for other in _OTHER_SIZES if names - batches else _OTHER_SIZES[:1]:
            yield {name: batch if name in batches else other for name in sorted(names)}


def _batches(inputs: Inputs) -> set[Any]:
    """Find the dimensions of first axes only; ``width`` of [width, 5] and [n, width] is none."""
    shapes = [spec["shape"] for spec in inputs.values()]
    inner = {size for shape in shapes for size in shape[1:]}
    return {size for shape in shapes for size in shape[:1]} - inner


def _try(job: Job, model: Model, candidate: Candidate, sizes: Mapping[str, int]) -> Trial:
    data = {name: spec.get("data") for name, spec in candidate.inputs.items()}
    trial = replace(job, options={**job.options, "inputs": candidate.inputs, "data": data})
    case = {"case": "opt", "seed": job.options["source"]["seed"]}
    return Trial(sizes, model.run(candidate, golden_inputs(trial, dict(sizes), case)))


def _figures(job: Job, model: Model, candidate: Candidate, first: Trial) -> dict[str, Any]:
    """Describe the interface; a dimension is dynamic if another size has the same outputs."""
    inputs, batches = candidate.inputs, _batches(candidate.inputs)
    has_past = any(name.startswith(_PAST_PREFIX) for name in inputs)
    trials: dict[str, list[Trial]] = {}  # with other sizes of each dimension
    for name, size in first.sizes.items():
        is_single = name in batches or (has_past and name == _LENGTH)
        larger = _LARGE_BATCH if name in batches else 2 * size
        trials[name] = []
        for other in (larger, 1 if is_single else size // 2):
            if other == size or (trials[name] and not is_single):
                continue
            with suppress(StageError):
                trial = _try(job, model, candidate, {**first.sizes, name: other})
                trials[name] += [trial] if trial.ranks == first.ranks else []
    fixed = {name: first.sizes[name] for name, others in trials.items() if not others}
    dims: dict[str, dict[str, int]] = {}
    for name, others in trials.items():
        sizes = sorted((first.sizes[name], *(trial.sizes[name] for trial in others)))
        usual = min(_OPT_BATCH, sizes[-1]) if name in batches else sizes[0]
        dims |= {name: {"min": sizes[0], "opt": usual, "max": sizes[-1]}} if others else {}
    return {
        "inputs": {
            name: {**spec, "shape": [fixed.get(size, size) for size in spec["shape"]]}
            for name, spec in inputs.items()
        },
        "outputs": _outputs(model, first, {name: trials[name][0] for name in dims}, inputs),
        "dims": dims,
        "fixed": fixed,
    }


def _outputs(
    model: Model, first: Trial, others: Mapping[str, Trial], inputs: Inputs
) -> dict[str, Any]:
    """Describe the outputs, those of forward under names that a manifest allows."""
    outputs: dict[str, Any] = {}
    for key, tensor in first.outputs.items():
        name = key
        if "onnx" not in model.source:
            name = re.sub(r"[^A-Za-z0-9_.:/+-]", "_", key).lstrip(".:/+-") or "output"
            while name in inputs or name in outputs:
                name += "_out"
        outputs[name] = {
            "shape": _shape(key, first, others),
            "dtype": tensor.dtype,
            "key": key if name != key else None,
        }
    return outputs


def _shape(output: str, first: Trial, others: Mapping[str, Trial]) -> list[Any]:
    """Derive the shape of an output, with None for sizes that follow no single dimension.

    A size of zero depends on values, e.g. the number of detections.
    """
    sizes = first.outputs[output].shape
    shape: list[Any] = [size or None for size in sizes]
    for name, trial in others.items():
        ends = (first.sizes[name], trial.sizes[name])
        for axis, pair in enumerate(zip(sizes, trial.outputs[output].shape, strict=True)):
            if pair == ends and isinstance(shape[axis], int):
                shape[axis] = name
            elif pair[0] != pair[1]:
                shape[axis] = None
    return shape


def _onnx(job: Job, source: Mapping[str, Any]) -> Model:
    from buildsys.models.sources.onnx import load_onnx
    from buildsys.onnx_graphs.onnx_file import ports

    name, described = source["onnx"], job.options["inputs"]
    original = load_original(replace(job, options={**job.options, "source": source}))
    inputs: dict[str, Any] = {}
    for port in ports(load_onnx(source, job.project, external_data=False))[0]:
        if port["shape"] is None and port["name"] not in described:
            raise StageError(f"the input {port['name']} of {name} has no shape", _HINT)
        shape = [
            size if isinstance(size, int) else _word(size or f"{port['name']}_{axis}")
            for axis, size in enumerate(port["shape"] or ())
        ]
        usual = {"shape": shape, "dtype": port["dtype"]}
        inputs[port["name"]] = described.get(port["name"], usual)
    if unknown := [name for name in described if name not in inputs]:
        problem = f"{name} has no input {unknown[0]}"
        raise StageError(problem, f"its inputs: {', '.join(inputs)}")
    if not inputs:
        raise StageError(f"{name} has no inputs", "its outputs are constants; use another graph")
    return Model(lambda _, values: original.call(values, {}), [Candidate(inputs)], source)


def _word(text: str) -> str:
    """Write the name of a dimension without other characters."""
    word = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "dim"
    return word if not word[0].isdigit() else f"dim_{word}"


def _network(job: Job, source: Mapping[str, Any]) -> Model:
    import torch

    from buildsys.models.outputs import name_outputs
    from buildsys.models.sources.python import ReturnsOnnxModel
    from buildsys.models.sources.source_module import make_module, needs_gpu
    from buildsys.models.torch_model import Network, from_torch, to_torch

    try:
        made = make_module(source, job.project)
    except ReturnsOnnxModel:
        return _onnx(job, {**source, "onnx": source["python"]})

    def run(candidate: Candidate, values: Tensors) -> Tensors:
        keywords = {
            name: spec.get("keyword") or (name if made.by_keyword else None)
            for name, spec in candidate.inputs.items()
        }
        network = Network(
            made.module, keywords, {}, job.project, made.weights, candidate.call,
            on_gpu=needs_gpu(source),
        )  # fmt: skip
        with torch.inference_mode():
            result = network.result({name: to_torch(tensor) for name, tensor in values.items()})
            outputs = name_outputs(result, {}, torch.Tensor, "forward")
        return {name: from_torch(tensor) for name, tensor in outputs.items()}

    described = job.options["inputs"]
    is_guessed = not described and made.program is None
    training = training_of(source["torchvision"]) if "torchvision" in source else None
    candidates = _candidates(made, described, training and training.size)
    return Model(run, candidates, source, is_guessed, training)


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


def _completed(source: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """Complete a source of transformers with the class of its checkpoint, at a commit."""
    from buildsys.models.sources.transformers import read_config
    from buildsys.models.weights_files import pinned

    completed = dict(source)
    for field in ("checkpoint", "config"):
        place = completed[field] or ""
        if place.startswith(HUB) and parse_hub_name(place) is None:
            job.progress(f"looking for {place}")
            hub_name = place.removeprefix(HUB).removesuffix("/config.json")
            repository, _, revision = hub_name.partition("@")
            file = pinned(repository, revision or "main", "config.json")
            completed[field] = file if field == "config" else file.removesuffix("/config.json")
    if not completed["transformers"]:
        saved_by = [*(read_config(completed, job.project)[0].get("architectures") or ())]
        completed["transformers"] = str(saved_by[0]) if len(saved_by) == 1 else _AUTO_CLASS
    return completed


def _candidates(
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
    yield from map(Candidate, likely)
    for inputs in likely:  # as one list, such as images of detectors
        yield Candidate(inputs, {"args": [[*inputs]], "kwargs": {}})


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
        yield {"input_ids": {"shape": [_BATCH, _LENGTH], "dtype": "int64"}, **_past_inputs(model)}
        return
    config: Any = model.config
    image = getattr(config, "vision_config", None) or config
    size = getattr(image, "image_size", None) or _IMAGE_SIZES[0]
    sides = [size, size] if isinstance(size, int) else [*size][-2:]
    frames = 2 * getattr(config, "max_source_positions", 1500)
    usual: dict[str, Any] = {
        "input_ids": {"shape": [_BATCH, _LENGTH], "dtype": "int64"},
        "attention_mask": {"shape": [_BATCH, _LENGTH], "dtype": "int64", "data": {"constant": 1}},
        "pixel_values": {"shape": [_BATCH, getattr(image, "num_channels", 3), *sides]},
        "input_values": {"shape": [_BATCH, _AUDIO_SAMPLES]},
        "input_features": {"shape": [_BATCH, getattr(config, "num_mel_bins", 80), frames]},
        "decoder_input_ids": {"shape": [_BATCH, _DECODER_LENGTH], "dtype": "int64"},
    }
    main = getattr(model, "main_input_name", "input_ids")
    names = [main]
    names += ["attention_mask"] if main == "input_ids" else []
    names += ["pixel_values"] if hasattr(config, "vision_config") else []
    names += ["decoder_input_ids"] if getattr(config, "is_encoder_decoder", False) else []
    accepted = usual.keys() & inspect.signature(model.forward).parameters.keys()
    chosen = [name for name in dict.fromkeys(names) if name in accepted]
    for subset in (chosen, [name for name in chosen if name == main]):
        if subset:
            yield {name: {"dtype": "float32", **usual[name]} for name in subset}


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
            inputs[f"{_PAST_PREFIX}{index}.{kind}"] = {"shape": shape, "dtype": dtype}
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
            case nn.Linear():
                yield [_BATCH, layer.in_features], "float32"
                yield [_BATCH, 16, layer.in_features], "float32"
            case nn.RNNBase():
                yield [_BATCH, 16, layer.input_size], "float32"
            case _:
                continue
        return
    yield [_BATCH, 4], "float32"
