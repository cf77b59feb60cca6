"""YAML 1.2 reader without YAML's pitfalls.

PyYAML alone reads ``1e-3`` as a string, ``on`` as true, ``010`` as 8 and ``12:30`` as 750, keeps
the last of two equal keys and expands aliases without bound, so only its event stream is used.
"""

import re
from pathlib import Path
from typing import Any, NoReturn

import yaml
from yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    StreamEndEvent,
)

from buildsys.errors import ManifestError
from buildsys.manifest.value_tree import FieldPath, Mark, ValueNode, ValueOrigin, plain

MAX_BYTES = 1 << 20
MAX_VALUES = 50_000  # an alias counts at every use
MAX_DEPTH = 50

# libyaml's loader is seven times faster
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"([-+]?)\.(inf|Inf|INF)")
_WORDS = {"": None, "~": None, "null": None, "Null": None, "NULL": None} | {
    spelling: value for word, value in (("true", True), ("false", False))
    for spelling in (word, word.capitalize(), word.upper())
}  # fmt: skip
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def read_yaml(file: Path, content: bytes) -> Any:
    """Read the plain data of a file with one YAML document.

    Raises: ManifestError: not UTF-8, not YAML, too large, or not in the YAML 1.2 core schema.
    """
    return plain(read_nodes(file, content))


def read_nodes(file: Path, content: bytes) -> ValueNode:
    """Read a file with one YAML document, with the position of each value.

    Raises: ManifestError: as for `read_yaml`.
    """
    return _Builder(file, _decode(file, content)).document()


