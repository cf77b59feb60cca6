"""ExecuTorch programs loaded by the runtime of the package."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from buildsys.backends.captured_program import check_inputs
from buildsys.backends.interface import Port, Profiles, Run
from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.tensors import BIT_DTYPES, Tensor, tensor_of
from buildsys.system.cpu import usable_cores

# a method that returns names, types and ranges: the format itself has positions only
INTERFACE = "buildsys_interface"
DELEGATES = {"xnnpack": "XnnpackBackend"}


class ExecuTorchSession:
    """A loaded engine."""

    profiles: Profiles = ()

    def __init__(self, engine: Path, threads: int, *, largest_first: bool = False) -> None:
        """Load the program; raise StageError for a damaged file or one of another version.

        largest_first: run once with the largest sizes.
        """
        self._engine, self._threads, self._largest_first = engine, threads, largest_first
        self._program, interface = open_program(engine)
        self._dims: Mapping[str, Mapping[str, int]] = interface["dims"]
        self.inputs, self.outputs = (
            tuple(
                Port(port["name"], port["dtype"], tuple(port["shape"])) for port in interface[role]
            )
            for role in ("inputs", "outputs")
        )
        library = load_library()
        if library._threadpool_get_thread_count() != (threads or usable_cores()):
            library._unsafe_reset_threadpool(threads or usable_cores())  # the whole process's
        try:
            self._method = self._program.load_method("forward")
        except RuntimeError as error:
            raise StageError(
                f"ExecuTorch cannot load {engine.name}: {error}",
                "build it with this version of ExecuTorch, or install the one it was built with",
            ) from error
        if largest_first and self._dims:
            self._call([self._zeros(port) for port in self.inputs], clone=False)

    def run(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> dict[str, Tensor]:
        """Return the outputs by name."""
        values = self._call(self._feeds(inputs), clone=True)
        return {
            port.name: _from_torch(value, port.dtype)
            for port, value in zip(self.outputs, values, strict=True)
        }

    def bind(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> Run:
        """Return a call that leaves its outputs in the program's memory."""
        feeds, method = self._feeds(inputs), self._method
        self._call(feeds, clone=False)  # reports wrong inputs
        return lambda: method(feeds, False)

    def close(self) -> None:
        """Free method and program."""
        del self._method, self._program

    def duplicate(self) -> ExecuTorchSession:
        """Make a session with separate memory."""
        return ExecuTorchSession(self._engine, self._threads, largest_first=self._largest_first)

    def _zeros(self, port: Port) -> torch.Tensor:
        """Return an input of the largest size."""
        sizes = [
            self._dims[size]["max"] if isinstance(size, str) else int(size or 1)
            for size in port.shape
        ]
        return torch.zeros(sizes, dtype=getattr(torch, port.dtype))

    def _call(self, feeds: list[torch.Tensor], *, clone: bool) -> Any:
        try:
            return self._method(feeds, clone)
        except (RuntimeError, ValueError) as error:
            text = " ".join(str(error).split())
            raise StageError(
                f"ExecuTorch cannot run the engine: {text}", "the log has ExecuTorch's messages"
            ) from error

    def _feeds(self, inputs: Mapping[str, Tensor]) -> list[torch.Tensor]:
        """Return the inputs in order."""
        check_inputs(self.inputs, self._dims, inputs)  # the runtime checks upper bounds only
        return [_to_torch(inputs[port.name]) for port in self.inputs]


def open_program(engine: Path) -> tuple[Any, dict[str, Any]]:
    """Return the program of a file and its interface."""
    library = load_library()
    if not engine.is_file():
        raise StageError(f"{engine.name} does not exist", "build it")
    problem = "it is damaged, or of another version"
    with contextlib.suppress(RuntimeError, ValueError):
        program = library._load_program(
            str(engine), program_verification=library.Verification.InternalConsistency
        )
        names = [program.get_method_name(index) for index in range(program.num_methods())]
        if INTERFACE in names:
            (text,) = program.load_method(INTERFACE)([])
            return program, json.loads(text)
        problem = "it has no names of inputs and outputs, which a build here writes"
    raise StageError(f"ExecuTorch cannot load {engine.name}: {problem}", "build it again")


@cache
def load_library() -> Any:
    """Load the runtime without the compiler, whose import takes seconds."""
    try:
        from executorch.extension.pybindings import _C
    except ImportError as error:
        raise Unavailable(
            f"the package executorch has no runtime that can be loaded here: {error}",
            "pip install --force-reinstall --no-deps executorch",
        ) from error
    return _C


def _to_torch(tensor: Tensor) -> torch.Tensor:
    array = np.require(tensor.array, requirements=("C", "W"))
    values = torch.from_numpy(array)
    return values.view(getattr(torch, tensor.dtype)) if tensor.dtype in BIT_DTYPES else values


def _from_torch(value: torch.Tensor, dtype: str) -> Tensor:
    value = value.contiguous()
    if dtype in BIT_DTYPES:
        return Tensor(value.view(getattr(torch, BIT_DTYPES[dtype])).numpy(), dtype)
    return tensor_of(value.numpy(), dtype)
