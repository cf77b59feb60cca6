"""Action keys: digests over labelled parts, and their differences."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

from buildsys.plan.action import Action
from buildsys.store.file_digests import FileDigest

SCHEMA = "buildsys/action/3"  # bump when the meaning of any part changes
ABSENT = "absent"  # the value of a missing file or distribution
_SPECIAL = re.compile(r"([\\.\[\]])")
_KINDS = ("config", "weights", "source", "input", "tool", "device", "env", "code")
_RANKS = {kind: rank for rank, kind in enumerate(_KINDS)}
_encode = json.JSONEncoder().encode  # json.dumps evaluates its options again for every value


@dataclass(frozen=True)
class ActionKey:
    """The key of an action at one moment, with its files."""

    target: str
    parts: Mapping[str, str]
    files: Mapping[str, FileDigest | None]  # label of a part -> file, None if missing
    missing: tuple[str, ...]  # required inputs that do not exist

    @cached_property
    def digest(self) -> str:
        """The digest of all parts, used in records and stores."""
        return digest_parts(self.target, self.parts)


class PartChange(NamedTuple):
    """A part with different values in two keys, None if absent."""

    label: str
    old: str | None
    new: str | None


def digest_parts(target: str, parts: Mapping[str, str]) -> str:
    """Return the SHA-256 of ``target`` and ``parts``.

    ``parts`` maps readable labels (``config:export.opset``, ``tool:torch``, ``device:gpu.name``,
    ``input:resnet50/export/model.onnx``) to values or content digests.
    """
    canonical = json.dumps([SCHEMA, target, sorted(parts.items())], separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def declared_parts(action: Action) -> dict[str, str]:
    """Return the parts for an action's options and file roles."""
    parts = flatten_options(action.options, "config:")
    for name, files in (("inputs", action.inputs), ("outputs", action.outputs)):
        parts[name] = _encode({role: ref.path for role, ref in sorted(files.items())})
    return parts


def content_parts(kind: str, digests: Mapping[str, str | None]) -> dict[str, str]:
    """Return one part per file, labelled ``kind:NAME``."""
    return {f"{kind}:{name}": ABSENT if d is None else d for name, d in digests.items()}


def flatten_options(options: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return dotted names and JSON texts of all leaves, unique per options.

    A list of plain values is one leaf (``[1, 3, 224, 224]``), other lists are numbered
    (``profiles[0].x``). Empty maps and lists are leaves. Dots, brackets and backslashes in names
    are escaped with a backslash.

    Raises: TypeError: a name is not a string, or a value is not JSON.
    """
    leaves: dict[str, str] = {}
    for name, value in options.items():
        _add_leaves(leaves, prefix + _escape(name), value)
    return leaves


def changed_parts(old: Mapping[str, str], new: Mapping[str, str]) -> list[PartChange]:
    """Return the differences: fields first, then files, tools, devices and code."""
    labels = old.keys() | new.keys()
    changed = [
        (_RANKS.get(label.partition(":")[0], len(_RANKS)), label)
        for label in labels
        if old.get(label) != new.get(label)
    ]
    return [PartChange(label, old.get(label), new.get(label)) for _, label in sorted(changed)]


def _add_leaves(leaves: dict[str, str], name: str, value: Any) -> None:
    if value and isinstance(value, dict):
        for key, item in value.items():
            _add_leaves(leaves, f"{name}.{_escape(key)}", item)
    elif isinstance(value, (list, tuple)) and any(
        isinstance(item, (dict, list, tuple)) for item in value
    ):
        for index, item in enumerate(value):
            _add_leaves(leaves, f"{name}[{index}]", item)
    elif value is None:  # the encoder is ten times slower for single values that are no strings
        leaves[name] = "null"
    else:
        leaves[name] = str(value) if type(value) is int else _encode(value)


@cache  # the same few field names occur in every target
def _escape(name: str) -> str:
    return _SPECIAL.sub(r"\\\1", name)
