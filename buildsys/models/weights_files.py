"""Files of weights: state dicts saved by torch, and safetensors.

Neither format executes code.
"""

from __future__ import annotations

import pickle
import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from buildsys.errors import StageError
from buildsys.models.hub import is_present, locate
from buildsys.system.files import sha256_of
from buildsys.system.weight_names import INDEX_SUFFIX, read_index

SAFETENSORS = ".safetensors"
_WRAPPERS = ("state_dict", "model_state_dict", "model")  # keys used by training scripts
_PARALLEL_PREFIX = "module."  # DataParallel saves every name with it
_SHOWN_NAMES = 3
_LOAD_ERRORS = (
    pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, TypeError, OSError,
    MemoryError, IndexError, AttributeError, AssertionError, OverflowError, struct.error,
)  # fmt: skip
_PICKLES = (b"\x80", b"PK")  # first bytes of files by torch.save
State = Mapping[str, Any]
Shards = Mapping[str, set[str]]  # file -> its tensors


def load_weights(
    module: nn.Module, weights: Mapping[str, Any], project: Path, network: str
) -> None:
    """Load a state dict of the project into ``module``.

    ``weights`` is ``{file:, sha256:}`` of the manifest. A file by torch may be a checkpoint with
    the state dict under ``state_dict``, ``model_state_dict`` or ``model``. Names may have the
    ``module.`` prefix of DataParallel.
    Raises: StageError: no such file, a different digest, or not a state dict of this network.
    """
    expected = module.state_dict()
    state = read_weights(weights, project)
    if all(name.startswith(_PARALLEL_PREFIX) for name in state) and not any(
        name.startswith(_PARALLEL_PREFIX) for name in expected
    ):
        state = {name.removeprefix(_PARALLEL_PREFIX): value for name, value in state.items()}
    # safetensors keeps shared tensors once, under one of their names
    names_of = defaultdict(list)
    for tensor_name, tensor in expected.items():
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            place = tensor.data_ptr(), tensor.shape, tensor.stride()
            names_of[place].append(tensor_name)
    for names in names_of.values():
        saved = [state[name] for name in names if name in state]
        if saved and len(saved) < len(names):
            state = {**dict.fromkeys(names, saved[0]), **state}
    _check_fit(state, expected, str(weights["file"]), network)
    module.load_state_dict(state)


def read_weights(weights: Mapping[str, Any], project: Path) -> State:
    """Read the tensors of a file and its shards.

    Raises: StageError: no such file, a different digest, or not a state dict.
    """
    file_name = str(weights["file"])
    file = locate(file_name, project)
    if not file.is_file():
        raise StageError(
            f"the weights file {file_name} does not exist in the project",
            "check the path, relative to the project",
        )
    shards = _shards(file, file_name, project)
    files = [file, *(file.parent / name for name in shards)]
    if weights["sha256"] and (digest := sha256_of(*files)) != weights["sha256"]:
        whole = f"{file_name} with its shards" if shards else file_name
        raise StageError(
            f"{whole} has the sha256 {digest}, the manifest expects {weights['sha256']}",
            "restore the expected file, or update the digest in the manifest",
        )
    return _read_shards(file, file_name, shards) if shards else _read(file, file_name)


def _read(file: Path, shown: str) -> State:
    """Read the tensors of a file. Raises: StageError: damaged."""
    if file.name.endswith(SAFETENSORS):
        return read_safetensors(file, shown)
    try:
        return _unwrapped(torch.load(file, map_location="cpu", weights_only=True), shown)
    except _LOAD_ERRORS as error:
        # torch wraps the reason in advice to load without weights_only, which would execute code
        inner = error.__context__ if isinstance(error, pickle.UnpicklingError) else None
        first = (str(inner or error).strip().splitlines() or [type(error).__name__])[0]
        first = first.partition(". Please ")[0].removesuffix(".")
        raise StageError(
            f"torch.load(weights_only=True) cannot read {shown}: {first}",
            "save a plain state dict: torch.save(model.state_dict(), FILE)",
        ) from error


