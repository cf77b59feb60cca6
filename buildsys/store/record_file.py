"""The file format of an action record: a checksum line, then JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from buildsys.store.ledger import ActionRecord, OutputFile

SCHEMA = 1


class RecordError(Exception):
    """An unusable record; a ``newer`` one needs a newer buildsys."""

    def __init__(self, problem: str, *, newer: bool = False) -> None:
        super().__init__(problem)
        self.newer = newer


def encode_record(record: ActionRecord) -> bytes:
    """Return a record as the bytes of a file."""
    content = {"schema": SCHEMA, **asdict(record)}
    body = json.dumps(content, separators=(",", ":"), sort_keys=True).encode()
    return _checksum(body) + b"\n" + body + b"\n"


def decode_record(content: bytes, target: str, key: str) -> ActionRecord:
    """Return the record in a file; an empty ``target`` accepts any.

    Raises: RecordError: it is truncated, edited, of another target or key, or of a newer buildsys.
    """
    checksum, _, body = content.rstrip(b"\n").partition(b"\n")
    if checksum != _checksum(body):
        raise RecordError("is truncated or edited: its checksum does not match")
    try:
        stored = json.loads(body)
        if stored.pop("schema") > SCHEMA:
            raise RecordError("was written by a newer buildsys", newer=True)
        outputs = {
            path: None if file is None else _output(file)
            for path, file in stored.pop("outputs").items()
        }
        record = ActionRecord(outputs=outputs, **stored)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RecordError(f"is not an action record: {type(error).__name__}: {error}") from error
    if record.key != key or target not in ("", record.target):
        raise RecordError(f"is the record of {record.target} under another key")
    return record


def _output(file: Any) -> OutputFile:
    digest, size = file
    is_digest = isinstance(digest, str) and len(digest) == 64 and digest.isalnum()
    if not (is_digest and isinstance(size, int)):
        raise ValueError(f"{digest!r} is not a digest")
    return OutputFile(digest, size)


def _checksum(body: bytes) -> bytes:
    from blake3 import blake3  # not on the path of a run without work

    return blake3(body).hexdigest().encode()
