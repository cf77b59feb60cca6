"""Networks of the project's own code."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from buildsys.errors import StageError
from buildsys.models.sources.source_module import SourceModule, draw, load_file
from buildsys.models.user_code import load_callable, reraise_as_stage_error


class ReturnsOnnxModel(StageError):
    """The callable returns an ONNX model instead of a network."""


def make(source: Mapping[str, Any], project: Path) -> SourceModule:
    """Call the source's callable for a module.

    Raises: StageError: it fails or returns something else, or its weights are not available.
    """
    reference = source["python"]
    function = load_callable(reference, project)
    if isinstance(function, nn.Module):
        raise StageError(
            f"{reference} is a module, not a callable that returns one",
            "name its class or a function",
        )
    if missing := _missing_arguments(function, source["kwargs"]):
        fields = ", ".join(f"{name}: …" for name in missing)
        raise StageError(
            f"{reference} needs {', '.join(missing)}",
            f"set source.kwargs: {{{fields}}}; `new` takes --kwargs '{{{fields}}}'",
        )
    with reraise_as_stage_error(f"{reference} failed", project):
        module = function(**source["kwargs"])
    if not isinstance(module, nn.Module):
        problem = f"{reference} returned {type(module).__name__}, not a torch.nn.Module"
        if type(module).__name__ == "ModelProto":
            hint = f"name it as an ONNX model: source: {{onnx: {reference}}}"
            raise ReturnsOnnxModel(problem, hint)
        raise StageError(problem, "let it return the network")
    if getattr(module.forward, "__name__", "") == "_forward_unimplemented":  # nn.Module's own
        raise StageError(f"{type(module).__name__} of {reference} has no forward", "define it")
    if source["weights"]:
        return load_file(module, source, project, reference)
    if source["randomize"]:
        return draw(module, source["seed"])
    weights = f"initialized by {reference} (torch seed {source['seed']})"
    return SourceModule(module, weights)


def _missing_arguments(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return []
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.name not in kwargs
    ]
