"""The file format of an action record: a checksum line, then JSON."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

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
            path: None if file is None else OutputFile(*file)
            for path, file in stored.pop("outputs").items()
        }
        record = ActionRecord(outputs=outputs, **stored)
        _check_values(record)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RecordError(f"is not an action record: {type(error).__name__}: {error}") from error
    if record.key != key or target not in ("", record.target):
        raise RecordError(f"is the record of {record.target} under another key")
    return record


def _check_values(record: ActionRecord) -> None:
    for path in record.outputs:
        # os.fsencode raises a ValueError for what no file system can hold
        if "\0" in path or any(len(os.fsencode(part)) > 255 for part in path.split("/")):
            raise ValueError(f"{path!a} cannot be the name of an output")
    for digest, size in record.files.values():
        is_digest = isinstance(digest, str) and len(digest) == 64 and digest.isalnum()
        if not (is_digest and isinstance(size, int)):
            raise ValueError(f"{digest!r} is not a digest")
    texts = (record.target, record.key, record.status, record.started, record.reason, record.hint)
    parts = (*record.parts.keys(), *record.parts.values())
    if not all(isinstance(text, str) for text in (*texts, record.log, *parts)):
        raise ValueError("a text is expected")
    if not (isinstance(record.seconds, (int, float)) and isinstance(record.figures, dict)):
        raise ValueError("seconds or figures are invalid")


def _checksum(body: bytes) -> bytes:
    from blake3 import blake3  # not on the path of a run without work

    return blake3(body).hexdigest().encode()