def _decode(file: Path, content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = _end_of(content[: error.start].decode("utf-8", "replace"))
        problem = f"byte 0x{error.object[error.start]:02x} at offset {error.start} is not UTF-8"
        raise ManifestError(file, (), problem, "save the file as UTF-8", line, column) from None
    if bad := _UNPRINTABLE.search(text):
        problem = f"the control character U+{ord(bad[0]):04X} is not allowed in YAML"
        raise ManifestError(file, (), problem, "remove it", *_end_of(text[: bad.start()]))
    return text


def _end_of(before: str) -> tuple[int, int]:
    """Return line and column after some text, both from 1."""
    return before.count("\n") + 1, len(before) - before.rfind("\n")


class _Builder:
    """Builder of one document from its events, bounded in depth and size."""

    def __init__(self, file: Path, text: str) -> None:
        self._file = file
        self._text = text
        self._loader = _Loader(text)
        self._next_event = self._loader.get_event
        self._anchors: dict[str, tuple[ValueNode, int]] = {}  # value, number of values in it
        self._count = 0

    def document(self) -> ValueNode:
        try:
            self._loader.get_event()  # the stream's start
            if self._loader.check_event(StreamEndEvent):
                raise ManifestError(
                    self._file, (), "the file is empty", "remove it, or write its fields", 1, 1
                )
            self._loader.get_event()
            node = self._node(self._loader.get_event(), (), 0)
            self._loader.get_event()
            if not self._loader.check_event(StreamEndEvent):
                event = self._loader.peek_event()
                self._refuse(event, (), "a file must have one document", "remove this one")
        except yaml.MarkedYAMLError as error:
            raise self._syntax_error(error) from None
        finally:
            self._loader.dispose()
        return node

    def _node(
        self, event: Any, path: FieldPath, depth: int, key_mark: Mark | None = None
    ) -> ValueNode:
        self._count += 1
        if self._count > MAX_VALUES:
            self._refuse(event, path, f"the file expands to more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            self._refuse(event, path[:4], f"values are nested more than {MAX_DEPTH} deep")
        origin = ValueOrigin(self._file, path, event.start_mark, key_mark)
        if isinstance(event, AliasEvent):
            return self._aliased(event, path)._replace(origin=origin)
        if event.tag is not None:
            self._refuse(event, path, f"the tag {event.tag} is not allowed", "remove it")
        before = self._count
        if isinstance(event, ScalarEvent):
            node = ValueNode(self._scalar(event, path), origin)
        else:
            read = self._map if isinstance(event, MappingStartEvent) else self._list
            node = ValueNode(read(path, depth), origin)
        if event.anchor is not None:
            self._anchors[event.anchor] = node, self._count - before
        return node

    def _aliased(self, event: Any, path: FieldPath) -> ValueNode:
        """Find the value of an anchor; its parts keep their places."""
        if event.anchor not in self._anchors:
            text = f"alias *{event.anchor} has no complete anchor before it"
            self._refuse(event, path, text, f"define &{event.anchor} first")
        node, count = self._anchors[event.anchor]
        self._count += count
        if self._count > MAX_VALUES:
            self._refuse(event, path, f"the aliases expand to more than {MAX_VALUES} values")
        return node

    def _list(self, path: FieldPath, depth: int) -> list[ValueNode]:
        nodes: list[ValueNode] = []
        while not isinstance(event := self._next_event(), SequenceEndEvent):
            nodes.append(self._node(event, (*path, len(nodes)), depth + 1))
        return nodes

    def _map(self, path: FieldPath, depth: int) -> dict[str, ValueNode]:
        nodes: dict[str, ValueNode] = {}
        while not isinstance(event := self._next_event(), MappingEndEvent):
            name = self._key(event, path)
            below = (*path, name)
            if name in nodes:
                self._refuse(event, below, "duplicate key", "remove one of them")
            nodes[name] = self._node(self._next_event(), below, depth + 1, event.start_mark)
        return nodes

    def _key(self, event: Any, path: FieldPath) -> str:
        """Read a key; an integer (an axis) becomes its digits."""
        if not isinstance(event, ScalarEvent):
            self._refuse(event, path, "a key must be a scalar", "use a string")
        name = self._scalar(event, path)
        if isinstance(name, int) and not isinstance(name, bool):
            return str(name)
        if not isinstance(name, str):
            text = f"key {event.value or 'null'} is not a string"
            self._refuse(event, path, text, f'quote it: "{event.value}"')
        if name == "<<" and event.implicit[0]:
            self._refuse(event, path, "YAML 1.2 has no merge keys (<<)", "use extends")
        return name

    def _scalar(self, event: Any, path: FieldPath) -> Any:
        text: str = event.value
        # most scalars are quoted or names
        if not event.implicit[0] or (text[:1].isalpha() and text not in _WORDS):
            return text
        if text in _WORDS:
            return _WORDS[text]
        for pattern, base in ((_INT, 10), (_OCTAL, 8), (_HEX, 16)):
            if pattern.fullmatch(text):
                number = int(text, base) if len(text) < 100 else 2**64
                if not -(2**63) <= number < 2**64:
                    self._refuse(event, path, "the integer does not fit into 64 bits", "quote it")
                return number
        if _FLOAT.fullmatch(text):
            return float(text)
        if match := _INFINITE.fullmatch(text):
            return float(match[1] + "inf")
        return float("nan") if text in (".nan", ".NaN", ".NAN") else text

    def _refuse(self, event: Any, path: FieldPath, problem: str, hint: str = "") -> NoReturn:
        raise ValueOrigin(self._file, path, event.start_mark).error(problem, hint)

    def _syntax_error(self, error: yaml.MarkedYAMLError) -> ManifestError:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        lines = self._text.split("\n")
        indent = re.match(r"[ \t]*", lines[line - 1] if line <= len(lines) else "")
        if indent and "\t" in indent[0]:
            column = indent[0].index("\t") + 1
            text = "tabs cannot indent YAML"
            return ManifestError(self._file, (), text, "use spaces", line, column)
        context = f" {error.context}" if error.context else ""
        hint = "check the indentation, and quote strings that contain a colon"
        text = f"not valid YAML: {error.problem or 'it cannot be parsed'}{context}"
        return ManifestError(self._file, (), text, hint, line, column)
