"""The state dict of a network in what a training script saved.

Scripts save state dicts next to optimizers, epochs and averaged weights, and of modules that wrap
the network: ``state_dict.model.fc.weight`` is the ``fc.weight`` of a network. What stands before
the names of the network is the key of its state dict.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from buildsys.errors import StageError

COUNTER = "num_batches_tracked"  # only training needs it
_LISTED_NAMES = 3
_MOST_NESTED = 4
State = Mapping[str, Any]


class StateDict(NamedTuple):
    """A state dict by the names of its network."""

    key: str
    state: State
    others: int  # tensors of the file outside it


def find_state(loaded: State, module: nn.Module, key: str | None, title: str) -> StateDict:
    """Find the state dict with the names of ``module``, or with the most of them.

    Raises: StageError: several fit by names and shapes, or none has the ``key``.
    """
    expected = module.state_dict()
    groups = [names for names in tied_names(expected) if not names[0].endswith(COUNTER)]
    maps, fitting, closest = dict(state_maps(loaded)), list[StateDict](), (0, "", "")
    total = sum(map(_tensors, maps.values()))
    for path, tensors in maps.items():
        counts = Counter(prefix for name in tensors for prefix in _prefixes(name, expected))
        for prefix, count in sorted(counts.items(), key=lambda entry: len(entry[0])):
            closest = max(closest, (count, path, prefix), key=lambda place: place[0])
            if count < len(groups):
                continue
            found = _cut(path, tensors, prefix, expected, total)
            if all(any(name in found.state for name in names) for names in groups):
                fitting.append(found)
                if not prefix:
                    break  # further names of a network are no part of it
    if key is not None:
        fitting = [f for f in fitting if f.key == key or f.key.startswith(f"{key}.")]
        if not fitting:
            raise _no_key(key, maps, title)
    if len(fitting) > 1:
        fitting = [f for f in fitting if _has_shapes(f.state, expected)] or fitting
    _refuse_several([found.key for found in fitting], title)
    _, path, prefix = closest
    return fitting[0] if fitting else _cut(path, maps[path], prefix, expected, total)


def largest_state(loaded: State, key: str | None, title: str) -> State:
    """Find the state dict of an unknown network: at ``key``, or the largest.

    Raises: StageError: several are the largest, or none has the ``key``.
    """
    maps = dict(state_maps(loaded))
    if key is not None and key not in maps:
        raise _no_key(key, maps, title)
    most = max(map(len, maps.values()))
    paths = [path for path, state in maps.items() if len(state) == most]
    _refuse_several([] if key is not None else paths, title)
    return maps[paths[0] if key is None else key]


def _no_key(key: str, maps: Mapping[str, State], title: str) -> StageError:
    listed = shortened([path for path in maps if path]) or "no keys"
    problem = f"{title} has no state dict of this network at the key {key}"
    return StageError(problem, f"correct weights.key: the file has {listed}")


def _refuse_several(keys: Sequence[str], title: str) -> None:
    if len(keys) > 1:
        named = [key for key in keys if key]
        raise StageError(
            f"{title} has {len(keys)} state dicts of this network: {shortened(named)}",
            f"choose one: weights: {{file: {title}, key: {named[0]}}}",
        )


def state_maps(loaded: State, path: str = "", depth: int = 0) -> Iterator[tuple[str, State]]:
    """Yield the maps with tensors by their path, ``loaded`` first."""
    named = {str(name): value for name, value in loaded.items()}
    if not depth or any(isinstance(value, torch.Tensor) for value in named.values()):
        yield path, named
    for name, value in named.items():
        if isinstance(value, Mapping) and depth < _MOST_NESTED:
            yield from state_maps(value, f"{path}.{name}" if path else name, depth + 1)


def tied_names(expected: State) -> list[list[str]]:
    """Group the names of each tensor; safetensors keeps it under one of them."""
    names_of = defaultdict[Any, list[str]](list)
    for name, tensor in expected.items():
        shares = isinstance(tensor, torch.Tensor) and not is_lazy(tensor) and tensor.numel()
        place = (tensor.data_ptr(), tensor.shape, tensor.stride()) if shares else name
        names_of[place].append(name)
    return list(names_of.values())


def shortened(names: Sequence[str]) -> str:
    """List the first names and the number of the others."""
    more = len(names) - _LISTED_NAMES
    return ", ".join(names[:_LISTED_NAMES]) + (f" and {more} more" if more > 0 else "")


def _prefixes(name: str, expected: State) -> Iterator[str]:
    """Yield what stands before the names of the network that end ``name``."""
    start = 0
    while True:
        if name[start:] in expected:
            yield name[:start]
        start = name.find(".", start) + 1
        if not start:
            return


def _cut(path: str, tensors: State, prefix: str, expected: State, total: int) -> StateDict:
    """Take the tensors below a prefix, and further values that the network knows."""
    state = {
        name[len(prefix) :]: value
        for name, value in tensors.items()
        if name.startswith(prefix)
        and (isinstance(value, torch.Tensor) or name[len(prefix) :] in expected)
    }
    key = ".".join(filter(None, (path, prefix[:-1])))
    return StateDict(key, state, total - _tensors(state))


def _tensors(state: State) -> int:
    return sum(isinstance(value, torch.Tensor) for value in state.values())


def _has_shapes(state: State, expected: State) -> bool:
    return all(
        not isinstance(expected[name], torch.Tensor)
        or is_lazy(expected[name])
        or getattr(value, "shape", None) == expected[name].shape
        for name, value in state.items()
        if name in expected
    )
