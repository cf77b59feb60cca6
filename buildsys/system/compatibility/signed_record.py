"""The signature of an engine: an envelope in its ``engine.json``.

The signed statement names the files of the engine by their SHA-256 as subjects, and ``engine.json``
itself, without the envelope, as a byproduct.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from buildsys.system.compatibility.engine_files import RECORD_NAME, REPLACE, Reason, Record
from buildsys.system.signatures import (
    BROKEN,
    UNSIGNED,
    UNTRUSTED,
    SignatureError,
    TrustedKeys,
    byproduct_digest,
    key_name,
    open_envelope,
)

ENVELOPE = "attestation"  # the field of engine.json
_OTHER_ENGINE = "take an engine that a trusted key has signed"


def content_digest(figures: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a record without its envelope."""
    content = {name: value for name, value in figures.items() if name != ENVELOPE}
    return hashlib.sha256(
        json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def signer_of(record: Record, keys: TrustedKeys) -> str | Reason:
    """Return a record's trusted signer, or the reason against it.

    The files themselves are compared with the record by `find_damage`.
    """
    envelope = record.figures.get(ENVELOPE)
    try:
        if envelope is None:
            raise SignatureError(UNSIGNED, "is not signed")
        statement, signer = open_envelope(envelope, keys)
        _check_content(record, statement)
    except SignatureError as error:
        remedy = error.remedy or (REPLACE if error.kind == BROKEN else _OTHER_ENGINE)
        named = _signers(envelope) if error.kind == UNTRUSTED else ""
        return Reason(error.kind, f"{RECORD_NAME} {error.problem}{named}", remedy)
    return signer


def _check_content(record: Record, statement: Mapping[str, Any]) -> None:
    """Compare a record with its statement. Raises: SignatureError: they differ."""
    recorded = byproduct_digest(statement, RECORD_NAME)
    try:
        subjects = {str(one["name"]): one["digest"]["sha256"] for one in statement["subject"]}
    except (LookupError, TypeError):
        raise SignatureError(BROKEN, "has a signed statement that buildsys did not make") from None
    if not record.files:
        raise SignatureError(BROKEN, "names no files")
    for name, facts in record.files.items():
        if name not in subjects:
            problem = f"has a signed statement that is not about {name!a:.100}"
            raise SignatureError(BROKEN, problem)
        if subjects[name] != facts.get("sha256"):
            raise SignatureError(BROKEN, f"is signed for another {name!a:.100}")
    try:
        is_same = recorded == content_digest(record.figures)
    except RecursionError:  # nested on purpose
        is_same = False
    if not is_same:
        raise SignatureError(BROKEN, "was altered after it was signed")


def _signers(envelope: Any) -> str:
    """Return the keys in an envelope, for people."""
    named = [str(one.get("keyid", "")) for one in envelope["signatures"]][:3]
    keys = [key_name(key) for key in named if key]
    return f", but by {', '.join(keys)}" if keys else ""
