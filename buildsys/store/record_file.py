"""The file of an action record: a checksum and JSON.

The checksum detects damage. A file from a shared cache may have been written by anybody, so
whatever would make a build fail later (a name that no file system can hold, a value that the
ledger cannot store) is refused here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

from buildsys.store.ledger import PASSED, UNAVAILABLE, ActionRecord, OutputFile
from buildsys.system.files import read_limited

MAX_SHARED_BYTES = 8 << 20  # 250 times the largest record of the test projects
_MAX_LOCAL_BYTES = 64 << 20
_SCHEMA = 1
_SCHEMA_WITH_ORIGIN = 2  # with the fields `origin` and `signature`
_SCHEMA_WITH_ENVELOPE = 3  # the signature is an envelope, no longer a key and a value
_ADDED = ("origin", "signature")
_FIELDS = frozenset(field.name for field in fields(ActionRecord))
DIGEST = re.compile(r"[0-9a-f]{64}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_MAX_NAME_BYTES = 1024
_MAX_NAME_PART_BYTES = 255
_MAX_OUTPUTS = 10_000
_MAX_DEPTH = 32
_MAX_FILE_BYTES = 1 << 53
_MAX_SECONDS = 1e10
_SHOWN = 80
STATUSES = (PASSED, UNAVAILABLE)


class RecordError(Exception):
    """An unusable record; a ``newer`` one needs a newer buildsys."""

    def __init__(self, problem: str, *, newer: bool = False) -> None:
        super().__init__(problem)
        self.newer = newer


def encode_record(record: ActionRecord) -> bytes:
    """Encode a record as the bytes of a file."""
    body = _body(record)
    return _checksum(body) + b"\n" + body + b"\n"


def signed_bytes(record: ActionRecord) -> bytes:
    """Encode a record canonically, without origin and signature."""
    content = {name: getattr(record, name) for name in _FIELDS if name not in _ADDED}
    content["seconds"] = float(record.seconds)
    # as it is read back: names in JSON are texts
    return _to_bytes(json.loads(_to_bytes({"schema": _SCHEMA, **content})))


def read_record(path: Path, target: str, key: str) -> ActionRecord:
    """Read the record in a local file; an empty ``target`` accepts any.

    Raises: RecordError: as `decode_record`, or it is too large. OSError: it cannot be read.
    """
    try:
        content = read_limited(path, _MAX_LOCAL_BYTES)
    except ValueError as error:
        raise RecordError(f"is not an action record: {error}") from error
    return decode_record(content, target, key)


def decode_record(
    content: bytes, target: str, key: str, *, statuses: Collection[str] = STATUSES
) -> ActionRecord:
    """Decode the record in a file; an empty ``target`` accepts any.

    Raises: RecordError: it is truncated, edited, of another target or key, or of a newer buildsys.
    """
    checksum, _, body = content.rstrip(b"\n").partition(b"\n")
    if checksum != _checksum(body):
        raise RecordError("is truncated or edited: its checksum does not match")
    try:
        stored = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RecordError("is not an action record: it is not JSON") from error
    if not isinstance(stored, dict):
        raise RecordError("is not an action record: it is not an object")
    schema = stored.pop("schema", None)
    if type(schema) is not int:
        raise RecordError("is not an action record: it has no schema")
    if schema > _SCHEMA_WITH_ENVELOPE:
        raise RecordError("was written by a newer buildsys", newer=True)
    if stored.keys() - _FIELDS:
        raise RecordError("is not an action record: it has unknown fields")
    try:
        record = _checked(stored, statuses)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        # not the text of other errors, which may quote the record
        problem = f": {error}" if type(error) is ValueError else ""
        raise RecordError(f"is not an action record{problem}") from error
    if record.key != key or target not in ("", record.target):
        raise RecordError(f"is the record of {shown(record.target)} under another key")
    return record


def shown(text: object) -> str:
    """Quote a record's text, shortened, in ASCII without control characters."""
    escaped = ascii(text)
    return escaped if len(escaped) <= _SHOWN else f"{escaped[:_SHOWN]}…"


