"""The state dict of a network in what a training script saved.

Scripts save state dicts next to optimizers, epochs and averaged weights, and of modules that wrap
the network: ``state_dict.model.fc.weight`` is the ``fc.weight`` of a network. What stands before
the names of the network is the key of its state dict.
"""

import json
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from buildsys.errors import StageError

COUNTER = "num_batches_tracked"  # only training needs it
_LISTED_NAMES = 3
_LISTED_KEYS = 8
_MOST_NESTED = 4
State = Mapping[str, Any]


class StateDict(NamedTuple):
    """A state dict by the names of its network."""

    path: str  # of the map
    prefix: str  # of the names in it, without the last dot
    state: State
    others: int  # tensors of the file outside it

    @property
    def key(self) -> str:
        """What stands before the names of the network."""
        return ".".join(filter(None, (self.path, self.prefix)))


def find_state(
    loaded: State, module: nn.Module, weights: Mapping[str, Any], title: str
) -> StateDict:
    """Find the state dict with the names of ``module``, or with the most of them.

    ``weights`` is the section of the manifest. A prefix without a key may be below any key.
    Raises: StageError: several fit by names and shapes, or none is at the key. Not ``strict``:
    several have the most names.
    """
    expected = module.state_dict()
    groups = [names for names in tied_names(expected) if not names[0].endswith(COUNTER)]
    maps, fitting, partial = (
        dict(state_maps(loaded)),
        list[StateDict](),
        list[tuple[int, StateDict]](),
    )
    total = sum(map(_tensors, maps.values()))
    for path, tensors in maps.items():
        counts = Counter(prefix for name in tensors for prefix in _prefixes(name, expected))
        for prefix, count in sorted(counts.items(), key=lambda entry: len(entry[0])):
            place = StateDict(path, prefix[:-1], {}, 0)
            partial.append((count, place))
            if count < len(groups):
                continue
            whole = _cut(place, tensors, expected, total)
            if all(any(name in whole.state for name in names) for names in groups):
                fitting.append(whole)
                if not prefix:
                    break  # further names of a network are no part of it
    partial = [(count, place) for count, place in partial if _is_at(weights, place.key)]
    if (key := key_of(weights)) is not None and not partial:
        right = json.dumps(fitting[0].key) if len(fitting) == 1 else ""
        right += ", prefix: null" if weights.get("prefix") else ""
        changes = [f"source: {{weights: {{key: {right}}}}}"] if len(fitting) == 1 else []
        raise _no_key(key, maps, title, changes)
    states = [state for state in fitting if _is_at(weights, state.key)]
    if not states:
        most = max((count for count, _ in partial), default=0)
        places = [place for count, place in partial if count == most] or [StateDict("", "", {}, 0)]
        places = places[:1] if weights["strict"] else places
        states = [_cut(place, maps[place.path], expected, total) for place in places]
    if len(states) > 1:
        states = [state for state in states if _has_shapes(state.state, expected)] or states
    _refuse_several([state.key for state in states], title)
    return states[0]


def key_of(weights: Mapping[str, Any]) -> str | None:
    """Join key and prefix of the manifest's section."""
    parts = [part.strip(".") for name in ("key", "prefix") if (part := weights.get(name))]
    return ".".join(parts) if parts else weights["key"]


def _is_at(weights: Mapping[str, Any], place: str) -> bool:
    key = key_of(weights)
    if weights["key"] is None:
        return f".{key or ''}.".replace("..", ".") in f".{place}."
    return place == key or bool(key and place.startswith(f"{key}."))


def largest_state(loaded: State, key: str | None, title: str) -> State:
    """Find the state dict of an unknown network: at ``key``, or the largest.

    Raises: StageError: several are the largest, or none has the ``key``.
    """
    maps = dict(state_maps(loaded))
    if key is None:
        most = max(map(len, maps.values()))
        paths = [path for path, state in maps.items() if len(state) == most]
        _refuse_several(paths, title)
        key = paths[0]
    if key in maps:
        return maps[key]
    tensors = {
        f"{path}.{name}".lstrip("."): value
        for path, state in maps.items()
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
    }
    start = f"{key}." if key else ""
    below = {n.removeprefix(start): value for n, value in tensors.items() if n.startswith(start)}
    if not below:
        raise _no_key(key, maps, title)
    return below


