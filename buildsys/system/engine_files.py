"""The files of an engine: its ``engine.json``, damage to them, their signature.

They are read without any library. A signature is an envelope in ``engine.json``: its statement
names ``engine.json`` itself, without the envelope, as a byproduct, and the files by their SHA-256
as subjects.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from buildsys.system.backend_registry import Reason, Record
from buildsys.system.files import read_limited, sha256_of
from buildsys.system.signatures import (
    BROKEN,
    UNSIGNED,
    SignatureError,
    TrustedKeys,
    byproduct_digest,
    check_subjects,
    open_envelope,
)

RECORD_NAME = "engine.json"
ENVELOPE = "attestation"  # the field of engine.json
_OTHER_FILE = "not the file that was built"
_OTHER_ENGINE = "take an engine that a trusted key has signed"
_COPY_FOLDER = "copy the engine's whole folder"
REPLACE = "copy the engine's whole folder again, or build it"
_MAX_RECORD_BYTES = 64 << 20  # with an entry for every layer


def read_record(engine: Path) -> Record | Reason:
    """Read the record of an engine, or the reason for its absence."""
    path = engine.with_name(RECORD_NAME)
    try:
        figures = json.loads(read_limited(path, _MAX_RECORD_BYTES))
    except FileNotFoundError:
        return Reason("record", f"{RECORD_NAME} is missing", _COPY_FOLDER)
    except OSError as error:
        return Reason("record", f"{path} cannot be read: {error.strerror}", "make it readable")
    except (ValueError, RecursionError) as error:
        return Reason("record", f"{path} is damaged: {error}", REPLACE)
    if not isinstance(figures, dict) or not isinstance(figures.get("backend"), str):
        return Reason("record", f"{path} is not the record of an engine", REPLACE)
    if figures.get("status", "passed") != "passed":
        why = figures.get("reason") or "its build did not pass"
        remedy = str(figures.get("hint") or "build it")
        return Reason("record", f"{path} says that no engine was built: {why}", remedy)
    record = Record(figures["backend"], figures)
    if strange := [name for name in record.files if not is_file_name(name)]:
        problem = f"{path} refers to {strange[0]!a}, which is not in its folder"
        return Reason("record", problem, REPLACE)
    return record


def is_file_name(name: str) -> bool:
    """Check for the name of a file without a path."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def find_damage(engine: Path, record: Record, *, digest: bool) -> Iterator[Reason]:
    """Yield differences between an engine's files and its record. ``digest`` reads all bytes.

    Raises: OSError: a file cannot be read.
    """
    files = record.files
    names = [engine.name if engine.name in files else next(iter(files), engine.name)]
    names += [name for name in files if name not in names]
    for name in names:
        path = engine if name == names[0] else engine.with_name(name)
        facts = files.get(name, {})
        if not path.is_file():
            problem = f"{path.name} is missing, and the engine needs it in its folder"
            yield Reason("file", problem, _COPY_FOLDER)
            continue
        size, recorded = path.stat().st_size, facts.get("bytes")
        if isinstance(recorded, int) and size != recorded:
            kind = "truncated" if size < recorded else "digest"
            wrong = _OTHER_FILE if kind == "digest" else kind
            problem = f"{path.name} is {wrong}: it has {size} of {recorded} bytes"
            yield Reason(kind, problem, REPLACE)
        else:
            expected = facts.get("sha256") if files else record.figures.get("engine_sha256")
            recorded = str(expected or "")
            if digest and recorded and (actual := sha256_of(path)) != recorded:
                problem = f"its SHA-256 is {actual[:16]}…, the recorded one is {recorded[:16]}…"
                problem = f"{path.name} is {_OTHER_FILE}: {problem}"
                yield Reason("digest", problem, REPLACE)


def content_digest(figures: Mapping[str, Any]) -> str:
    """Digest a record without its envelope."""
    content = {name: value for name, value in figures.items() if name != ENVELOPE}
    return hashlib.sha256(
        json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def signer_of(record: Record, keys: TrustedKeys) -> str | Reason:
    """Verify a record; return its trusted signer, or the reason against it.

    The files themselves are compared with the record by `find_damage`.
    """
    envelope = record.figures.get(ENVELOPE)
    try:
        if envelope is None:
            raise SignatureError(UNSIGNED, "is not signed")
        statement, signer = open_envelope(envelope, keys)
        digests = {name: facts.get("sha256") for name, facts in record.files.items()}
        if not all(digests.values()) or not digests:
            raise SignatureError(BROKEN, "names no files, or no digest of one")
        if byproduct_digest(statement, RECORD_NAME) != content_digest(record.figures):
            raise SignatureError(BROKEN, "was altered after it was signed")
        check_subjects(statement, "sha256", digests)
    except SignatureError as error:
        remedy = error.remedy or (REPLACE if error.kind == BROKEN else _OTHER_ENGINE)
        return Reason(error.kind, f"{RECORD_NAME} {error.problem}", remedy)
    except RecursionError:  # nested on purpose
        return Reason(BROKEN, f"{RECORD_NAME} was altered after it was signed", REPLACE)
    return signer
