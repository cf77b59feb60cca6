"""The file of an action record: a checksum and JSON.

The checksum detects damage. A file from a shared cache may have been written by anybody, so
whatever would make a build fail later (a name that no file system can hold, a value that the
ledger cannot store) is refused here.
"""

import json
import re
from collections.abc import Callable, Collection
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from buildsys.store.ledger import MAX_SECONDS, PASSED, UNAVAILABLE, ActionRecord, OutputFile
from buildsys.system.files import read_limited

MAX_SHARED_BYTES = 8 << 20  # 250 times the largest record of the test projects
_MAX_LOCAL_BYTES = 64 << 20
_SCHEMA = 3  # earlier ones have no origin, no signature, or another form of it
_SIGNED_SCHEMA = 1
_UNSIGNED = ("origin", "signature")
_FIELDS = frozenset(field.name for field in fields(ActionRecord))
_DIGEST = re.compile(r"[0-9a-f]{64}")
_TIME = "^[0-9]{4}-[0-9]{2}-[0-9]{2}T([0-9]{2}:){2}[0-9]{2}Z$"
_MAX_NAME_BYTES = 1024
_MAX_NAME_PART_BYTES = 255
_MAX_OUTPUTS = 10_000
_MAX_FILE_BYTES = 1 << 53
_SHOWN = 80
_Names = TypeVar("_Names", bound=Collection[str])
STATUSES = (PASSED, UNAVAILABLE)


class RecordError(Exception):
    """An unusable record; a ``newer`` one needs a newer buildsys."""

    def __init__(self, problem: str, *, newer: bool = False) -> None:
        super().__init__(problem)
        self.newer = newer


def encode_record(record: ActionRecord) -> bytes:
    """Encode a record as the bytes of a file."""
    content = {name: getattr(record, name) for name in _FIELDS}
    body = _to_bytes({"schema": _SCHEMA, **content})
    return _checksum(body) + b"\n" + body + b"\n"


def signed_bytes(record: ActionRecord) -> bytes:
    """Encode a record canonically, without origin and signature."""
    content = {name: getattr(record, name) for name in _FIELDS if name not in _UNSIGNED}
    content["seconds"] = float(record.seconds)
    # as it is read back: names in JSON are texts
    return _to_bytes(json.loads(_to_bytes({"schema": _SIGNED_SCHEMA, **content})))


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
        json.dumps(stored, ensure_ascii=False).encode()  # lone surrogates have no encoding
    except (ValueError, RecursionError) as error:
        raise RecordError("is not an action record: it is not JSON in UTF-8") from error
    schema = stored.pop("schema", None) if isinstance(stored, dict) else None
    if type(schema) is not int:
        raise RecordError("is not an action record: it has no schema")
    if schema > _SCHEMA:
        raise RecordError("was written by a newer buildsys", newer=True)
    if problem := _reader()(stored):
        raise RecordError(f"is not an action record: {problem}")
    outputs = {name: file and OutputFile(*file) for name, file in stored.pop("outputs").items()}
    seconds = float(stored.pop("seconds"))
    record = ActionRecord(**stored, outputs=outputs, seconds=seconds)
    if record.status not in statuses:
        raise RecordError(f"is not an action record: its status is {shown(record.status)}")
    if record.key != key or target not in ("", record.target):
        raise RecordError(f"is the record of {shown(record.target)} under another key")
    return record


def shown(text: object) -> str:
    """Quote a record's text, shortened, in ASCII without control characters."""
    escaped = ascii(text)
    return escaped if len(escaped) <= _SHOWN else f"{escaped[:_SHOWN]}…"


@cache
def _reader() -> Callable[[Any], str]:
    """Make a function that finds the problem of a record's fields, "" if there is none."""
    from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError

    class StoredRecord(BaseModel):
        model_config = ConfigDict(extra="forbid", strict=True)

        target: str
        key: Annotated[str, Field(pattern=f"^{_DIGEST.pattern}$")]
        parts: dict[str, str]
        outputs: Annotated[
            dict[str, JsonValue], AfterValidator(check_names), AfterValidator(_check_files)
        ]
        status: str
        started: Annotated[str, Field(pattern=_TIME)]
        seconds: Annotated[float, Field(ge=0, lt=MAX_SECONDS, allow_inf_nan=False)]
        reason: str = ""
        hint: str = ""
        figures: dict[str, JsonValue] = {}
        log: str = ""
        origin: str = ""
        signature: dict[str, JsonValue] | None = None

    def problem(stored: Any) -> str:
        try:
            StoredRecord.model_validate(stored)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            return f"{shown(first['loc'][0])}: {first['msg']}"
        except RecursionError:
            return "it is nested too deeply"
        return ""

    return problem


def _check_files(outputs: dict[str, Any]) -> dict[str, Any]:
    for file in outputs.values():
        if file is not None:
            output_file(file)
    return outputs


def check_names(names: _Names) -> _Names:
    """Check that a record can hold the relative paths of outputs. Raises: ValueError."""
    if len(names) > _MAX_OUTPUTS:
        raise ValueError(f"there are {len(names):,} files, more than {_MAX_OUTPUTS:,}")
    return check_tree(names)


def check_tree(names: _Names) -> _Names:
    """Check that relative paths can be files of one folder. Raises: ValueError."""
    for name in names:
        check_name(name)
        folders = (name[:at] for at, letter in enumerate(name) if letter == "/")
        if any(folder in names for folder in folders):
            raise ValueError(f"{shown(name)} is inside another output")
    return names


def check_name(name: str) -> None:
    """Check the relative path of a file. Raises: ValueError."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{shown(name)} is not a name in UTF-8") from None
    parts = name.split("/")
    if (
        "\0" in name
        or any(part in ("", ".", "..") for part in parts)
        or any(len(part.encode()) > _MAX_NAME_PART_BYTES for part in parts)
    ):
        raise ValueError(f"{shown(name)} cannot be the name of a file")
    if (whole := len(name.encode())) > _MAX_NAME_BYTES:
        problem = f"its path has {whole:,} bytes, more than {_MAX_NAME_BYTES:,}"
        raise ValueError(f"{shown(name)} cannot be the name of a file: {problem}")


def output_file(file: Any) -> OutputFile:
    """Check a digest and a size as read from JSON. Raises: ValueError."""
    match file:
        case [str(digest), int(size)] if _DIGEST.fullmatch(digest) and not isinstance(size, bool):
            if 0 <= size < _MAX_FILE_BYTES:
                return OutputFile(digest, size)
    raise ValueError(f"{shown(file)} is not a digest and a size")


def _to_bytes(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()


def _checksum(body: bytes) -> bytes:
    from blake3 import blake3  # not on the path of a run without work

    return blake3(body).hexdigest().encode()
