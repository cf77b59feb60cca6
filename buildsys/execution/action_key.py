"""The action key: a digest over labelled parts that a person can read, and what differs between two of them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from buildsys.plan.action import Action, FileRef

SCHEMA = "buildsys/action/2"  # bump when the meaning of any part changes
ABSENT = "absent"  # the value of a file or distribution that does not exist
_SPECIAL = re.compile(r"([\\.\[\]])")
_ORDER = ("config", "weights", "source", "input", "tool", "device", "env", "code")
_encode = json.JSONEncoder().encode  # json.dumps chooses among its options anew for every value


class PartChange(NamedTuple):
    """A part that differs between two keys; None where a key does not have it."""

    label: str
    old: str | None
    new: str | None


def action_key(target: str, parts: Mapping[str, str]) -> str:
    """Return the sha256 key of ``target`` built from ``parts``.

    ``parts`` maps a label that a person can read (``config:export.opset``, ``input:resnet50/export/model.onnx``,
    ``tool:torch``, ``device:gpu.name``) to the value or content digest behind it.
    """
    canonical = json.dumps([SCHEMA, target, sorted(parts.items())], separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def declared_parts(action: Action) -> dict[str, str]:
    """Return the parts that the action itself declares: its options and which files play which roles."""
    parts = flatten_options(action.options, "config:")
    parts["inputs"] = _roles(action.inputs)
    parts["outputs"] = _roles(action.outputs)
    return parts


def content_parts(kind: str, digests: Mapping[str, str | None]) -> dict[str, str]:
    """Return one part per file, labelled ``kind:NAME``; a file without a digest is absent."""
    return {
        f"{kind}:{name}": ABSENT if digest is None else digest for name, digest in digests.items()
    }


def flatten_options(options: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return dotted names and JSON texts of all leaves: different options never give the same result.

    A list of plain values is one leaf (``[1, 3, 224, 224]``), other lists are numbered (``profiles[0].x``).
    Empty maps and lists are leaves. Dots, brackets and backslashes in a name are escaped by a backslash.

    Raises: TypeError: a name is not a string, or a value is not JSON.
    """
    leaves: dict[str, str] = {}
    for name, value in options.items():
        _add_leaves(leaves, prefix + _escape(name), value)
    return leaves


def changed_parts(old: Mapping[str, str], new: Mapping[str, str]) -> list[PartChange]:
    """Return what differs, in the order in which a person asks: fields, files, tools, devices, code."""
    labels = (old.keys() | new.keys()) - {
        label for label in old.keys() & new.keys() if old[label] == new[label]
    }
    return [
        PartChange(label, old.get(label), new.get(label)) for label in sorted(labels, key=_rank)
    ]


def _add_leaves(leaves: dict[str, str], name: str, value: Any) -> None:
    if value and isinstance(value, dict):
        for key, item in value.items():
            _add_leaves(leaves, f"{name}.{_escape(key)}", item)
    elif isinstance(value, (list, tuple)) and any(
        isinstance(item, (dict, list, tuple)) for item in value
    ):
        for index, item in enumerate(value):
            _add_leaves(leaves, f"{name}[{index}]", item)
    else:
        leaves[name] = _to_json(value)


@cache  # the same few field names come again in every target
def _escape(name: str) -> str:
    return _SPECIAL.sub(r"\\\1", name)


def _to_json(value: Any) -> str:
    """Return JSON; the encoder takes ten times as long for a single value that is not a string."""
    if value is None:
        return "null"
    return str(value) if type(value) is int else _encode(value)


def _roles(files: Mapping[str, FileRef]) -> str:
    return _to_json({role: ref.path for role, ref in sorted(files.items())})


def _rank(label: str) -> tuple[int, str]:
    kind = label.partition(":")[0]
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER), label
