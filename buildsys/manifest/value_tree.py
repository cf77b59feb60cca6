"""Manifest values with their origins."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from buildsys.errors import ManifestError

FieldPath = tuple["str | int", ...]


class Mark(Protocol):
    """A position in a file, counted from 0."""

    line: int
    column: int


class ValueOrigin(NamedTuple):
    """A field of a file, with the positions of its value and name."""

    file: Path
    path: FieldPath
    mark: Mark | None = None
    key_mark: Mark | None = None

    def error(self, problem: str, hint: str = "", *, of_key: bool = False) -> ManifestError:
        """Return an error about the field, located at its name with ``of_key``."""
        mark = (self.key_mark if of_key else None) or self.mark
        position = (mark.line + 1, mark.column + 1) if mark else ()
        return ManifestError(self.file, self.path, problem, hint, *position)

    def line(self) -> str:
        """Return ``file:line`` of the value."""
        return f"{self.file}:{self.mark.line + 1}" if self.mark else str(self.file)


class ValueNode(NamedTuple):
    """A scalar, dict or list of nodes, with its origin."""

    value: Any
    origin: ValueOrigin

    def get(self, name: str) -> "ValueNode | None":
        """Return a member, or None."""
        return self.value.get(name) if isinstance(self.value, dict) else None

    def items(self) -> "Iterator[tuple[str, ValueNode]]":
        """Yield the members of a map; nothing for other values."""
        if isinstance(self.value, dict):
            yield from self.value.items()

    def entries(self) -> "list[ValueNode]":
        """List the entries of a list; nothing for other values."""
        return self.value if isinstance(self.value, list) else []

    def with_member(self, name: str, member: "ValueNode") -> "ValueNode":
        """Return this map with one member set."""
        return ValueNode({**self.value, name: member}, self.origin)

    def without(self, *names: str) -> "ValueNode":
        """Return this map without some members."""
        members = {name: node for name, node in self.value.items() if name not in names}
        return ValueNode(members, self.origin)

    def error(self, problem: str, hint: str = "", *, of_key: bool = False) -> ManifestError:
        """Return an error about this value."""
        return self.origin.error(problem, hint, of_key=of_key)


def plain(node: ValueNode) -> Any:
    """Convert a node to data without origins."""
    value = node.value
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items()}
    return [plain(member) for member in value] if isinstance(value, list) else value


def nearest(node: ValueNode, path: FieldPath) -> tuple[ValueNode, FieldPath]:
    """Find the deepest node on ``path``; return it and the remaining path."""
    for depth, step in enumerate(path):
        member = _member(node, step)
        if member is None:
            return node, path[depth:]
        node = member
    return node, ()


def replace_at(node: ValueNode, path: FieldPath, new: ValueNode) -> ValueNode:
    """Return the tree with ``new`` at ``path``, adding missing maps.

    Raises: LookupError: the path leads through a scalar or past the end of a list.
    """
    if not path:
        return new
    member = _member(node, path[0])
    if isinstance(node.value, dict):
        changed = replace_at(member or ValueNode({}, new.origin), path[1:], new)
        return node.with_member(str(path[0]), changed)
    if member is None:
        raise LookupError(path[0])
    entries = [*node.value]
    entries[int(path[0])] = replace_at(member, path[1:], new)
    return ValueNode(entries, node.origin)


def _member(node: ValueNode, step: str | int) -> ValueNode | None:
    """Find the member of a map or list; digits are an index."""
    if isinstance(node.value, list):
        index = int(step) if str(step).isdecimal() else len(node.value)
        return node.value[index] if index < len(node.value) else None
    return node.get(str(step))


def leaves(node: ValueNode, path: FieldPath = ()) -> Iterator[tuple[FieldPath, ValueNode]]:
    """Yield every scalar, list of scalars and empty map."""
    value = node.value
    if isinstance(value, dict) and value:
        for name, member in value.items():
            yield from leaves(member, (*path, name))
    elif isinstance(value, list) and any(isinstance(item.value, (dict, list)) for item in value):
        for index, member in enumerate(value):
            yield from leaves(member, (*path, index))
    else:
        yield path, node


def error_at(
    tree: ValueNode, path: FieldPath, problem: str, hint: str = "", *, of_key: bool = False
) -> ManifestError:
    """Return an error at ``path``, in the file of the value.

    A field that no file set is located in its nearest parent.
    """
    node, missing = nearest(tree, path)
    origin = node.origin
    if missing:
        origin = origin._replace(path=(*origin.path, *missing), key_mark=None)
    return origin.error(problem, hint, of_key=of_key)
