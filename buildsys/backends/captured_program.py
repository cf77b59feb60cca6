"""Programs of torch.export, for backends built from them."""

import json
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from buildsys.backends.interface import BuildRequest, Port, UnsupportedNode, raise_refused
from buildsys.errors import BuildsysError, StageError
from buildsys.models.program_nodes import unknown_calls
from buildsys.onnx_graphs.tensors import BIT_DTYPES, Tensor, tensor_of

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


def ordered_inputs(ports: Iterable[Port], inputs: Mapping[str, Tensor]) -> list[torch.Tensor]:
    """Convert the inputs of an engine to contiguous tensors, in order."""
    tensors = []
    for port in ports:
        array = np.require(inputs[port.name].array, requirements=("C", "W"))
        tensors.append(torch.from_numpy(array).view(getattr(torch, port.dtype)))
    return tensors


def named_outputs(ports: Iterable[Port], values: Iterable[torch.Tensor]) -> dict[str, Tensor]:
    """Convert the outputs of an engine, in order, to arrays by name."""
    outputs = {}
    for port, value in zip(ports, values, strict=True):
        if bits := BIT_DTYPES.get(port.dtype):
            array = value.contiguous().view(getattr(torch, bits)).numpy()
            outputs[port.name] = Tensor(array, port.dtype)
        else:
            outputs[port.name] = tensor_of(value.contiguous().numpy(), port.dtype)
    return outputs


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
