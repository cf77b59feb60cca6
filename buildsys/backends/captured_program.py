"""Programs of torch.export, for backends built from them."""

import json
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from buildsys.backends.interface import BuildRequest, UnsupportedNode, raise_refused
from buildsys.errors import BuildsysError, StageError
from buildsys.models.program_nodes import unknown_calls

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
