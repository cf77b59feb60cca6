"""Inputs, outputs and dynamic dimensions of a model from trial runs, for ``buildsys new``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from buildsys.errors import StageError
from buildsys.manifest.shape_cases import concrete_shape
from buildsys.models.golden_inputs import golden_input
from buildsys.onnx_graphs.tensors import Tensor
from buildsys.stages.reference.stage import load_original
from buildsys.workers.job import Job, StageResult

if TYPE_CHECKING:
    from torch import nn

Inputs = Mapping[str, Mapping[str, Any]]  # name -> shape (numbers and dimensions) and dtype
Call = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
BATCH = "batch"
_BATCH_SIZE = 2  # 1 could be a broadcast
_OTHER_SIZES = (2, 16, 64, 224)  # of further dimensions
_IMAGE_SIZES = (224, 32, 28, 64, 299, 512)
_HINT = "describe its inputs, e.g. `--input image=batch,3,224,224 --input ids=batch,16:int64`"


class Trial(NamedTuple):
    """A run that succeeded."""

    sizes: Mapping[str, int]
    outputs: Mapping[str, Tensor]


def run(job: Job) -> StageResult:
    """Run the model at several sizes; return its inputs, outputs and dynamic dimensions.

    Raises: StageError: no trial succeeds.
    """
    call, candidates = _onnx(job) if "onnx" in job.options["source"] else _network(job)
    problem: StageError | None = None
    for inputs in candidates:
        for sizes in _first_sizes(inputs):
            job.progress(f"trying {', '.join(map(str, sizes.values())) or 'the fixed sizes'}")
            try:
                first = _try(job, call, inputs, sizes)
            except StageError as error:
                problem = problem or error  # of the likeliest inputs
                continue
            return StageResult(figures=_figures(job, call, inputs, first))
    assert problem is not None  # there is a candidate
    raise StageError(problem.problem, problem.hint or _HINT)


def _first_sizes(inputs: Inputs) -> Iterator[dict[str, int]]:
    """Yield sizes of the dimensions to begin with."""
    names = {size for spec in inputs.values() for size in spec["shape"] if isinstance(size, str)}
    first = {spec["shape"][0] for spec in inputs.values() if spec["shape"]}
    for other in _OTHER_SIZES if names - first else _OTHER_SIZES[:1]:
        yield {name: _BATCH_SIZE if name in first else other for name in sorted(names)}


def _try(job: Job, call: Call, inputs: Inputs, sizes: Mapping[str, int]) -> Trial:
    values = {
        name: golden_input(
            name,
            concrete_shape(spec["shape"], sizes),
            spec["dtype"],
            None,
            case="opt",
            seed=job.options["source"]["seed"],
            project=job.project,
        )
        for name, spec in inputs.items()
    }
    return Trial(sizes, call(values))


def _figures(job: Job, call: Call, inputs: Inputs, first: Trial) -> dict[str, Any]:
    """Return the interface; a dimension is dynamic if another size has the same outputs."""
    others: dict[str, Trial] = {}
    for name, size in first.sizes.items():
        for larger in (size + 1, 2 * size):
            with suppress(StageError):
                trial = _try(job, call, inputs, {**first.sizes, name: larger})
                if trial.outputs.keys() == first.outputs.keys():
                    others[name] = trial
                    break
        else:
            fixed, sizes = size, {one: other for one, other in first.sizes.items() if one != name}
            with suppress(StageError):
                first, fixed = _try(job, call, inputs, {**first.sizes, name: 1}), 1
            return _figures(job, call, _with_size(inputs, name, fixed), Trial(sizes, first.outputs))
    outputs = {
        name: {"shape": _shape(name, first, others), "dtype": tensor.dtype}
        for name, tensor in first.outputs.items()
    }
    dims = {name: [first.sizes[name], trial.sizes[name]] for name, trial in others.items()}
    return {"inputs": inputs, "outputs": outputs, "dims": dims}


def _with_size(inputs: Inputs, dim: str, size: int) -> Inputs:
    return {
        name: {**spec, "shape": [size if one == dim else one for one in spec["shape"]]}
        for name, spec in inputs.items()
    }


def _shape(output: str, first: Trial, others: Mapping[str, Trial]) -> list[Any] | None:
    """Return the shape of an output, with None for sizes that follow no single dimension.

    A size of zero depends on values, e.g. the number of detections.
    """
    shape: list[Any] = [size or None for size in first.outputs[output].array.shape]
    for name, trial in others.items():
        if trial.outputs[output].array.ndim != len(shape):
            return None
        ends = (first.sizes[name], trial.sizes[name])
        pairs = zip(
            first.outputs[output].array.shape, trial.outputs[output].array.shape, strict=True
        )
        for axis, pair in enumerate(pairs):
            if pair == ends and isinstance(shape[axis], int):
                shape[axis] = name
            elif pair[0] != pair[1]:
                shape[axis] = None
    return shape


def _onnx(job: Job) -> tuple[Call, Iterable[Inputs]]:
    from buildsys.onnx_graphs.onnx_file import load_model, ports

    name, given = job.options["source"]["onnx"], job.options["inputs"]
    original = load_original(job)
    inputs: dict[str, dict[str, Any]] = {}
    for port in ports(load_model(job.project / name, external_data=False))[0]:
        if port["name"] in given:
            inputs[port["name"]] = given[port["name"]]
            continue
        if port["shape"] is None:
            raise StageError(f"input {port['name']} of {name} has no shape", _HINT)
        shape = [
            size if isinstance(size, int) else _word(size or f"{port['name']}_{axis}")
            for axis, size in enumerate(port["shape"])
        ]
        inputs[port["name"]] = {"shape": shape, "dtype": port["dtype"]}
    if unknown := [one for one in given if one not in inputs]:
        raise StageError(f"{name} has no input {unknown[0]}", f"its inputs: {', '.join(inputs)}")
    return (lambda values: original.call(values, {})), [inputs]


def _network(job: Job) -> tuple[Call, Iterable[Inputs]]:
    import torch

    from buildsys.models.sources.source_module import make_module
    from buildsys.models.torch_model import Network, from_torch, to_torch

    made = make_module(job.options["source"], job.project)
    given = job.options["inputs"]

    def call(values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        keywords = {name: name if made.by_keyword else None for name in values}
        network = Network(made.module, keywords, {}, job.project, made.weights)
        with torch.inference_mode():
            outputs = network({name: to_torch(tensor) for name, tensor in values.items()})
        return {name: from_torch(tensor) for name, tensor in outputs.items()}

    return call, [given] if given else _guesses(made.module)


def _guesses(module: nn.Module) -> Iterator[Inputs]:
    """Yield inputs that the first layer with weights would take."""
    parameters = inspect.signature(module.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [one.name for one in parameters if one.default is one.empty and one.kind in kinds]
    for shape, dtype in _first_shapes(module):
        yield {name: {"shape": shape, "dtype": dtype} for name in names or ["input0"]}


def _first_shapes(module: nn.Module) -> Iterator[tuple[list[int | str], str]]:
    from torch import nn

    for layer in module.modules():
        if isinstance(layer, nn.Embedding):
            yield [BATCH, 16], "int64"
        elif isinstance(layer, nn.Conv1d):
            for size in (64, 16_000):
                yield [BATCH, layer.in_channels, size], "float32"
        elif isinstance(layer, nn.Conv2d):
            for size in _IMAGE_SIZES:
                yield [BATCH, layer.in_channels, size, size], "float32"
        elif isinstance(layer, nn.Conv3d):
            yield [BATCH, layer.in_channels, 16, 112, 112], "float32"
        elif isinstance(layer, nn.Linear):
            yield [BATCH, layer.in_features], "float32"
            yield [BATCH, 16, layer.in_features], "float32"
        elif isinstance(layer, nn.RNNBase):
            yield [BATCH, 16, layer.input_size], "float32"
        else:
            continue
        return
    yield [BATCH, 3, 224, 224], "float32"
    yield [BATCH, 4], "float32"


def _word(text: str) -> str:
    """Return the name of a dimension without other characters."""
    word = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "dim"
    return word if not word[0].isdigit() else f"dim_{word}"
