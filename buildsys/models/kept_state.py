"""What a network keeps between calls: buffers, parameters and attributes of its layers."""

import itertools
import random
from collections import deque
from collections.abc import Iterator, Mapping
from inspect import getattr_static
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import nn

from buildsys.models.user_code import innermost_location

_INTERNAL = frozenset(vars(nn.Module()))  # attributes that torch manages
_SUMMED = (torch.float16, torch.bfloat16, torch.float32)  # fast for large weights
_PLAIN = (str, bytes, int, float, complex, type(None), itertools.count)
State = Mapping[tuple[str, str], Any]  # name, place in the source -> its content


def read_state(module: nn.Module, project: Path) -> State:
    """Read what a call of ``module`` may change.

    Arrays and tensors are replaced by checksums, parameters by their sum.
    """
    state: dict[tuple[str, str], Any] = {}
    places: dict[str, str] = {}
    seen = {id(part) for part in module.modules()}
    for path, part in module.named_modules():
        forward = getattr_static(type(part), "forward", None)  # a script module's is a descriptor
        code = getattr(forward, "__code__", None)
        frames = [(code.co_filename, code.co_firstlineno)] if code else []
        outer = places.get(path.rpartition(".")[0], "")  # for layers of torch
        places[path] = innermost_location(frames, project) or outer
        for name, value in _members(part):
            state[f"{path}.{name}".lstrip("."), places[path]] = _content(value, seen)
    state["random", places[""]] = random.getstate()
    state["numpy.random", places[""]] = _content(np.random.get_state(), seen)
    state["torch.random", places[""]] = _content(torch.get_rng_state(), seen)
    return state


def _members(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the buffers, parameters and plain attributes of one module."""
    for kind in ("_buffers", "_parameters"):
        yield from vars(module).get(kind, {}).items()
    for name, value in vars(module).items():
        if name == "training" or name not in _INTERNAL:
            yield name, value


def _content(value: Any, seen: set[int]) -> Any:
    """Read a value as plain data that can be compared, None for what cannot hold state."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return _tensor_content(value)
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, crc32(value.tobytes())
    if isinstance(value, torch.Generator):
        return _tensor_content(value.get_state())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if id(value) in seen:
        return None
    below = {*seen, id(value)}
    if isinstance(value, Mapping):
        return [(repr(key), _content(member, below)) for key, member in value.items()]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [_content(member, below) for member in value]
    if isinstance(value, nn.Module):  # in a plain list
        return [
            _content(member, below) for _, member in (*_members(value), *value.named_children())
        ]
    return None


def _tensor_content(tensor: torch.Tensor) -> Any:
    kind = tensor.dtype, tensor.shape
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return kind
    if isinstance(tensor, nn.Parameter) and tensor.dtype in _SUMMED:
        return id(tensor), repr(float(tensor.detach().sum(dtype=torch.float32)))
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    return kind, crc32(plain.view(torch.uint8).numpy().data)
