"""Manifest data that remembers who set each value, and how layers of it are laid over each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

Key = tuple["str | int", ...]

_SOURCE_KINDS = frozenset({"torchvision", "python", "onnx"})
_DATA_KINDS = frozenset({"random", "npz", "python", "constant"})


class Origin(NamedTuple):
    """A place in a file: what set a value."""

    file: Path
    key: Key


@dataclass(frozen=True, slots=True)
class Node:
    """A value with its origin; ``value`` is a scalar, a dict of nodes or a list of nodes."""

    value: Any
    origin: Origin

    def get(self, name: str) -> Node | None:
        """Return the member ``name``, or None where this is no map or has no such member."""
        return self.value.get(name) if isinstance(self.value, dict) else None

    def items(self) -> Iterator[tuple[str, Node]]:
        """Yield the members of a map; nothing for other values."""
        if isinstance(self.value, dict):
            yield from self.value.items()

    def with_member(self, name: str, member: Node) -> Node:
        """Return this map with one member set."""
        return Node({**self.value, name: member}, self.origin)

    def without(self, *names: str) -> Node:
        """Return this map without some members."""
        return Node(
            {name: node for name, node in self.value.items() if name not in names}, self.origin
        )


def plant(value: Any, file: Path, key: Key = ()) -> Node:
    """Return plain data as nodes that come from ``key`` and below in ``file``."""
    origin = Origin(file, key)
    if isinstance(value, dict):
        return Node(
            {name: plant(member, file, (*key, name)) for name, member in value.items()}, origin
        )
    if isinstance(value, list):
        return Node(
            [plant(member, file, (*key, index)) for index, member in enumerate(value)], origin
        )
    return Node(value, origin)


def plain(node: Node) -> Any:
    """Return the data of a tree without the origins."""
    value = node.value
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items()}
    return [plain(member) for member in value] if isinstance(value, list) else value


def nearest(node: Node, key: Key) -> tuple[Node, Key]:
    """Return the deepest node on the way to ``key``, and the part of the key that leads beyond it."""
    for depth, step in enumerate(key):
        members = node.value
        in_list = isinstance(members, list) and isinstance(step, int) and 0 <= step < len(members)
        if not in_list and not (isinstance(members, dict) and step in members):
            return node, key[depth:]
        node = members[step]
    return node, ()


def merge(under: Node, over: Node, key: Key = ()) -> Node:
    """Lay ``over`` on ``under``: maps join member by member, anything else is replaced.

    A `source` or an input's `data` of another kind replaces the whole map, and so does a weights file.
    """
    if (
        not isinstance(under.value, dict)
        or not isinstance(over.value, dict)
        or _replaces(under, over, key)
    ):
        return over
    members = dict(under.value)
    for name, member in over.value.items():
        members[name] = merge(members[name], member, (*key, name)) if name in members else member
    return Node(members, over.origin)


def replace_at(node: Node, key: Key, new: Node) -> Node:
    """Return the tree with the value at ``key`` set; maps on the way that are missing are made.

    Raises: LookupError: the way leads through a scalar or past the end of a list.
    """
    if not key:
        return new
    step, rest = key[0], key[1:]
    members = node.value
    if isinstance(members, list):
        index = int(step) if str(step).isdecimal() else -1
        if not 0 <= index < len(members):
            raise LookupError(step)
        changed = [*members]
        changed[index] = replace_at(members[index], rest, new)
        return Node(changed, node.origin)
    if not isinstance(members, dict):
        raise LookupError(step)
    member = members.get(str(step), Node({}, new.origin))
    return node.with_member(str(step), replace_at(member, rest, new))


def leaves(node: Node, key: Key = ()) -> Iterator[tuple[Key, Node]]:
    """Yield every scalar, list of scalars and empty map of a tree with its key."""
    if isinstance(node.value, dict) and node.value:
        for name, member in node.value.items():
            yield from leaves(member, (*key, name))
    elif isinstance(node.value, list) and any(
        isinstance(member.value, (dict, list)) for member in node.value
    ):
        for index, member in enumerate(node.value):
            yield from leaves(member, (*key, index))
    else:
        yield key, node


def _replaces(under: Node, over: Node, key: Key) -> bool:
    if key == ("source",):
        return _differ(under, over, _SOURCE_KINDS)
    if len(key) == 3 and key[0] == "inputs" and key[2] == "data":
        return _differ(under, over, _DATA_KINDS)
    return key == ("source", "weights") and "file" in over.value


def _differ(under: Node, over: Node, kinds: frozenset[str]) -> bool:
    asked = kinds & over.value.keys()
    return bool(asked) and asked != kinds & under.value.keys()
