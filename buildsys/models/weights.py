"""State dicts from files, loaded without running any code that they may hold."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from buildsys.errors import StageError
from buildsys.system.files import sha256_of

_WRAPPERS = ("state_dict", "model_state_dict", "model")  # keys of training scripts
_PARALLEL_PREFIX = "module."  # DataParallel saves every name with it
_NAMED = 3  # how many names an error shows of each kind


def load_weights(
    module: nn.Module, weights: Mapping[str, Any], project: Path, network: str
) -> None:
    """Load a state dict of the project into ``module``; every name and shape must fit.

    ``weights`` is ``{file:, sha256:}`` of the manifest. A checkpoint that holds the state dict under
    ``state_dict``, ``model_state_dict`` or ``model``, or with the ``module.`` of DataParallel before each
    name, is taken too.
    Raises: StageError: no such file, another digest, not a state dict, or one of another network.
    """
    shown = str(weights["file"])
    file = project / shown
    if not file.is_file():
        raise StageError(f"the weights file {shown} does not exist in the project")
    if weights["sha256"]:
        _check_digest(file, shown, weights["sha256"])
    state = _without_parallel_prefix(_state_dict(_load(file, shown), shown), module)
    _check_fit(state, module.state_dict(), shown, network)
    module.load_state_dict(state)


def _check_digest(file: Path, shown: str, expected: str) -> None:
    digest = sha256_of(file)
    if digest != expected:
        raise StageError(
            f"{shown} has the sha256 {digest}, the manifest wants {expected}",
            "restore the file that the manifest means, or put the new digest into it",
        )


def _load(file: Path, shown: str) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except (
        pickle.UnpicklingError,
        RuntimeError,
        EOFError,
        ValueError,
        KeyError,
        TypeError,
        OSError,
    ) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise StageError(
            f"{shown} is not a file that torch.load(weights_only=True) reads: {first}",
            "save a plain state dict: torch.save(model.state_dict(), FILE)",
        ) from error


def _state_dict(loaded: Any, shown: str) -> dict[str, Any]:
    if isinstance(loaded, Mapping):
        wrapped = (loaded.get(key) for key in _WRAPPERS)
        loaded = next((state for state in wrapped if isinstance(state, Mapping)), loaded)
    if not isinstance(loaded, Mapping) or not any(
        isinstance(value, torch.Tensor) for value in loaded.values()
    ):
        raise StageError(
            f"{shown} holds {_describe(loaded)}, not a state dict",
            "save one with torch.save(model.state_dict(), FILE)",
        )
    return dict(loaded)


def _describe(loaded: Any) -> str:
    if isinstance(loaded, Mapping):
        return (
            f"a dict without tensors (keys: {_list(map(str, loaded))})"
            if loaded
            else "an empty dict"
        )
    return f"one object of type {type(loaded).__name__}"


def _without_parallel_prefix(state: dict[str, Any], module: nn.Module) -> dict[str, Any]:
    prefixed = all(name.startswith(_PARALLEL_PREFIX) for name in state)
    own = any(name.startswith(_PARALLEL_PREFIX) for name in module.state_dict())
    if not prefixed or own:
        return state
    return {name.removeprefix(_PARALLEL_PREFIX): value for name, value in state.items()}


def _check_fit(
    state: Mapping[str, Any], wanted: Mapping[str, Any], shown: str, network: str
) -> None:
    missing = [name for name in wanted if name not in state]
    unexpected = [name for name in state if name not in wanted]
    reshaped = [
        f"{name} is {_shape(state[name])} in the file and {_shape(tensor)} in the network"
        for name, tensor in wanted.items()
        if name in state and _shape(state[name]) != _shape(tensor)
    ]
    problems = [f"{len(missing)} missing ({_list(missing)})"] if missing else []
    problems += [f"{len(unexpected)} unexpected ({_list(unexpected)})"] if unexpected else []
    problems += [f"{len(reshaped)} of another shape ({_list(reshaped)})"] if reshaped else []
    if problems:
        raise StageError(f"the state dict in {shown} does not fit {network}: {'; '.join(problems)}")


def _shape(value: Any) -> str:
    return (
        "x".join(map(str, value.shape)) or "a scalar"
        if isinstance(value, torch.Tensor)
        else type(value).__name__
    )


def _list(names: Iterable[str]) -> str:
    every = list(names)
    rest = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return ", ".join(every[:_NAMED]) + rest
