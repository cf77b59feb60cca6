"""Networks of the project's own code."""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn

from buildsys.errors import StageError
from buildsys.models.sources.source_module import SourceModule, filled
from buildsys.models.user_code import load_callable, reraise_as_stage_error
from buildsys.models.weights_files import read_weights

_SAVED_ARGUMENTS = ("hyper_parameters", "hparams", "config", "args")  # of a checkpoint
_PLAIN = (bool, int, float, str, list)


class ReturnsOnnxModel(StageError):
    """The callable returns an ONNX model instead of a network."""


def make(source: Mapping[str, Any], project: Path) -> SourceModule:
    """Call the source's callable for a module.

    Raises: StageError: it fails or returns something else, or its weights are not available.
    """
    function = load_callable(source["python"], project)
    try:
        return _make(function, source, project)
    except StageError as error:
        if source["weights"] and not source["kwargs"]:
            error.changes = [*_saved_arguments(function, source, project), *error.changes]
        raise


def _saved_arguments(
    function: Callable[..., Any], source: Mapping[str, Any], project: Path
) -> Iterator[str]:
    """Propose the arguments that the training script saved with the weights."""
    with suppress(StageError, ValueError, TypeError):  # no such file, signature or JSON
        loaded = read_weights(source["weights"], project)
        kept = (loaded[name] for name in _SAVED_ARGUMENTS if name in loaded)
        saved: Mapping[str, Any] = next((value for value in kept if isinstance(value, dict)), {})
        arguments = {
            name: saved[name]
            for name, parameter in inspect.signature(function).parameters.items()
            if type(saved.get(name)) in _PLAIN and saved[name] != parameter.default
        }
        if arguments:
            yield f"source: {{kwargs: {json.dumps(arguments, allow_nan=False)}}}"


def _make(function: Callable[..., Any], source: Mapping[str, Any], project: Path) -> SourceModule:
    reference, kwargs = source["python"], source["kwargs"]
    arguments = f" with source.kwargs {kwargs}" if kwargs else ""
    with reraise_as_stage_error(f"{reference} failed{arguments}", project):
        module = function(**kwargs)
    if not isinstance(module, nn.Module):
        problem = f"{reference} returned {type(module).__name__}, not a torch.nn.Module"
        if type(module).__name__ == "ModelProto":
            raise ReturnsOnnxModel(problem, changes=[f"source: {{onnx: {json.dumps(reference)}}}"])
        raise StageError(problem, "let it return the network")
    if getattr(module.forward, "__name__", "") == "_forward_unimplemented":  # nn.Module's own
        raise StageError(f"{type(module).__name__} of {reference} has no forward", "define it")
    if source["weights"] or source["randomize"]:
        return filled(module, source, project, reference)
    weights = f"initialized by {reference} (torch seed {source['seed']})"
    return SourceModule(module, weights)
