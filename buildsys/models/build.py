"""From the ``source`` of a manifest to a torch module in eval mode, with its weights."""

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
class Made:
    """A module, how its weights were made, and whether its batch norms still await their statistics."""

    module: nn.Module
    weights: str
    unmeasured: bool = False


def make_module(source: Mapping[str, Any], project: Path) -> Made:
    """Build the module of a ``torchvision`` or ``python`` source.

    Raises: StageError: no such model or callable, it cannot be built, or its weights cannot be had.
    """
    torch.manual_seed(source["seed"])
    made = (
        _from_torchvision(source, project)
        if "torchvision" in source
        else _from_python(source, project)
    )
    made.module.eval()
    return made


def _from_torchvision(source: Mapping[str, Any], project: Path) -> Made:
    name, weights = source["torchvision"], source["weights"]
    if isinstance(weights, str):
        chosen = _pretrained(name, weights)
        _fetch(chosen, name)
        module = _build_torchvision(name, {**source["kwargs"], "weights": chosen}, project)
        return Made(module, f"torchvision {chosen}")
    with without_default_values():
        module = _build_torchvision(
            name, {**_without_backbone_download(name), **source["kwargs"]}, project
        )
    if weights:
        load_weights(module, weights, project, name)
        return Made(module, f"from {weights['file']}")
    return _draw(module, source)


def _from_python(source: Mapping[str, Any], project: Path) -> Made:
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
        return Made(module, f"from {weights['file']}")
    if source["randomize"]:
        return _draw(module, source)
    return Made(module, f"as {reference} makes them (torch seed {source['seed']})")


def _draw(module: nn.Module, source: Mapping[str, Any]) -> Made:
    draw_parameters(module, source["seed"])
    return Made(module, f"random, seed {source['seed']}", unmeasured=has_batch_norms(module))


def _build_torchvision(name: str, kwargs: Mapping[str, Any], project: Path) -> nn.Module:
    from torchvision import models

    _require_known(name)
    with reraise_as_stage_error(f"torchvision.models.get_model({name!r}) failed", project):
        module: nn.Module = models.get_model(name, **kwargs)
    return module


def _require_known(name: str) -> None:
    from torchvision import models

    known = models.list_models()
    if name.lower() not in known:
        near = nearest(name.lower(), known, cutoff=0.5)
        hint = (
            f"did you mean {' or '.join(near)}?"
            if near
            else "torchvision.models.list_models() lists them"
        )
        raise StageError(f"torchvision has no model {name}", hint)


def _without_backbone_download(name: str) -> dict[str, Any]:
    """Return arguments that keep a builder from loading a pretrained backbone, which is some builders' default."""
    from torchvision import models

    _require_known(name)
    accepted = inspect.signature(models.get_model_builder(name)).parameters
    return {
        "weights": None,
        **({"weights_backbone": None} if "weights_backbone" in accepted else {}),
    }


def _pretrained(name: str, weights: str) -> Any:
    from torchvision import models

    _require_known(name)
    available = models.get_model_weights(name)
    if weights not in available.__members__:
        names = ", ".join(available.__members__)
        raise StageError(f"torchvision has no weights {weights} for {name}", f"there are {names}")
    return available[weights]


def _fetch(chosen: Any, name: str) -> None:
    """Make sure that torch's cache has the weights' file, whole.

    The digest's first digits are part of the file's name; torch checks them after a download only.
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
            f"{file} should have a sha256 that begins with {prefix}, not {digest}",
            "delete the file",
        )


def _download(url: str, file: Path, prefix: str, what: str) -> None:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_DOWNLOAD_TIMEOUT_S)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(file), prefix, progress=False)
    except (
        OSError,
        RuntimeError,
    ) as error:  # no network, no such file there, a read-only cache; a wrong digest
        raise StageError(
            f"{what} are not at {file} and could not be loaded from {url} ({error})",
            f"put the file there, or use weights: null (random) or weights: {{file: {file.name}, sha256: …}}",
        ) from error
    finally:
        socket.setdefaulttimeout(before)
