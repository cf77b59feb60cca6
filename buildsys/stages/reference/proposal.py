"""Inputs, outputs and dynamic dimensions of a model from trial runs, for ``buildsys new``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Tensor
from buildsys.stages.reference.likely_inputs import (
    Candidate,
    Inputs,
    TrainedWeights,
    likely_inputs,
    trained_weights,
)
from buildsys.stages.reference.stage import golden_inputs, load_original
from buildsys.system.weight_names import HUB, parse_hub_name
from buildsys.workers.job import Job, StageResult

_BATCH_SIZES = (2, 1)  # 1 could be a broadcast
_OPT_BATCH, _LARGE_BATCH = 4, 8
_OTHER_SIZES = (16, 64, 224, 2)  # for further dimensions
_AUTO_CLASS = "AutoModel"
_HINT = (
    "describe its inputs, e.g. `buildsys new MODEL --from SOURCE --input image=batch,3,224,224"
    " --input ids=batch,16:int64`"
)


class ProposedOutput(NamedTuple):
    """An output of a run."""

    tensor: Tensor
    key: str | None = None  # in the result of forward, if the name is another


Run = Callable[[Candidate, Mapping[str, Tensor]], Mapping[str, ProposedOutput]]


@dataclass(frozen=True)
class Model:
    """A model to try out."""

    run: Run
    candidates: Iterable[Candidate]  # the likeliest first
    guessed: bool = False  # the candidates
    trained: TrainedWeights | None = None
    source: Mapping[str, Any] | None = None  # if it is another than the given one


class Trial(NamedTuple):
    """A successful run."""

    sizes: Mapping[str, int]
    outputs: Mapping[str, ProposedOutput]


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
        inputs = candidate.inputs
        for sizes in _first_sizes(inputs):
            job.progress(f"trying {', '.join(map(str, sizes.values())) or 'the fixed sizes'}")
            try:
                first = _try(job, model, candidate, sizes)
            except StageError as error:
                problem = problem or error  # the likeliest inputs' error counts
                continue
            figures = _figures(job, model, candidate, first)
            figures = model.trained.add_to(figures) if model.trained else figures
            facts: dict[str, Any] = {"call": candidate.call, "source": model.source or source}
            return StageResult(figures={**figures, **facts, "guessed": model.guessed})
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
    values = golden_inputs(trial, dict(sizes), case)
    return Trial(sizes, model.run(candidate, values))


def _figures(job: Job, model: Model, candidate: Candidate, first: Trial) -> dict[str, Any]:
    """Describe the interface; a dimension is dynamic if another size has the same outputs."""
    inputs, batches = candidate.inputs, _batches(candidate.inputs)
    ranks = {name: len(output.tensor.shape) for name, output in first.outputs.items()}
    trials: dict[str, list[Trial]] = {}  # with other sizes of each dimension

    def tried(name: str, size: int) -> Trial | None:
        with suppress(StageError):
            trial = _try(job, model, candidate, {**first.sizes, name: size})
            if {name: len(o.tensor.shape) for name, o in trial.outputs.items()} == ranks:
                return trial
        return None

    for name, size in first.sizes.items():
        is_batch = name in batches
        larger = tried(name, _LARGE_BATCH if is_batch else 2 * size) or tried(name, size + 1)
        least = 1 if is_batch else candidate.least.get(name)
        smaller = None
        if (least or larger is None) and (least or size // 2) != size:
            smaller = tried(name, least or size // 2)
        trials[name] = [trial for trial in (larger, smaller) if trial]
    fixed = {name: first.sizes[name] for name, others in trials.items() if not others}
    inputs = {
        name: {**spec, "shape": [fixed.get(size, size) for size in spec["shape"]]}
        for name, spec in inputs.items()
    }
    others = {name: trials[name][0] for name in trials if name not in fixed}
    ran = {
        name: sorted({first.sizes[name], *(trial.sizes[name] for trial in trials[name])})
        for name in others
    }
    outputs = {
        name: {"shape": _shape(name, first, others), "dtype": output.tensor.dtype,
               "key": output.key}
        for name, output in first.outputs.items()
    }  # fmt: skip
    dims = {
        name: {
            "min": sizes[0],
            "opt": min(_OPT_BATCH, sizes[-1]) if name in batches else sizes[0],
            "max": sizes[-1],
        }
        for name, sizes in ran.items()
    }
    return {"inputs": inputs, "outputs": outputs, "dims": dims, "ran": ran, "fixed": fixed}


def _shape(output: str, first: Trial, others: Mapping[str, Trial]) -> list[Any]:
    """Derive the shape of an output, with None for sizes that follow no single dimension.

    A size of zero depends on values, e.g. the number of detections.
    """
    sizes = first.outputs[output].tensor.shape
    shape: list[Any] = [size or None for size in sizes]
    for name, trial in others.items():
        ends = (first.sizes[name], trial.sizes[name])
        for axis, pair in enumerate(zip(sizes, trial.outputs[output].tensor.shape, strict=True)):
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
    inputs: dict[str, dict[str, Any]] = {}
    for port in ports(load_onnx(source, job.project, external_data=False))[0]:
        if port["name"] in described:
            inputs[port["name"]] = described[port["name"]]
            continue
        if port["shape"] is None:
            raise StageError(f"input {port['name']} of {name} has no shape", _HINT)
        shape = [
            size if isinstance(size, int) else _word(size or f"{port['name']}_{axis}")
            for axis, size in enumerate(port["shape"])
        ]
        inputs[port["name"]] = {"shape": shape, "dtype": port["dtype"]}
    if unknown := [input_name for input_name in described if input_name not in inputs]:
        raise StageError(f"{name} has no input {unknown[0]}", f"its inputs: {', '.join(inputs)}")
    if not inputs:
        raise StageError(f"{name} has no inputs", "its outputs are constants; use another graph")

    def run(candidate: Candidate, values: Mapping[str, Tensor]) -> Mapping[str, ProposedOutput]:
        del candidate
        return {name: ProposedOutput(tensor) for name, tensor in original.call(values, {}).items()}

    return Model(run, [Candidate(inputs)], source=source)


def _network(job: Job, source: Mapping[str, Any]) -> Model:
    import torch

    from buildsys.models.sources.python import ReturnsOnnxModel
    from buildsys.models.sources.source_module import make_module, needs_gpu
    from buildsys.models.torch_model import Network, from_torch, name_outputs, to_torch

    try:
        made = make_module(source, job.project)
    except ReturnsOnnxModel:
        return _onnx(job, {**source, "onnx": source["python"]})
    trained = trained_weights(source["torchvision"]) if "torchvision" in source else None

    def run(candidate: Candidate, values: Mapping[str, Tensor]) -> Mapping[str, ProposedOutput]:
        keywords = {
            name: spec.get("keyword") or (name if made.by_keyword else None)
            for name, spec in candidate.inputs.items()
        }
        plain = {
            "args": [name for name, keyword in keywords.items() if keyword is None],
            "kwargs": {key: name for name, key in keywords.items() if key is not None},
        }
        network = Network(
            made.module, keywords, {}, job.project, made.weights, candidate.call or plain,
            on_gpu=needs_gpu(source),
        )  # fmt: skip
        with torch.inference_mode():
            result = network.result({name: to_torch(tensor) for name, tensor in values.items()})
            outputs = name_outputs(result, {})
        tensors = {name: from_torch(tensor) for name, tensor in outputs.items()}
        return _named(tensors, candidate.inputs)

    described = job.options["inputs"]
    return Model(
        run,
        likely_inputs(made, described, trained.size if trained else None),
        guessed=not described and made.program is None,
        trained=trained,
    )


def _named(outputs: Mapping[str, Tensor], inputs: Inputs) -> dict[str, ProposedOutput]:
    """Name the outputs of forward as a manifest allows."""
    named: dict[str, ProposedOutput] = {}
    for key, tensor in outputs.items():
        name = re.sub(r"[^A-Za-z0-9_.:/+-]", "_", key).lstrip(".:/+-") or "output"
        while name in inputs or name in named:
            name += "_out"
        named[name] = ProposedOutput(tensor, key if name != key else None)
    return named


def _completed(source: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """Complete a source of transformers with the class of its checkpoint, at a commit."""
    from buildsys.models.sources.transformers import read_config
    from buildsys.models.weights_files import pinned

    completed = dict(source)
    for field_name in ("checkpoint", "config"):
        place = completed[field_name] or ""
        if place.startswith(HUB) and parse_hub_name(place) is None:
            job.progress(f"looking for {place}")
            hub_name = place.removeprefix(HUB).removesuffix("/config.json")
            repository, _, revision = hub_name.partition("@")
            file = pinned(repository, revision or "main", "config.json")
            is_folder = field_name == "checkpoint"
            completed[field_name] = file.removesuffix("/config.json") if is_folder else file
    if not completed["transformers"]:
        saved_by = [*(read_config(completed, job.project)[0].get("architectures") or ())]
        completed["transformers"] = str(saved_by[0]) if len(saved_by) == 1 else _AUTO_CLASS
    return completed


def _word(text: str) -> str:
    """Write the name of a dimension without other characters."""
    word = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "dim"
    return word if not word[0].isdigit() else f"dim_{word}"
