"""Nodes of the programs of torch.export, also of their branches and loops."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

_MODEL = "models/model.json"  # in the archive
_OPERATOR = re.compile(r"torch\.ops\.(\w+)\.(\w+)\.(\w+)")


class UnknownCall(NamedTuple):
    """A call of an operator that is not registered in this process."""

    operator: str  # as in "my::swish"
    node: str
    trace: str  # "" if the program has none


def unknown_calls(file: Path) -> list[UnknownCall]:
    """List the calls in a saved program that this process cannot load; torch names one."""
    program = json.loads(torch._C.PyTorchFileReader(str(file)).get_record(_MODEL))
    calls = []
    for node in _saved_nodes(program["graph_module"]["graph"]):
        if match := _OPERATOR.fullmatch(node["target"]):
            overloads = getattr(getattr(torch.ops, match[1]), match[2], None)
            if not hasattr(overloads, match[3]):
                trace = node["metadata"].get("stack_trace") or ""
                operator = f"{match[1]}::{match[2]}"
                calls.append(UnknownCall(operator, node.get("name") or "", trace))
    return calls


def _saved_nodes(graph: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for node in graph["nodes"]:
        yield node
        for argument in node["inputs"]:
            if body := argument["arg"].get("as_graph"):
                yield from _saved_nodes(body["graph"])


def captured_nodes(program: torch.export.ExportedProgram) -> Iterator[torch.fx.Node]:
    """Yield the nodes of a captured program."""
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from module.graph.nodes
