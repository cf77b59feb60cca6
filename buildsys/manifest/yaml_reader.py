"""YAML text to plain data, with the scalars of YAML 1.2 and every trap of YAML refused by line and column.

PyYAML alone reads ``1e-3`` as a string, ``on`` as true, ``010`` as 8 and ``12:30`` as 750, keeps the last
of two equal keys and expands aliases without bound. So only its event stream is used here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from buildsys.errors import ManifestError

Key = tuple["str | int", ...]
Mark = tuple[int, int]  # line and column, both from 1

MAX_BYTES = 1 << 20
MAX_VALUES = 50_000  # with every alias counted as often as it is used
MAX_DEPTH = 50

_Loader: Any = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)  # seven times faster where libyaml is there
_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"([-+]?)\.(inf|Inf|INF)")
_WORDS = {"": None, "~": None, "null": None, "Null": None, "NULL": None} | {
    spelling: value for word, value in (("true", True), ("false", False))
    for spelling in (word, word.capitalize(), word.upper())
}  # fmt: skip
_NAN = (".nan", ".NaN", ".NAN")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAG = "tag:yaml.org,2002:"
_TAGGED: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "null": (type(None),),
}


@dataclass(frozen=True)
class Positions:
    """Where the keys and the values of a YAML file stand."""

    keys: dict[Key, Mark] = field(default_factory=dict)
    values: dict[Key, Mark] = field(default_factory=dict)

    def find(self, key: Key, *, of_key: bool) -> Mark | None:
        """Return the mark of ``key``, or of the nearest part of the file around it."""
        if of_key and key in self.keys:
            return self.keys[key]
        while key and key not in self.values:
            key = key[:-1]
        return self.values.get(key)


def read_yaml(file: Path, content: bytes) -> Any:
    """Return the data of the one YAML document in ``content``; ``file`` is what errors name.

    Raises: ManifestError: not UTF-8, not YAML, too large, or a construct that YAML 1.2's core lacks.
    """
    return _Builder(file, _decode(file, content), None).document()


def read_positions(file: Path, content: bytes) -> Positions:
    """Return the positions in a file that `read_yaml` has accepted; kept apart, as only errors need them."""
    positions = Positions()
    _Builder(file, _decode(file, content), positions).document()
    return positions


def _decode(file: Path, content: bytes) -> str:
    if len(content) > MAX_BYTES:
        raise ManifestError(
            file, (), f"the file has {len(content) / 2**20:.1f} MiB, a manifest at most 1 MiB"
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = _mark(content[: error.start].decode("utf-8", "replace"))
        problem = f"byte 0x{error.object[error.start]:02x} at offset {error.start} is not UTF-8"
        raise ManifestError(file, (), problem, "save the file as UTF-8", line, column) from None
    if bad := _UNPRINTABLE.search(text):
        problem = f"the control character U+{ord(bad[0]):04X} is not allowed in YAML"
        raise ManifestError(file, (), problem, "", *_mark(text[: bad.start()]))
    return text


def _mark(before: str) -> Mark:
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


class _Builder:
    """Build the data of one document from its events; depth and size are bounded, so recursion is too."""

    def __init__(self, file: Path, text: str, positions: Positions | None) -> None:
        self._file = file
        self._text = text
        self._positions = positions
        self._loader = _Loader(text)
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._count = 0

    def document(self) -> Any:
        try:
            self._loader.get_event()  # the stream's start
            if self._loader.check_event(yaml.StreamEndEvent):
                raise ManifestError(self._file, (), "the file is empty", "", 1, 1)
            self._loader.get_event()
            value = self._value((), 0)
            self._loader.get_event()
            if not self._loader.check_event(yaml.StreamEndEvent):
                self._refuse(
                    self._loader.peek_event(), (), "a second document starts here; a file holds one"
                )
        except yaml.MarkedYAMLError as error:
            raise self._syntax_error(error) from None
        finally:
            self._loader.dispose()
        return value

    def _value(self, key: Key, depth: int) -> Any:
        event = self._loader.get_event()
        self._count += 1
        if self._count > MAX_VALUES:
            self._refuse(event, key, f"the file expands to more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            self._refuse(event, key[:4], f"values are nested more than {MAX_DEPTH} deep")
        if self._positions is not None:
            self._positions.values[key] = _start(event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, key)
        before = self._count
        value = self._node(event, key, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, self._count - before)
        return value

    def _node(self, event: Any, key: Key, depth: int) -> Any:
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, key)
        wanted, word = (
            ("map", "a map") if isinstance(event, yaml.MappingStartEvent) else ("seq", "a list")
        )
        if event.tag not in (None, "!", _TAG + wanted):
            self._refuse(event, key, f"the tag {event.tag} does not fit {word}", "leave it out")
        return self._map(key, depth) if wanted == "map" else self._list(key, depth)

    def _alias(self, event: Any, key: Key) -> Any:
        if event.anchor not in self._anchors:
            self._refuse(event, key, f"the alias *{event.anchor} has no finished anchor before it")
        value, size = self._anchors[event.anchor]
        self._count += size
        if self._count > MAX_VALUES:
            self._refuse(event, key, f"the aliases expand to more than {MAX_VALUES} values")
        return value

    def _list(self, key: Key, depth: int) -> list[Any]:
        values: list[Any] = []
        while not self._loader.check_event(yaml.SequenceEndEvent):
            values.append(self._value((*key, len(values)), depth + 1))
        self._loader.get_event()
        return values

    def _map(self, key: Key, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not self._loader.check_event(yaml.MappingEndEvent):
            event = self._loader.get_event()
            name = self._key(event, key)
            if name in values:
                self._refuse(event, (*key, name), "the key is given twice", "keep one of them")
            below = (*key, name)
            if self._positions is not None:
                self._positions.keys[below] = _start(event)
            values[name] = self._value(below, depth + 1)
        self._loader.get_event()
        return values

    def _key(self, event: Any, key: Key) -> str:
        """Return the text of a key; a whole number, as in the axes of ``dynamic_axes``, is its digits."""
        if not isinstance(event, yaml.ScalarEvent):
            self._refuse(event, key, "a key must be a plain word")
        name = self._scalar(event, key)
        if isinstance(name, int) and not isinstance(name, bool):
            return str(name)
        if not isinstance(name, str):
            self._refuse(
                event,
                key,
                f"the key {event.value or 'null'} is not a string",
                f'quote it: "{event.value}"',
            )
        if name == "<<" and event.implicit[0]:
            self._refuse(event, key, "merge keys (<<) are not part of YAML 1.2", "use extends")
        return name

    def _scalar(self, event: Any, key: Key) -> Any:
        if event.tag is None:
            return self._plain(event, key) if event.implicit[0] else event.value
        if event.tag in ("!", _TAG + "str"):
            return event.value
        value = self._plain(event, key)
        if type(value) not in _TAGGED.get(event.tag.removeprefix(_TAG), ()):
            self._refuse(event, key, f"the tag {event.tag} does not fit here", "leave it out")
        return value

    def _plain(self, event: Any, key: Key) -> Any:
        text: str = event.value
        if text in _WORDS:
            return _WORDS[text]
        for pattern, base in ((_INT, 10), (_OCTAL, 8), (_HEX, 16)):
            if pattern.fullmatch(text):
                return self._integer(event, key, base)
        if _FLOAT.fullmatch(text):
            return float(text)
        if match := _INFINITE.fullmatch(text):
            return float(match[1] + "inf")
        return float("nan") if text in _NAN else text

    def _integer(self, event: Any, key: Key, base: int) -> int:
        number = int(event.value, base) if len(event.value) < 100 else 2**64
        if not -(2**63) <= number < 2**64:
            self._refuse(event, key, "the whole number does not fit into 64 bits")
        return number

    def _refuse(self, event: Any, key: Key, problem: str, hint: str = "") -> NoReturn:
        raise ManifestError(self._file, key, problem, hint, *_start(event))

    def _syntax_error(self, error: yaml.MarkedYAMLError) -> ManifestError:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        lines = self._text.split("\n")
        indent = re.match(r"[ \t]*", lines[line - 1] if line <= len(lines) else "")
        if indent and "\t" in indent[0]:
            column = indent[0].index("\t") + 1
            return ManifestError(
                self._file, (), "a tab cannot indent YAML", "use spaces", line, column
            )
        problem = f"not valid YAML: {error.problem or 'cannot be parsed'}"
        hint = "check the indentation, and quote text that holds a colon"
        context = f" {error.context}" if error.context else ""
        return ManifestError(self._file, (), problem + context, hint, line, column)


def _start(event: Any) -> Mark:
    return event.start_mark.line + 1, event.start_mark.column + 1
