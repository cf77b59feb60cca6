"""Torch modules with weights, from the ``source`` of a manifest."""

from __future__ import annotations

import inspect
import pickle
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlparse

import torch
from torch import nn

from buildsys.errors import StageError
from buildsys.models.old_torch_names import provide_old_names
from buildsys.models.random_weights import SkipInitialization, draw_parameters, has_measured_layers
from buildsys.models.user_code import load_callable, reraise_as_stage_error
from buildsys.system.files import sha256_of
from buildsys.system.memory_limit import OUT_OF_MEMORY, memory_limit
from buildsys.system.suggestions import nearest

_DOWNLOAD_TIMEOUT_S = 20.0  # per connection and read, not for the whole file
_WRAPPERS = ("state_dict", "model_state_dict", "model")  # keys used by training scripts
_PARALLEL_PREFIX = "module."  # DataParallel saves every name with it
_SHOWN_NAMES = 3
_LOAD_ERRORS = (
    pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, TypeError, OSError,
    MemoryError, IndexError, AttributeError, AssertionError, OverflowError, struct.error,
)  # fmt: skip
_LOADING_BYTES = 1 << 30  # buffers and threads of torch.load itself


@dataclass(frozen=True)
class SourceModule:
    """A module and the origin of its weights."""

    module: nn.Module
    weights: str
    needs_forward: bool = False  # one that measures layers, after drawing weights


def make_module(source: Mapping[str, Any], project: Path) -> SourceModule:
    """Build the module of a ``torchvision`` or ``python`` source.

    Raises: StageError: it is unknown or fails, or its weights are not available.
    """
    provide_old_names()
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
    with SkipInitialization(), reraise_as_stage_error(failure, project):
        module = models.get_model(name, **{"weights": None, **defaults, **kwargs})
    if weights:
        _load_weights(module, weights, project, name)
        return SourceModule(module, f"from {weights['file']}")
    draw_parameters(module, source["seed"])
    return SourceModule(module, f"random, seed {source['seed']}", has_measured_layers(module))


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
        _load_weights(module, weights, project, reference)
        return SourceModule(module, f"from {weights['file']}")
    if source["randomize"]:
        draw_parameters(module, source["seed"])
        return SourceModule(module, f"random, seed {source['seed']}", has_measured_layers(module))
    return SourceModule(module, f"initialized by {reference} (torch seed {source['seed']})")


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


def _load_weights(
    module: nn.Module, weights: Mapping[str, Any], project: Path, network: str
) -> None:
    """Load a state dict of the project into ``module``.

    ``weights`` is ``{file:, sha256:}`` of the manifest. Also accepted: a checkpoint with the state
    dict under ``state_dict``, ``model_state_dict`` or ``model``, and the ``module.`` prefix of
    DataParallel.
    Raises: StageError: no such file, a different digest, or not a state dict of this network.
    """
    shown = str(weights["file"])
    file = project / shown
    if not file.is_file():
        raise StageError(f"the weights file {shown} does not exist in the project")
    if weights["sha256"] and (digest := sha256_of(file)) != weights["sha256"]:
        raise StageError(
            f"{shown} has the sha256 {digest}, the manifest expects {weights['sha256']}",
            "restore the expected file, or update the digest in the manifest",
        )
    expected = module.state_dict()
    tensors = [value for value in expected.values() if isinstance(value, torch.Tensor)]
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    try:
        # a file of some bytes can claim any size
        with memory_limit(file.stat().st_size + 2 * needed + _LOADING_BYTES):
            loaded = torch.load(file, map_location="cpu", weights_only=True)
    except _LOAD_ERRORS as error:
        if isinstance(error, MemoryError) or any(sign in str(error) for sign in OUT_OF_MEMORY):
            raise StageError(
                f"{shown} needs far more memory than its size and that of {network} explain",
                "it is damaged or not a state dict; save one with"
                " torch.save(model.state_dict(), FILE)",
            ) from error
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise StageError(
            f"torch.load(weights_only=True) cannot read {shown}: {first}",
            "save a plain state dict: torch.save(model.state_dict(), FILE)",
        ) from error
    state = _unwrapped(loaded, shown)
    if all(name.startswith(_PARALLEL_PREFIX) for name in state) and not any(
        name.startswith(_PARALLEL_PREFIX) for name in expected
    ):
        state = {name.removeprefix(_PARALLEL_PREFIX): value for name, value in state.items()}
    _check_fit(state, expected, shown, network)
    module.load_state_dict(state)


def _unwrapped(loaded: Any, shown: str) -> dict[str, Any]:
    if isinstance(loaded, Mapping):
        wrapped = (loaded.get(key) for key in _WRAPPERS)
        loaded = next((state for state in wrapped if isinstance(state, Mapping)), loaded)
        if any(isinstance(value, torch.Tensor) for value in loaded.values()):
            return dict(loaded)
        found = f"a dict without tensors (keys: {_shortened([*map(str, loaded)])})"
        found = found if loaded else "an empty dict"
    else:
        found = f"one object of type {type(loaded).__name__}"
    raise StageError(
        f"{shown} holds {found}, not a state dict",
        "save one with torch.save(model.state_dict(), FILE)",
    )


def _check_fit(
    state: Mapping[str, Any], expected: Mapping[str, Any], shown: str, network: str
) -> None:
    reshaped = [
        f"{name} is {_shape(state[name])} in the file and {_shape(tensor)} in the network"
        for name, tensor in expected.items()
        if name in state and _shape(state[name]) != _shape(tensor)
    ]
    differences = {
        "missing": [name for name in expected if name not in state],
        "unexpected": [name for name in state if name not in expected],
        "with another shape": reshaped,
    }
    problems = [
        f"{len(found)} {kind} ({_shortened(found)})" for kind, found in differences.items() if found
    ]
    if problems:
        raise StageError(f"the state dict in {shown} does not fit {network}: {'; '.join(problems)}")


def _shape(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return "x".join(map(str, value.shape)) or "a scalar"


def _shortened(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
