"""Signed JSON documents at a URL: indexes of releases, pointers of channels.

The signature is an envelope inside the document, as in ``engine.json``. Its statement has the name
of the document at the URL, so no document can stand in for another. Standard library only.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from buildsys.errors import EngineError
from buildsys.system.engine_files import ENVELOPE, content_digest
from buildsys.system.signatures import (
    BROKEN,
    PROVENANCE_TYPE,
    STATEMENT_TYPE,
    UNSIGNED,
    SignatureError,
    TrustedKeys,
    byproduct_digest,
    described,
    make_envelope,
    open_envelope,
)

MAX_BYTES = 8 << 20
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")
SHA256 = re.compile(r"[0-9a-f]{64}")
BUILD_TYPE = "urn:buildsys:release:1"
Sign = Callable[[bytes], Mapping[str, str]]  # statement -> signatures by public key
_LONGEST_TEXT = 1000


class WrongDocument(ValueError):
    """A field of a document from somewhere else, as the end of a sentence."""


def to_json(document: Mapping[str, Any]) -> bytes:
    """Write a document; equal documents have equal bytes."""
    return json.dumps(document, indent=2, sort_keys=True, allow_nan=False).encode() + b"\n"


def sign_document(
    document: Mapping[str, Any], name: str, builder: str, sign: Sign
) -> dict[str, Any]:
    """Add an envelope to a document, which has ``name`` at its URL."""
    content = described(name, sha256=content_digest(document))
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [content],
        "predicateType": PROVENANCE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"document": name},
                "internalParameters": {},
                "resolvedDependencies": [],
            },
            "runDetails": {"builder": {"id": builder}, "byproducts": [content]},
        },
    }
    payload = json.dumps(statement, separators=(",", ":"), sort_keys=True).encode()
    return {**document, ENVELOPE: make_envelope(payload, sign(payload))}


def read_document(
    content: bytes, name: str, schema: str, keys: TrustedKeys | None
) -> tuple[dict[str, Any], str]:
    """Parse a document; return it and its trusted signer, "" if ``keys`` is None.

    Raises: EngineError: it is damaged, of another kind, or not signed by a trusted key.
    """
    try:
        document = json.loads(content, parse_constant=_refuse_constant)
        if not isinstance(document, dict):
            raise WrongDocument("is not a JSON object")
    except (ValueError, RecursionError) as error:
        problem = f"{name} is damaged: {' '.join(str(error).split())}"
        raise EngineError(problem, "publish it again, or take another release") from None
    signer = "" if keys is None else _signer(document, name, keys)
    if document.get("schema") != schema:
        problem = f"{name} has the schema {document.get('schema')!r:.100}, not {schema!r}"
        raise EngineError(problem, "use a newer buildsys, or check the URL")
    return document, signer


def _signer(document: Mapping[str, Any], name: str, keys: TrustedKeys) -> str:
    try:
        if ENVELOPE not in document:
            raise SignatureError(UNSIGNED, "is not signed")
        statement, signer = open_envelope(document[ENVELOPE], keys)
        if byproduct_digest(statement, name) != content_digest(document):
            raise SignatureError(BROKEN, "was altered after it was signed")
    except (SignatureError, RecursionError) as error:
        problem = getattr(error, "problem", "was altered after it was signed")
        remedy = getattr(error, "remedy", "") or "take a release that a trusted key has signed"
        raise EngineError(f"{name} {problem}", remedy) from None
    return signer


def _refuse_constant(name: str) -> None:
    raise WrongDocument(f"{name} is not a JSON number")


def map_of(value: object, what: str) -> dict[str, Any]:
    """Check a JSON object."""
    if not isinstance(value, dict):
        raise WrongDocument(f"{what} is not a JSON object")
    return value


def text_of(value: object, what: str, pattern: re.Pattern[str] | None = None) -> str:
    """Check a text, perhaps by a pattern."""
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise WrongDocument(f"{what} is not a text of at most {_LONGEST_TEXT} characters")
    if pattern is not None and not pattern.fullmatch(value):
        raise WrongDocument(f"{what} is {value!a:.100}")
    return value


def integer_of(value: object, what: str, least: int = 0) -> int:
    """Check an integer."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 53:
        raise WrongDocument(f"{what} is {value!r:.50}, not an integer from {least}")
    return value


def number_of(value: object, what: str) -> float | None:
    """Check a number that is not negative; None stays."""
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (math.isfinite(value) and value >= 0):  # type: ignore[arg-type, operator]
        raise WrongDocument(f"{what} is {value!r:.50}, not a number from 0")
    return float(value)  # type: ignore[arg-type]