def read_safetensors(file: Path, shown: str) -> dict[str, torch.Tensor]:
    """Read the tensors of a safetensors file, mapped into memory.

    Raises: StageError: it cannot be read, or the library is not installed.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise StageError(
            f"reading {shown} needs safetensors, which is not installed",
            "pip install 'buildsys[safetensors]'",
        ) from error
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, *_LOAD_ERRORS) as error:
        with file.open("rb") as stream:
            is_pickle = stream.read(2).startswith(_PICKLES)
        problem = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise StageError(
            f"{shown} is not a valid safetensors file: {problem.partition(', expected one of')[0]}",
            "it looks like a file by torch.save: name it .pth"
            if is_pickle
            else "save it again with safetensors.torch.save_model(model, FILE)",
        ) from error


def _shards(index: Path, shown: str, project: Path) -> Shards:
    """List the shards of an index, none of another file.

    Raises: StageError: the index is damaged, or a shard missing.
    """
    if not index.name.endswith(INDEX_SUFFIX):
        return {}
    try:
        shards = read_index(index)
    except (OSError, ValueError) as error:
        raise StageError(
            f"{shown} is not an index of shards: {error}", "download or save it again"
        ) from error
    for name in shards:
        part = _sibling(shown, name)
        if not is_present(part, project):
            text = f"{part}, a shard of {shown}, does not exist"
            raise StageError(text, f"download or save all files of {shown} again")
    return shards


def _read_shards(index: Path, shown: str, shards: Shards) -> State:
    """Read the tensors of all shards.

    Raises: StageError: one does not fit the index.
    """
    state: dict[str, Any] = {}
    for name, tensors in shards.items():
        part = _sibling(shown, name)
        shard = read_safetensors(index.parent / name, part)
        for verb, names in (
            ("does not have", tensors - shard.keys()),
            ("also has", shard.keys() - tensors),
        ):
            if names:
                text = f"the shard {part} {verb} {shortened(sorted(names))}, against {shown}"
                raise StageError(text, f"download or save all files of {shown} again")
        state |= shard
    return state


def _sibling(shown: str, name: str) -> str:
    folder, slash, _ = shown.rpartition("/")
    return f"{folder}{slash}{name}"


def _unwrapped(loaded: Any, shown: str) -> dict[str, Any]:
    if isinstance(loaded, Mapping):
        wrapped = (loaded.get(key) for key in _WRAPPERS)
        loaded = next((state for state in wrapped if isinstance(state, Mapping)), loaded)
        if any(isinstance(value, torch.Tensor) for value in loaded.values()):
            return dict(loaded)
        content = f"a dict without tensors (keys: {shortened([*map(str, loaded)])})"
        content = content if loaded else "an empty dict"
    else:
        content = f"one object of type {type(loaded).__name__}"
    raise StageError(
        f"{shown} holds {content}, not a state dict",
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
    retyped = [
        f"{name} is {_type(state[name])} in the file and {_type(tensor)} in the network"
        for name, tensor in expected.items()
        if name in state and _family(state[name]) != _family(tensor)
    ]
    differences = {
        "missing": [name for name in expected if name not in state],
        "unexpected": [name for name in state if name not in expected],
        "with another shape": reshaped,
        "of another kind of type": retyped,
    }
    problems = [
        f"{len(entries)} {kind} ({shortened(entries)})"
        for kind, entries in differences.items()
        if entries
    ]
    if problems:
        problem = f"the state dict in {shown} does not fit {network}: {'; '.join(problems)}"
        raise StageError(problem, "name weights of this network, or build the one they are of")


def _shape(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return "x".join(map(str, value.shape)) or "a scalar"


def _type(value: Any) -> str:
    is_tensor = isinstance(value, torch.Tensor)
    return str(value.dtype).removeprefix("torch.") if is_tensor else type(value).__name__


def _family(value: Any) -> str:
    """Return the kind of numbers; conversions within it keep the meaning."""
    if not isinstance(value, torch.Tensor) or value.is_quantized:
        return _type(value)
    if value.dtype == torch.bool:
        return "bool"
    kinds = {"float": value.is_floating_point(), "complex": value.is_complex()}
    return next((name for name, fits in kinds.items() if fits), "integer")


def shortened(names: Sequence[str]) -> str:
    """Return the first names and the number of the others."""
    more = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
