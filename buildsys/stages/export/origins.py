"""From which line of the user's code each node of an exported graph comes, kept aside from the graph.

The exporters write it into the file, from where it is stripped, because a moved line must not rebuild anything. Here
it becomes a file of its own that only the words of later errors use.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import onnx

from buildsys.models.user_code import innermost_location
from buildsys.onnx_graphs.onnx_file import all_nodes
from buildsys.onnx_graphs.source_origins import SCHEMA, Origin

# torch.export: outermost frame first; TorchScript's doc strings: innermost first
_CAPTURED = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in ')
_TRACED = re.compile(r"^(?P<file>\S.*)\((?P<line>\d+)\): ", re.MULTILINE)
_TRACER = "/torch/jit/_trace.py"
_STACK, _SCOPES = "pkg.torch.onnx.stack_trace", "pkg.torch.onnx.name_scopes"


def node_origins(model: onnx.ModelProto, project: Path) -> dict[str, Origin]:
    """Return the origin of every tensor that a node of the graph makes, where the exporter has told one."""
    lines: dict[str, str] = {}  # many nodes come from one call
    found: dict[str, Origin] = {}
    for node in all_nodes(model.graph):
        notes = {
            entry.key: entry.value
            for entry in node.metadata_props
            if entry.key in (_STACK, _SCOPES)
        }
        trace = notes.get(_STACK) or node.doc_string
        if trace and trace not in lines:
            lines[trace] = source_line(trace, project)
        origin = Origin(lines.get(trace, ""), _scope(notes.get(_SCOPES, ""), node.name))
        if any(origin):
            found.update(dict.fromkeys(filter(None, node.output), origin))
    return found


def source_line(trace: str, project: Path) -> str:
    """Return ``file:line`` of a trace's innermost frame in user code, else in a library."""
    return innermost_location(list(_frames(trace)), project)


def write_origins(origins: dict[str, Origin], path: Path) -> None:
    """Write them so that what many nodes share is written once."""
    lines = list(dict.fromkeys(origin.line for origin in origins.values()))
    modules = list(dict.fromkeys(origin.module for origin in origins.values()))
    at_line, at_module = (
        {text: index for index, text in enumerate(texts)} for texts in (lines, modules)
    )
    tensors = {
        name: [at_line[origin.line], at_module[origin.module]] for name, origin in origins.items()
    }
    content = {"schema": SCHEMA, "lines": lines, "modules": modules, "tensors": tensors}
    path.write_text(
        json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8"
    )


def _frames(trace: str) -> Iterator[tuple[str, int]]:
    captured = [(match["file"], int(match["line"])) for match in _CAPTURED.finditer(trace)]
    if captured:
        yield from reversed(captured)
        return
    for match in _TRACED.finditer(trace):
        if match["file"].endswith(_TRACER):  # from here on it is who called the exporter
            return
        yield match["file"], int(match["line"])


def _scope(scopes: str, node: str) -> str:
    """Return the path of the module that a node lies in: ``layers.0.conv``."""
    try:
        names = ast.literal_eval(scopes)[:-1] if scopes else node.split("/")[:-1]
    except (ValueError, SyntaxError):
        return ""
    path: list[str] = []
    for name in filter(
        None, map(str, names)
    ):  # whole, relative to the module around, or to the last but one
        if path and name.startswith(f"{'.'.join(path)}."):
            path = [name]
        elif path and name.startswith(f"{path[-1]}."):
            path[-1] = name
        else:
            path.append(name)
    return ".".join(path)
