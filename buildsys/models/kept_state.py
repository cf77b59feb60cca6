"""What a network keeps between calls: buffers, attributes, and globals of the user's code."""

import itertools
import random
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from inspect import getattr_static
from pathlib import Path
from types import CellType, FunctionType, ModuleType
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import nn

from buildsys.models.user_code import innermost_location
from buildsys.system.code_kinds import display_name, is_user_code

_DEEPEST = 8  # levels of containers and objects
_CLOCKS = {"monotonic", "now", "perf_counter", "time_ns", "today", "utcnow"}
_INTERNAL = frozenset(vars(nn.Module()))  # attributes that torch manages
_SUMMED = (torch.float16, torch.bfloat16, torch.float32)  # fast for large weights
_PLAIN = (str, bytes, int, float, complex, type(None), itertools.count)
State = Mapping[tuple[str, str], Any]  # name, place in the source -> its content


def read_state(module: nn.Module, project: Path) -> State:
    """Read what a call of ``module`` may change.

    Arrays and tensors are replaced by checksums, parameters by their sum.
    """
    files = {
        name: file
        for name, user in [*sys.modules.items()]
        if (file := _user_file(user, project)) and not name.startswith("buildsys.")
    }
    reader = _Reader(files, module)
    state: dict[tuple[str, str], Any] = {}
    places: dict[str, str] = {}
    for path, part in module.named_modules():
        forward = getattr_static(type(part), "forward", None)  # a script module's is a descriptor
        code = getattr(forward, "__code__", None)
        frames = [(code.co_filename, code.co_firstlineno)] if code else []
        outer = places.get(path.rpartition(".")[0], "")  # for layers of torch
        places[path] = innermost_location(frames, project) or outer
        kind = f"{path}.{type(part).__name__}".lstrip(".")
        state[kind, places[path]] = reader.content(type(part))
        for name, content in reader.members(part):
            state[f"{path}.{name}".lstrip("."), places[path]] = content
    for name, file in files.items():
        for variable, value in [*vars(sys.modules[name]).items()]:
            if not variable.startswith("__"):
                state[variable, file] = reader.content(value)
    state["random", places[""]] = random.getstate()
    state["numpy.random", places[""]] = reader.content(np.random.get_state())
    state["torch.random", places[""]] = reader.content(torch.get_rng_state())
    return state


def clock_place(module: nn.Module, project: Path) -> str:
    """Find the forward that names a clock, as ``file:line``, or ""."""
    for part in module.modules():
        forward = getattr_static(type(part), "forward", None)
        if isinstance(forward, FunctionType):
            code, names = forward.__code__, set(forward.__code__.co_names)
            has_module = "time" in names and forward.__globals__.get("time") is time
            if has_module or names & _CLOCKS:
                return innermost_location([(code.co_filename, code.co_firstlineno)], project)
    return ""


def _user_file(module: ModuleType, project: Path) -> str:
    """Name the file of a module of the user's code, or ""."""
    file = getattr(module, "__file__", None)
    return display_name(file, project) if file and is_user_code(file) else ""


def _tensor_content(tensor: torch.Tensor) -> Any:
    kind = tensor.dtype, tensor.shape
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return kind
    if isinstance(tensor, nn.Parameter) and tensor.dtype in _SUMMED:
        return id(tensor), repr(float(tensor.detach().sum(dtype=torch.float32)))
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    return kind, crc32(plain.view(torch.uint8).numpy().data)


class _Reader:
    """Reads values as plain data that can be compared; each object once."""

    def __init__(self, user_modules: Mapping[str, str], root: nn.Module) -> None:
        self._user_modules = user_modules
        # keeps the objects, so that no identity returns
        self._seen: dict[int, Any] = {id(part): part for part in root.modules()}

    def members(self, module: nn.Module, depth: int = 0) -> Iterator[tuple[str, Any]]:
        """Yield buffers and plain attributes of one module with their contents."""
        own = {name: v for name, v in vars(module).items() if name not in _INTERNAL - {"training"}}
        parameters = module.__dict__.get("_parameters", {})
        for name, value in {**module.__dict__.get("_buffers", {}), **parameters, **own}.items():
            yield name, self.content(value, depth)

    def content(self, value: Any, depth: int = 0) -> Any:
        """Read a value; what cannot hold state of forward is None."""
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, torch.Tensor):
            return _tensor_content(value)
        if isinstance(value, np.ndarray):
            return value.dtype, value.shape, crc32(value.tobytes())
        if isinstance(value, torch.Generator):
            return crc32(value.get_state().numpy().data)
        if isinstance(value, np.random.Generator):
            return repr(value.bit_generator.state)
        if isinstance(value, np.random.RandomState | random.Random):
            return repr(value.get_state() if hasattr(value, "get_state") else value.getstate())
        if depth == _DEEPEST or id(value) in self._seen:
            return None
        self._seen[id(value)] = value
        deeper = depth + 1
        if isinstance(value, Mapping):
            return [(repr(key), self.content(member, deeper)) for key, member in value.items()]
        if isinstance(value, list | tuple | set | frozenset | deque):
            return [self.content(member, deeper) for member in value]
        if isinstance(value, nn.Module):
            return [*self.members(value, deeper)]
        if isinstance(value, FunctionType):
            cells = [c.cell_contents for c in value.__closure__ or () if c != CellType()]
            kept = (value.__defaults__, value.__kwdefaults__, vars(value), cells)
            return self.content(kept, deeper) if value.__module__ in self._user_modules else None
        owner = value if isinstance(value, type) else type(value)
        if owner.__module__ in self._user_modules and hasattr(value, "__dict__"):
            return self.content(dict(vars(value)), deeper)
        return None
