"""Models of torchvision, by name."""

from __future__ import annotations

import inspect
import socket
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlparse

import torch

from buildsys.errors import StageError
from buildsys.models.random_weights import SkipInitialization
from buildsys.models.sources.source_module import SourceModule, draw, load_file
from buildsys.models.user_code import reraise_as_stage_error
from buildsys.system.files import sha256_of
from buildsys.system.printable import did_you_mean

_DOWNLOAD_TIMEOUT_S = 20.0  # per connection and read, not for the whole file


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
        _ensure_downloaded(chosen, name)
        with reraise_as_stage_error(failure, project):
            module = models.get_model(name, **{**kwargs, "weights": chosen})
        return SourceModule(module, f"torchvision {chosen}")
    # some builders load a pretrained backbone by default
    accepted = inspect.signature(models.get_model_builder(name)).parameters
    defaults = {key: None for key in ("weights", "weights_backbone") if key in accepted}
    with SkipInitialization(), reraise_as_stage_error(failure, project):
        module = models.get_model(name, **{"weights": None, **defaults, **kwargs})
    if weights:
        return load_file(module, source, project, name)
    return draw(module, source["seed"])


def _ensure_downloaded(chosen: Any, name: str) -> None:
    """Put a weights file into torch's cache and check it.

    The file's name contains the first digits of the digest; torch checks them after a download
    only, so a file truncated later would pass.
    """
    url = str(chosen.url)
    file_name = PurePosixPath(urlparse(url).path).name
    file = Path(torch.hub.get_dir()) / "checkpoints" / file_name
    prefix = file_name.removesuffix(".pth").rpartition("-")[2]
    if not file.is_file():
        before = socket.getdefaulttimeout()
        socket.setdefaulttimeout(_DOWNLOAD_TIMEOUT_S)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(file), prefix, progress=False)
        except (OSError, RuntimeError) as error:  # no network, read-only cache; wrong digest
            raise StageError(
                f"the weights {chosen} of {name} are not at {file} and could not be loaded from"
                f" {url} ({error})",
                f"put the file there, or use weights: null (random) or"
                f" weights: {{file: {file.name}, sha256: …}}",
            ) from error
        finally:
            socket.setdefaulttimeout(before)
    digest = sha256_of(file)
    if not digest.startswith(prefix):
        raise StageError(
            f"the sha256 of {file} must start with {prefix} but is {digest}", "delete the file"
        )
