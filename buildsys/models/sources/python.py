"""Networks of the project's own code."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from buildsys.errors import StageError
from buildsys.models.sources.source_module import SourceModule, filled
from buildsys.models.user_code import load_callable, reraise_as_stage_error


class ReturnsOnnxModel(StageError):
    """The callable returns an ONNX model instead of a network."""


def make(source: Mapping[str, Any], project: Path) -> SourceModule:
    """Call the source's callable for a module.

    Raises: StageError: it fails or returns something else, or its weights are not available.
    """
    reference = source["python"]
    function, kwargs = load_callable(reference, project), source["kwargs"]
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
