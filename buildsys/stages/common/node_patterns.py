"""Names of nodes: patterns in the manifest, and places in messages."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from onnx import ModelProto, NodeProto

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import load_model
from buildsys.onnx_graphs.tensor_types import FreshNames
from buildsys.system.printable import nearest


def node_name(node: NodeProto) -> str:
    """Return the name of a node, or one from its operator and first output."""
    return node.name or f"{node.op_type}_{node.output[0]}"


def named_nodes(model: ModelProto) -> None:
    """Give every node of the main graph a unique name."""
    fresh, taken = FreshNames(model.graph), set()
    for node in model.graph.node:
        if not node.name or node.name in taken:
            node.name = fresh.new(node_name(node))
        taken.add(node.name)


def load_named_model(file: Path) -> ModelProto:
    """Read a graph and give every node a unique name."""
    model = load_model(file)
    named_nodes(model)
    return model


def matching_pattern(name: str, patterns: Sequence[str]) -> str:
    """Find the first pattern that equals or matches a name, or ""."""
    return next((p for p in patterns if name == p or fnmatchcase(name, p)), "")


def check_patterns(
    field: str, patterns: Sequence[str], names: Sequence[str], what: str = "node"
) -> None:
    """Raise StageError for a pattern without a match."""
    for pattern in patterns:
        if not any(matching_pattern(name, [pattern]) for name in names):
            near = nearest(pattern, names, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?"
            examples = f"some names: {', '.join(names[:5])}" if names else ""
            raise StageError(f"{field}: {pattern} matches no {what}", hint if near else examples)


def matching_names(
    field: str, patterns: Sequence[str], names: Sequence[str], what: str
) -> list[str]:
    """List the names that match. Raises: StageError: a pattern has no match."""
    check_patterns(field, patterns, names, what)
    return [name for name in names if matching_pattern(name, patterns)]


@dataclass(frozen=True)
class TensorOrigin:
    """A tensor and its node; the operator of a graph input is empty."""

    tensor: str
    operator: str = ""
    node: str = ""

    def __str__(self) -> str:
        """Name all three, followed by a comma."""
        if not self.operator:
            return f"{self.tensor}, an input of the graph,"
        node = f"node {self.node}" if self.node else "an unnamed node"
        return f"{self.tensor}, of {self.operator} ({node}),"


def tensor_origin(tensor: str, nodes: Iterable[NodeProto]) -> TensorOrigin:
    """Find the node that computes a tensor."""
    node = next((node for node in nodes if tensor in node.output), None)
    return TensorOrigin(tensor) if node is None else TensorOrigin(tensor, node.op_type, node.name)
