"""Action keys: digests over labelled parts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from buildsys.plan.action import Action
from buildsys.store.file_digests import FileDigest

SCHEMA = "buildsys/action/3"  # bump when the meaning of any part changes
ABSENT = "absent"  # the value of a missing file or distribution
_SPECIAL = re.compile(r"([\\.\[\]])")
_encode = json.JSONEncoder().encode  # json.dumps evaluates its options again for every value


@dataclass(frozen=True)
class ActionKey:
    """The key of an action at one moment, with its files."""

    target: str
    # readable labels (``config:export.opset``, ``tool:torch``, ``device:gpu.name``,
    # ``input:resnet50/export/model.onnx``) -> values or content digests
    parts: Mapping[str, str]
    files: Mapping[str, FileDigest | None]  # label of a part -> file, None if missing
    missing: tuple[str, ...]  # required inputs that do not exist

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the target and all parts."""
        content = [SCHEMA, self.target, sorted(self.parts.items())]
        return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()


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
    waiting = [(prefix + _escape(name), value) for name, value in options.items()]
    while waiting:
        name, value = waiting.pop()
        if value and isinstance(value, dict):
            waiting += [(f"{name}.{_escape(key)}", item) for key, item in value.items()]
        elif isinstance(value, (list, tuple)) and any(
            isinstance(item, (dict, list, tuple)) for item in value
        ):
            waiting += [(f"{name}[{index}]", item) for index, item in enumerate(value)]
        elif value is None:  # the encoder is ten times slower for single values that are no strings
            leaves[name] = "null"
        else:
            leaves[name] = str(value) if type(value) is int else _encode(value)
    return leaves


@cache  # the same few field names occur in every target
def _escape(name: str) -> str:
    return _SPECIAL.sub(r"\\\1", name)
