"""Manifest values with their origins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FieldPath = tuple["str | int", ...]


class ValueOrigin(NamedTuple):
    """A field of a file."""

    file: Path
    path: FieldPath


class ValueNode(NamedTuple):
    """A scalar, dict or list of nodes, with its origin."""

    value: Any
    origin: ValueOrigin

    def get(self, name: str) -> ValueNode | None:
        """Return a member, or None."""
        return self.value.get(name) if isinstance(self.value, dict) else None

    def items(self) -> Iterator[tuple[str, ValueNode]]:
        """Yield the members of a map; nothing for other values."""
        if isinstance(self.value, dict):
            yield from self.value.items()

    def with_member(self, name: str, member: ValueNode) -> ValueNode:
        """Return this map with one member set."""
        return ValueNode({**self.value, name: member}, self.origin)

    def without(self, *names: str) -> ValueNode:
        """Return this map without some members."""
        kept = {name: node for name, node in self.value.items() if name not in names}
        return ValueNode(kept, self.origin)


def with_origins(value: Any, file: Path, path: FieldPath = ()) -> ValueNode:
    """Return the plain data at ``path`` of ``file`` as nodes."""
    if isinstance(value, dict):
        value = {name: with_origins(item, file, (*path, name)) for name, item in value.items()}
    elif isinstance(value, list):
        value = [with_origins(item, file, (*path, index)) for index, item in enumerate(value)]
    return ValueNode(value, ValueOrigin(file, path))


def text_size(node: ValueNode, most: int) -> int:
    """Return about the number of characters of the data; counting stops above ``most``."""
    value, size = node.value, 8
    if isinstance(value, str):
        return size + len(value)
    if isinstance(value, dict):
        size += sum(map(len, value))
    elif not isinstance(value, list):
        return size
    for member in value.values() if isinstance(value, dict) else value:
        size += text_size(member, most - size)
        if size > most:
            break
    return size


def plain(node: ValueNode) -> Any:
    """Return the data without origins."""
    value = node.value
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items()}
    return [plain(member) for member in value] if isinstance(value, list) else value


def nearest(node: ValueNode, path: FieldPath) -> tuple[ValueNode, FieldPath]:
    """Return the deepest node on ``path`` and the remaining path."""
    for depth, step in enumerate(path):
        members = node.value
        in_list = isinstance(members, list) and isinstance(step, int) and 0 <= step < len(members)
        if not in_list and not (isinstance(members, dict) and step in members):
            return node, path[depth:]
        node = members[step]
    return node, ()


def replace_at(node: ValueNode, path: FieldPath, new: ValueNode) -> ValueNode:
    """Return the tree with ``new`` at ``path``, adding missing maps.

    Raises: LookupError: the path leads through a scalar or past the end of a list.
    """
    if not path:
        return new
    step, rest = path[0], path[1:]
    members = node.value
    if isinstance(members, list):
        index = int(step) if str(step).isdecimal() else -1
        if not 0 <= index < len(members):
            raise LookupError(step)
        changed = [*members]
        changed[index] = replace_at(members[index], rest, new)
        return ValueNode(changed, node.origin)
    if not isinstance(members, dict):
        raise LookupError(step)
    member = members.get(str(step), ValueNode({}, new.origin))
    return node.with_member(str(step), replace_at(member, rest, new))


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
