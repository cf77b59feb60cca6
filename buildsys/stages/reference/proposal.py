"""A model's inputs, outputs and dynamic dimensions from trial runs, for ``buildsys new``."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Tensor
from buildsys.stages.reference.likely_inputs import (
    LENGTH,
    PAST_PREFIX,
    Candidate,
    Inputs,
    Training,
    likely_inputs,
    training_of,
)
from buildsys.stages.reference.original import golden_inputs, load_original
from buildsys.system.weight_names import HUB, parse_hub_name
from buildsys.workers.job import Job, StageResult

Tensors = Mapping[str, Tensor]
_BATCH_SIZES = (2, 1)  # 1 could be a broadcast
_OPT_BATCH, _LARGE_BATCH = 4, 8
_OTHER_SIZES = (16, 64, 224, 2)  # for further dimensions
_AUTO_CLASS = "AutoModel"
_HINT = (
    "describe its inputs, e.g. `buildsys new MODEL --from SOURCE --input image=batch,3,224,224"
    " --input ids=batch,16:int64`"
)


class Model(NamedTuple):
    """A model to try out."""

    run: Callable[[Candidate, Tensors], Tensors]
    candidates: Iterable[Candidate]  # the likeliest first
    source: Mapping[str, Any]
    is_guessed: bool = False
    training: Training | None = None  # if it is known
    has_quantizers: bool = False


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
            facts["has_quantizers"] = model.has_quantizers
            return StageResult(figures={**figures, **facts})
    if problem is None:
        raise StageError("nothing is known about the inputs of the network", _HINT)
    raise StageError(problem.problem, problem.hint or _HINT, problem.changes)


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
    has_past = any(name.startswith(PAST_PREFIX) for name in inputs)
    trials: dict[str, list[Trial]] = {}  # with other sizes of each dimension
    for name, size in first.sizes.items():
        is_single = name in batches or (has_past and name == LENGTH)
        larger = _LARGE_BATCH if name in batches else 2 * size
        trials[name] = []
        for other in (larger, 1 if is_single else size // 2):
            if other == size or (trials[name] and not is_single):
                continue
            with suppress(StageError):
                trial = _try(job, model, candidate, {**first.sizes, name: other})
                trials[name] += [trial] if trial.ranks == first.ranks else []
    fixed = {name: first.sizes[name] for name, others in trials.items() if not others}

    def multiple_of(name: str, ends: list[int]) -> dict[str, int]:
        """Find the step of sizes: between those that ran, a network may refuse all others."""
        step = 1
        while name not in batches and step < ends[1] - ends[0] and ends[0] % (2 * step) == 0:
            with suppress(StageError):
                between = _try(job, model, candidate, {**first.sizes, name: ends[0] + step})
                if between.ranks == first.ranks:
                    break
            step *= 2
        return {"multiple_of": step} if step > 1 else {}

    dims: dict[str, dict[str, int]] = {}
    for name, others in trials.items():
        sizes = sorted((first.sizes[name], *(trial.sizes[name] for trial in others)))
        usual = min(_OPT_BATCH, sizes[-1]) if name in batches else sizes[0]
        if others:
            step = multiple_of(name, [sizes[0], sizes[-1]])
            dims[name] = {"min": sizes[0], "opt": usual, "max": sizes[-1], **step}
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
    return Model(
        lambda _, values: original.call(values, {}), [Candidate(inputs)], source,
        has_quantizers=original.float_type == "int8",
    )  # fmt: skip


def _word(text: str) -> str:
    """Write the name of a dimension without other characters."""
    word = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "dim"
    return word if not word[0].isdigit() else f"dim_{word}"


def _network(job: Job, source: Mapping[str, Any]) -> Model:
    import torch

    from buildsys.models.outputs import name_outputs
    from buildsys.models.sources.python import ReturnsOnnxModel
    from buildsys.models.sources.source_module import make_module, needs_gpu
    from buildsys.models.torch_model import Network, from_torch, main_float_type, to_torch

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

    if made.file and (section := source.get("weights")):
        places = {"key": made.file.key, "prefix": made.file.prefix}
        section |= {name: place for name, place in places.items() if place}
        section |= {"strict": section["strict"] and None}
        source = {**source, "weights": {name: v for name, v in section.items() if v is not None}}
    described = job.options["inputs"]
    is_guessed = not described and made.program is None
    training = training_of(source["torchvision"]) if "torchvision" in source else None
    candidates = likely_inputs(made, described, training and training.size)
    has_quantizers = main_float_type(made.module) == "int8"
    return Model(run, candidates, source, is_guessed, training, has_quantizers)


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