def _checked(stored: dict[str, Any], statuses: Collection[str]) -> ActionRecord:
    """Check the fields of a record. Raises: ValueError, TypeError, KeyError."""
    outputs, parts, seconds = stored["outputs"], stored["parts"], stored["seconds"]
    if not (isinstance(outputs, dict) and len(outputs) <= _MAX_OUTPUTS):
        raise ValueError("its outputs are invalid")
    files: dict[str, OutputFile | None] = {}
    for name, file in outputs.items():
        check_name(name)
        files[name] = None if file is None else output_file(file)
    for name in files:
        folders = (name[:at] for at, letter in enumerate(name) if letter == "/")
        if any(folder in files for folder in folders):
            raise ValueError(f"{shown(name)} is inside another output")
    texts = ("target", "key", "status", "started", "reason", "hint", "log", "origin")
    for field in texts:
        text = stored.get(field, "")
        if not isinstance(text, str) or not _is_encodable(text):
            raise ValueError(f"its {field} is not a text")
    if not DIGEST.fullmatch(stored["key"]):
        raise ValueError("its key is not a digest")
    if stored["status"] not in statuses:
        raise ValueError(f"its status is {shown(stored['status'])}")
    if not _TIME.fullmatch(stored["started"]):
        raise ValueError(f"{shown(stored['started'])} is not a time")
    if not (isinstance(parts, dict) and all(isinstance(value, str) for value in parts.values())):
        raise ValueError("its parts are invalid")
    # not bool, which is an int as well
    if type(seconds) not in (int, float) or not 0 <= seconds < _MAX_SECONDS:
        raise ValueError(f"{shown(seconds)} is not a number of seconds")
    if not isinstance(stored.get("figures", {}), dict) or _is_deep(stored.get("figures")):
        raise ValueError("its figures are invalid")
    signature = stored.get("signature")
    if signature is not None and not _is_signature(signature):
        raise ValueError("its signature is invalid")
    return ActionRecord(**{**stored, "outputs": files, "seconds": float(seconds)})


def _is_signature(signature: Any) -> bool:
    """Recognize an envelope, or a signature of earlier versions."""
    if not isinstance(signature, dict):
        return False
    if "payload" not in signature:
        return all(isinstance(value, str) and len(value) < 200 for value in signature.values())
    signatures = signature.get("signatures")
    texts = [value for name, value in signature.items() if name != "signatures"]
    if not isinstance(signatures, list) or not all(isinstance(entry, dict) for entry in signatures):
        return False
    texts += [value for entry in signatures for value in entry.values()]
    return all(isinstance(text, str) for text in texts)


def check_name(name: str) -> None:
    """Check the relative path of a file. Raises: ValueError."""
    parts = name.split("/")
    if (
        "\0" in name
        or not _is_encodable(name)
        or len(name.encode()) > _MAX_NAME_BYTES
        or any(part in ("", ".", "..") for part in parts)
        or any(len(part.encode()) > _MAX_NAME_PART_BYTES for part in parts)
    ):
        raise ValueError(f"{shown(name)} cannot be the name of a file")


def output_file(file: Any) -> OutputFile:
    """Check a digest and a size as read from JSON. Raises: ValueError."""
    if not (isinstance(file, list) and len(file) == 2):
        raise ValueError(f"{shown(file)} is not an output")
    digest, size = file
    if not (isinstance(digest, str) and DIGEST.fullmatch(digest)):
        raise ValueError(f"{shown(digest)} is not a digest")
    if type(size) is not int or not 0 <= size < _MAX_FILE_BYTES:
        raise ValueError(f"{shown(size)} is not a size")
    return OutputFile(digest, size)


def _is_encodable(text: str) -> bool:
    """Refuse lone surrogates, as SQLite and terminals do."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_deep(value: Any) -> bool:
    """Recognize JSON with more levels than any figures have."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            item
            for container in level
            if isinstance(container, (dict, list))
            for item in (container.values() if isinstance(container, dict) else container)
        ]
        if not level:
            return False
    return True


def _body(record: ActionRecord) -> bytes:
    content = {name: getattr(record, name) for name in _FIELDS}
    if not (record.origin or record.signature):  # as earlier versions read it
        for name in _ADDED:
            del content[name]
        return _to_bytes({"schema": _SCHEMA, **content})
    is_envelope = record.signature is not None and "payload" in record.signature
    schema = _SCHEMA_WITH_ENVELOPE if is_envelope else _SCHEMA_WITH_ORIGIN
    return _to_bytes({"schema": schema, **content})


def _to_bytes(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()


def _checksum(body: bytes) -> bytes:
    from blake3 import blake3  # not on the path of a run without work

    return blake3(body).hexdigest().encode()
