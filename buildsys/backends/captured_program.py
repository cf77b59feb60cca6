"""Programs of torch.export, for backends built from them."""

from __future__ import annotations

import json
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from buildsys.backends.interface import BuildRequest, Port, UnsupportedNode, raise_refused
from buildsys.errors import BuildsysError, StageError
from buildsys.onnx_graphs.tensors import Tensor

PORTS = "ports.json"  # in the archive
_MODEL = "models/model.json"
_TARGET = re.compile(r"torch\.ops\.(\w+)\.(\w+)\.(\w+)")


def load_captured(
    request: BuildRequest, library: str
) -> tuple[torch.export.ExportedProgram, dict[str, Any]]:
    """Return the captured program and its inputs and outputs.

    Raises: GraphRefusedError: it calls operators that only the network's own code registers.
    """
    if nodes := unknown_operators(request, library):
        raise_refused(request, library, nodes)
    files = {PORTS: ""}
    program = torch.export.load(str(request.program), extra_files=files)
    return program, json.loads(files[PORTS])


def unknown_operators(request: BuildRequest, library: str) -> list[UnsupportedNode]:
    """Return the calls of operators from outside PyTorch."""
    reader = torch._C.PyTorchFileReader(str(request.program))
    nodes = json.loads(reader.get_record(_MODEL))["graph_module"]["graph"]["nodes"]
    found = []
    for index, node in enumerate(nodes):
        match = _TARGET.fullmatch(str(node.get("target", "")))
        if match and not hasattr(getattr(torch.ops, match[1]), match[2]):
            outputs = [each.get("as_tensor") or {} for each in node.get("outputs", ())]
            name = next((each["name"] for each in outputs if "name" in each), "")
            reason = f"{library} has no implementation of an operator of your own"
            found.append(UnsupportedNode(index, name, f"{match[1]}::{match[2]}", reason))
    return found


@contextmanager
def one_sentence(
    what: str, hint: str, explain: Callable[[str], StageError | None] = lambda _: None
) -> Iterator[None]:
    """Turn exceptions of a compiler, of any class, into one sentence about ``what`` failed.

    ``explain`` may return another error for the compiler's text.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on the compiler's own code
            yield
    except BuildsysError:
        raise
    except Exception as error:
        traceback.print_exception(error)  # to the log: the message has its first part only
        text = " ".join(str(error).split())
        known = explain(text)
        problem = f"{what}: {type(error).__name__}: {text[:300]}"
        raise known or StageError(problem, hint) from error


def check_inputs(
    ports: Sequence[Port], dims: Mapping[str, Mapping[str, int]], inputs: Mapping[str, Tensor]
) -> None:
    """Compare ``inputs`` with the names, types and shapes of an engine's ``ports``.

    Raises: StageError: one is missing or does not fit.
    """
    sizes: dict[str, int] = {}
    for port in ports:
        if port.name not in inputs:
            raise StageError(f"the engine needs the input {port.name}", "pass all inputs by name")
        tensor = inputs[port.name]
        if tensor.dtype != port.dtype:
            raise StageError(
                f"the input {port.name} is {tensor.dtype}, and the engine needs {port.dtype}",
                "convert the array first",
            )
        _check_shape(port, tensor.shape, dims, sizes)


def _check_shape(
    port: Port,
    shape: tuple[int, ...],
    dims: Mapping[str, Mapping[str, int]],
    sizes: dict[str, int],
) -> None:
    shown = f"the input {port.name} has the shape {list(shape)}"
    if len(shape) != len(port.shape):
        raise StageError(f"{shown}, and the engine needs {len(port.shape)} dimensions")
    for size, wanted in zip(shape, port.shape, strict=True):
        if isinstance(wanted, str):
            span, known = dims[wanted], sizes.setdefault(wanted, size)
            if not span["min"] <= size <= span["max"]:
                raise StageError(
                    f"{shown}, but the engine was built for {wanted} {span['min']} to"
                    f" {span['max']}",
                    f"widen dims.{wanted} and build it again",
                )
            if size != known:
                text = f"{shown}: {wanted} is {size} there, and {known} in another place"
                raise StageError(text)
        elif size != wanted:
            raise StageError(f"{shown}, and the engine needs {list(port.shape)}")
