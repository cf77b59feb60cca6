"""State dicts from files, loaded without running any code in them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from buildsys.errors import StageError
from buildsys.system.files import sha256_of

_WRAPPERS = ("state_dict", "model_state_dict", "model")  # keys used by training scripts
_PARALLEL_PREFIX = "module."  # DataParallel saves every name with it
_SHOWN_NAMES = 3
_LOAD_ERRORS = (
    pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, TypeError, OSError,
)  # fmt: skip


def load_weights(
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
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except _LOAD_ERRORS as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise StageError(
            f"torch.load(weights_only=True) cannot read {shown}: {first}",
            "save a plain state dict: torch.save(model.state_dict(), FILE)",
        ) from error
    expected = module.state_dict()
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