def _no_key(
    key: str, maps: Mapping[str, State], title: str, changes: Sequence[str] = ()
) -> StageError:
    listed = shortened([path for path in maps if path]) or "no keys"
    problem = f"{title} has no state dict of this network at the key {key}"
    return StageError(problem, f"correct weights.key: the file has {listed}", changes)


def _refuse_several(keys: Sequence[str], title: str) -> None:
    if len(keys) > 1:
        lines = [f"  weights: {{file: {title}, key: {key or json.dumps(key)}}}" for key in keys]
        raise StageError(
            f"{title} has {len(keys)} state dicts of this network; which one is it?",
            "\n".join(lines[:_LISTED_KEYS] + (["  …"] if lines[_LISTED_KEYS:] else [])),
        )


def state_maps(loaded: State, path: str = "", depth: int = 0) -> Iterator[tuple[str, State]]:
    """Yield the maps with tensors by their path, ``loaded`` first."""
    # a file may replace a method of a dictionary
    plain = loaded if isinstance(loaded, dict) else {**loaded}
    named = module_tensors(loaded) or {str(name): value for name, value in dict.items(plain)}
    if not depth or any(isinstance(value, torch.Tensor) for value in named.values()):
        yield path, named
    for name, value in named.items():
        if isinstance(value, dict) and depth < _MOST_NESTED:
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


def _cut(place: StateDict, tensors: State, expected: State, total: int) -> StateDict:
    """Take the tensors below a prefix, and further values that the network knows."""
    start = f"{place.prefix}." if place.prefix else ""
    state = {
        name[len(start) :]: value
        for name, value in tensors.items()
        if name.startswith(start)
        and (isinstance(value, torch.Tensor) or name[len(start) :] in expected)
    }
    return place._replace(state=state, others=total - _tensors(state))


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


_PARTS = ("_parameters", "_buffers", "_modules")  # of a module


class _Object:
    """Stands for any class or function; torch fills plain dictionaries only."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        made: OrderedDict[Any, Any] = OrderedDict()
        return made


class _Opaque:
    """Stands for a class whose state is a tuple."""

    __slots__ = ()

    def __new__(cls, *_: Any) -> Any:
        return super().__new__(cls)

    def __setstate__(self, _: Any) -> None:
        pass


class _Wrapper:
    """Stands for a compiled module, which is made from the original one."""

    def __new__(cls, module: Any, *_: Any) -> Any:
        return module


_STAND_INS = {  # by the beginning of a name
    "numpy.": _Opaque,
    "functools.partial": _Opaque,
    "torch._dynamo.eval_frame.OptimizedModule": _Wrapper,
    "": _Object,
}


@contextmanager
def stand_ins(file: Path) -> Iterator[None]:
    """Let torch load a file with other names than its own."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(str(file))
    except Exception:  # damaged, or of before torch 1.6: loading it says so
        names = []
    objects: list[Any] = [
        (next(kind for start, kind in _STAND_INS.items() if name.startswith(start)), name)
        for name in names
    ]
    with torch.serialization.safe_globals(objects):
        yield


def module_tensors(loaded: Any) -> dict[str, Any]:
    """Name the tensors of a saved module like its state dict; empty for another object."""
    tensors: dict[str, Any] = {}
    waiting, seen = [("", loaded)], set[int]()
    while waiting:
        prefix, module = waiting.pop()
        attributes = vars(module) if type(module) is OrderedDict else {}
        parts = [attributes.get(name) for name in _PARTS]
        if id(module) in seen or not all(isinstance(part, dict) for part in parts):
            continue
        seen.add(id(module))  # of two names of a module, the file needs one
        hidden = attributes.get("_non_persistent_buffers_set")
        for part in parts[:2]:
            tensors |= {
                f"{prefix}{name}": tensor
                for name, tensor in dict.items(
                    part or {}
                )  # files may replace a method of a dictionary
                if isinstance(tensor, torch.Tensor)
                and not (isinstance(hidden, set) and name in hidden)
            }
        waiting += [(f"{prefix}{name}.", child) for name, child in dict.items(parts[2] or {})]
    return tensors
