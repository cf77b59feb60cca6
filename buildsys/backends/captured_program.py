"""Programs of torch.export, for backends built from them."""

from __future__ import annotations

import json
import re
from typing import Any

import torch

from buildsys.backends.interface import BuildRequest, UnsupportedNode, raise_refused

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
