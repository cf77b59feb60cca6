"""Torch modules with weights, from the ``source`` of a manifest."""

from __future__ import annotations

import inspect
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlparse

import torch
from torch import nn

from buildsys.errors import StageError
from buildsys.models.random_weights import draw_parameters, has_batch_norms, without_default_values
from buildsys.models.user_code import load_callable, reraise_as_stage_error
from buildsys.models.weights import load_weights
from buildsys.system.files import sha256_of
from buildsys.system.suggestions import nearest

_DOWNLOAD_TIMEOUT_S = 20.0  # per connection and read, not for the whole file


@dataclass(frozen=True)
class SourceModule:
    """A module and the origin of its weights."""

    module: nn.Module
    weights: str
    needs_statistics: bool = False  # of batch norms, after drawing weights


def make_module(source: Mapping[str, Any], project: Path) -> SourceModule:
    """Build the module of a ``torchvision`` or ``python`` source.

    Raises: StageError: it is unknown or fails, or its weights are not available.
    """
    torch.manual_seed(source["seed"])
    make = _from_torchvision if "torchvision" in source else _from_python
    made = make(source, project)
    made.module.eval()
    return made


def _from_torchvision(source: Mapping[str, Any], project: Path) -> SourceModule:
    from torchvision import models

    name, weights, kwargs = source["torchvision"], source["weights"], source["kwargs"]
    known = models.list_models()
    if name.lower() not in known:
        near = nearest(name.lower(), known, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else ""
        raise StageError(
            f"torchvision has no model {name}",
            hint or "torchvision.models.list_models() lists them",
        )
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
    with without_default_values(), reraise_as_stage_error(failure, project):
        module = models.get_model(name, **{"weights": None, **defaults, **kwargs})
    if weights:
        load_weights(module, weights, project, name)
        return SourceModule(module, f"from {weights['file']}")
    return _draw(module, source)


def _from_python(source: Mapping[str, Any], project: Path) -> SourceModule:
    reference, weights = source["python"], source["weights"]
    make = load_callable(reference, project)
    if isinstance(make, nn.Module):
        raise StageError(
            f"{reference} is a module, not a callable that returns one",
            "name its class or a function",
        )
    with reraise_as_stage_error(f"{reference} failed", project):
        module = make(**source["kwargs"])
    if not isinstance(module, nn.Module):
        raise StageError(f"{reference} returned {type(module).__name__}, not a torch.nn.Module")
    if weights:
        load_weights(module, weights, project, reference)
        return SourceModule(module, f"from {weights['file']}")
    if source["randomize"]:
        return _draw(module, source)
    return SourceModule(module, f"initialized by {reference} (torch seed {source['seed']})")


def _draw(module: nn.Module, source: Mapping[str, Any]) -> SourceModule:
    draw_parameters(module, source["seed"])
    return SourceModule(module, f"random, seed {source['seed']}", has_batch_norms(module))


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
        _download(url, file, prefix, f"the weights {chosen} of {name}")
    digest = sha256_of(file)
    if not digest.startswith(prefix):
        raise StageError(
            f"the sha256 of {file} must start with {prefix} but is {digest}", "delete the file"
        )


def _download(url: str, file: Path, prefix: str, what: str) -> None:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_DOWNLOAD_TIMEOUT_S)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(file), prefix, progress=False)
    except (OSError, RuntimeError) as error:  # no network, read-only cache; wrong digest
        raise StageError(
            f"{what} are not at {file} and could not be loaded from {url} ({error})",
            f"put the file there, or use weights: null (random) or"
            f" weights: {{file: {file.name}, sha256: …}}",
        ) from error
    finally:
        socket.setdefaulttimeout(before)
