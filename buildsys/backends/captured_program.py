"""Programs of torch.export, for backends built from them."""

import json
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from buildsys.backends.interface import (
    BuildRequest,
    Port,
    UnsupportedNode,
    raise_refused,
    required_input,
)
from buildsys.errors import BuildsysError, StageError
from buildsys.models.program_nodes import unknown_calls
from buildsys.onnx_graphs.tensors import Tensor

PORTS = "ports.json"  # in the archive


def load_captured(
    request: BuildRequest, library: str
) -> tuple[torch.export.ExportedProgram, dict[str, Any]]:
    """Load the captured program and its inputs and outputs.

    Raises: GraphRefusedError: it calls operators that only the network's own code registers.
    """
    files = {PORTS: ""}
    hint = "custom operators need a decomposition into PyTorch's operators"
    with one_sentence(f"model {request.model}: {library} cannot read the program", hint):
        reason = f"{library} has no implementation of an operator of your own"
        nodes = [
            UnsupportedNode(None, call.node, call.operator, reason)
            for call in unknown_calls(request.program)
        ]
        if nodes:
            raise_refused(request, library, nodes)
        program = torch.export.load(str(request.program), extra_files=files)
    return program, json.loads(files[PORTS])


def ports_of(entries: Sequence[Mapping[str, Any]]) -> tuple[Port, ...]:
    """Read the inputs or outputs in an engine's description of itself."""
    return tuple(Port(entry["name"], entry["dtype"], tuple(entry["shape"])) for entry in entries)


@contextmanager
def one_sentence(what: str, hint: str) -> Iterator[None]:
    """Turn exceptions of a compiler, of any class, into one sentence about ``what`` failed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on the compiler's own code
            yield
    except BuildsysError:
        raise
    except Exception as error:
        traceback.print_exception(error)  # to the log: the message has its first part only
        text = " ".join(str(error).split())[:300]
        raise StageError(f"{what}: {type(error).__name__}: {text}", hint) from error


def check_inputs(
    ports: Sequence[Port], dims: Mapping[str, Mapping[str, int]], inputs: Mapping[str, Tensor]
) -> None:
    """Compare ``inputs`` with the names, types and shapes of an engine's ``ports``.

    Raises: StageError: one is missing or does not fit.
    """
    sizes: dict[str, int] = {}
    for port in ports:
        shape = required_input(port, inputs).shape
        fits = len(shape) == len(port.shape)
        for size, expected in zip(shape, port.shape, strict=False):
            if isinstance(expected, str):
                span = dims[expected]
                fits &= span["min"] <= size <= span["max"]
                fits &= sizes.setdefault(expected, size) == size
            else:
                fits &= size == expected
        if not fits:
            ranges = [f", {name} {span['min']} to {span['max']}" for name, span in dims.items()]
            text = f"the input {port.name} has the shape {list(shape)}, but the engine was built"
            hint = "pass another shape, or widen dims and build it again"
            raise StageError(f"{text} for {list(port.shape)}{''.join(ranges)}", hint)
