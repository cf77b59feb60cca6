"""Source lines of an exported graph's nodes, in a separate advisory file.

The exporters write them into the model. They are stripped from it, because a moved line must not
rebuild anything, and kept in a file used only for messages of later errors. Other metadata with
differences between checkouts are stripped as well.
"""

import json
from collections.abc import Iterator, MutableSequence
from pathlib import Path
from typing import Any

import onnx

from buildsys.models.user_code import source_line
from buildsys.onnx_graphs.onnx_file import all_nodes
from buildsys.onnx_graphs.source_origins import SCHEMA

_STACK = "pkg.torch.onnx.stack_trace"
# ``pkg.``: stack traces with paths and lines of the user's checkout, symbols and parameters of the
# captured program, folded constants; ``namespace``: file, class and modules of a node
_TRACES = ("pkg.", "namespace")


def node_origins(model: onnx.ModelProto, project: Path) -> dict[str, str]:
    """Map tensors to source lines, as far as the exporter recorded them."""
    lines: dict[str, str] = {}  # many nodes come from one call
    origins: dict[str, str] = {}
    for node in all_nodes(model.graph):
        notes = {entry.key: entry.value for entry in node.metadata_props}
        trace = notes.get(_STACK) or node.doc_string
        if trace and trace not in lines:
            lines[trace] = source_line(trace, project)
        if line := lines.get(trace):
            origins.update(dict.fromkeys(filter(None, node.output), line))
    return origins


def write_origins(origins: dict[str, str], path: Path) -> None:
    """Write the origins."""
    content = {"schema": SCHEMA, "tensors": origins}
    path.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


def strip_traces(model: onnx.ModelProto) -> None:
    """Remove the exporter's traces, doc strings and version.

    Node and tensor names stay, as do metadata and doc string of the model itself, set by people.
    """
    for part in (model.graph, *model.functions):
        for message in _messages(part):
            entries = [e for e in message.metadata_props if not e.key.startswith(_TRACES)]
            if len(entries) < len(message.metadata_props):
                del message.metadata_props[:]
                message.metadata_props.extend(entries)
            message.ClearField("doc_string")
    # a new version (2.14.1, 2.14.1+cu130) need not change any node
    model.ClearField("producer_version")


def _messages(message: Any) -> Iterator[Any]:
    """Yield all messages with metadata, also of subgraphs."""
    if hasattr(message, "metadata_props"):
        yield message
    for field, value in message.ListFields():
        if field.message_type:
            for member in value if isinstance(value, MutableSequence) else [value]:
                yield from _messages(member)
