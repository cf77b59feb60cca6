"""Models of torchvision, by name."""

import inspect
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from buildsys.errors import StageError
from buildsys.models.sources.source_module import SourceModule, filled
from buildsys.models.user_code import reraise_as_stage_error
from buildsys.system.files import sha256_of
from buildsys.system.printable import did_you_mean


def make(source: Mapping[str, Any], project: Path) -> SourceModule:
    """Build a model of torchvision.

    Raises: StageError: it is unknown or fails, or its weights are not available.
    """
    try:
        from torchvision import models
    except Exception as error:  # torchvision of another torch build raises any class
        raise StageError(
            f"torchvision cannot be imported with torch {torch.__version__}: {error}",
            "install both from one place: pip install --force-reinstall torch torchvision",
        ) from error

    name, weights, kwargs = source["torchvision"], source["weights"], source["kwargs"]
    names = models.list_models()
    if name.lower() not in names:
        hint = did_you_mean(name.lower(), names, "torchvision.models.list_models() lists them")
        raise StageError(f"torchvision has no model {name}", hint)
    failure = f"torchvision.models.get_model({name!r}) failed"
    if isinstance(weights, str):
        available = models.get_model_weights(name).__members__
        if weights not in available:
            raise StageError(
                f"torchvision has no weights {weights} for {name}",
                f"available: {', '.join(available)}",
            )
        chosen = available[weights]
        file = _weights_file(chosen)
        try:
            with reraise_as_stage_error(failure, project):
                module = models.get_model(name, **{**kwargs, "weights": chosen})
        except StageError as error:
            if not file.is_file():  # no network, or a read-only cache
                error.problem += f"; the weights {chosen} are not at {file}"
                error.hint = f"download {chosen.url} to there, or use weights: null (random)"
            raise
        return SourceModule(module, f"torchvision {chosen}")
    # some builders load a pretrained backbone by default
    accepted = inspect.signature(models.get_model_builder(name)).parameters
    defaults = {key: None for key in ("weights", "weights_backbone") if key in accepted}
    with reraise_as_stage_error(failure, project):
        module = models.get_model(name, **{"weights": None, **defaults, **kwargs})
    return filled(module, source, project, name)


def _weights_file(chosen: Any) -> Path:
    """Locate weights in torch's cache, if they are there.

    torch checks their digest, whose first digits are in the name, after a download only.
    Raises: StageError: the file is damaged.
    """
    file = Path(torch.hub.get_dir()) / "checkpoints" / PurePosixPath(str(chosen.url)).name
    prefix = file.stem.rpartition("-")[2]
    if file.is_file() and not (digest := sha256_of(file)).startswith(prefix):
        raise StageError(
            f"the sha256 of {file} must start with {prefix} but is {digest}", "delete the file"
        )
    return file
