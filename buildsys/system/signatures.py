"""Ed25519 signatures in DSSE envelopes (github.com/secure-systems-lab/dsse), and their check.

A public key is written as ``ed25519:`` and 32 bytes in base64, and named by its first digits. The
check needs `cryptography`, and the standard library for everything else: engines are checked where
nothing else is installed.
"""

import base64
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

PREFIX = "ed25519:"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PROVENANCE_TYPE = "https://slsa.dev/provenance/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
INSTALL = "pip install 'buildsys[signing]'"
# kinds of problems
UNSIGNED, UNTRUSTED, REVOKED, BROKEN = "unsigned", "untrusted", "revoked", "signature"
_PUBLIC_KEY = re.compile(r"ed25519:[A-Za-z0-9+/]{43}=")
_URL_SAFE = str.maketrans("-_", "+/")


class SignatureError(Exception):
    """A reason for distrust, as the end of a sentence."""

    def __init__(self, kind: str, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.kind = kind
        self.problem = problem
        self.remedy = remedy


@dataclass(frozen=True)
class TrustedKeys:
    """Trusted and revoked keys."""

    trusted: frozenset[str] = frozenset()
    revoked: frozenset[str] = frozenset()

    @classmethod
    def of(cls, trusted: Iterable[str], revoked: Iterable[str] = ()) -> "TrustedKeys":
        """Check keys. Raises: ValueError: one is not a public key."""
        checked = []
        for keys in (trusted, revoked):
            if isinstance(keys, str):
                raise ValueError(f"{keys!r:.100} is a string, not a list of public keys")
            checked.append(frozenset(keys))
            for key in checked[-1]:
                if not isinstance(key, str) or not _PUBLIC_KEY.fullmatch(key):
                    raise ValueError(f"{key!r:.100} is not a public key")
        return cls(*checked)

    def verify(
        self, signatures: Iterable[tuple[str, str]], payload_type: str, payload: bytes
    ) -> str:
        """Find the first trusted key with a valid signature.

        Signatures of other keys do not matter. Raises: SignatureError: there is none.
        """
        signatures = list(signatures)
        if not signatures:
            raise SignatureError(UNSIGNED, "is not signed")
        ours = [pair for pair in signatures if pair[0] in self.trusted - self.revoked]
        if not ours:
            if revoked := [key for key, _ in signatures if key in self.revoked]:
                problem = f"is signed by the revoked key {key_name(revoked[0])}"
                raise SignatureError(REVOKED, problem)
            names = ", ".join(key_name(key) for key, _ in signatures[:3])
            raise SignatureError(UNTRUSTED, f"is not signed by a trusted key, but by {names}")
        try:
            from cryptography.exceptions import InvalidSignature
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        except ImportError as error:
            problem = "cannot be verified without cryptography"
            raise SignatureError(BROKEN, problem, INSTALL) from error
        for key, signature in ours:
            try:
                public = Ed25519PublicKey.from_public_bytes(_decode(key[len(PREFIX) :]))
                public.verify(_decode(signature), encoded(payload_type, payload))
            except (InvalidSignature, ValueError):
                continue
            return key
        raise SignatureError(BROKEN, "does not match its signature")


def key_name(key: str) -> str:
    """Return the first digits of a public key, for people."""
    return ascii(key[: len(PREFIX) + 8])[1:-1]


def encoded(payload_type: str, payload: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def make_envelope(payload: bytes, signatures: Mapping[str, str]) -> dict[str, Any]:
    """Wrap a statement in an envelope; ``signatures`` are base64 by public key."""
    signed = [{"keyid": key, "sig": signature} for key, signature in signatures.items()]
    content = base64.b64encode(payload).decode("ascii")
    return {"payloadType": PAYLOAD_TYPE, "payload": content, "signatures": signed}


def open_envelope(envelope: Any, keys: TrustedKeys) -> tuple[dict[str, Any], str]:
    """Verify an envelope; return its statement and its trusted signer.

    Raises: SignatureError: it is not signed by a trusted key, or no such statement.
    """
    try:
        kind, payload = envelope["payloadType"], _decode(envelope["payload"])
        signatures = [
            (str(entry.get("keyid", "")), entry["sig"]) for entry in envelope["signatures"]
        ]
    except (LookupError, TypeError, AttributeError, ValueError):
        raise SignatureError(BROKEN, "has no valid DSSE envelope as its signature") from None
    signer = keys.verify(signatures, str(kind), payload)
    try:
        statement = json.loads(payload)
        types = kind, statement["_type"], statement["predicateType"]
    except (ValueError, LookupError, TypeError, RecursionError):
        types = kind, None, None
    if types != (PAYLOAD_TYPE, STATEMENT_TYPE, PROVENANCE_TYPE):
        problem = f"has a signed payload that is not an in-toto statement of {PROVENANCE_TYPE}"
        raise SignatureError(BROKEN, problem)
    return statement, signer


def described(name: str, **digests: str) -> dict[str, Any]:
    """Return the description of a file in a statement."""
    return {"name": name, "digest": digests}


def byproduct_digest(statement: Mapping[str, Any], name: str) -> str:
    """Return the SHA-256 of a byproduct in a statement.

    Raises: SignatureError: it has none, so buildsys did not make it.
    """
    try:
        byproducts = statement["predicate"]["runDetails"]["byproducts"]
        digests = {entry["name"]: str(entry["digest"]["sha256"]) for entry in byproducts}
        return digests[name]
    except (LookupError, TypeError):
        raise SignatureError(BROKEN, "has a signed statement that buildsys did not make") from None


def check_subjects(
    statement: Mapping[str, Any], algorithm: str, digests: Mapping[str, object]
) -> None:
    """Compare a statement's subjects with the digests of files.

    Raises: SignatureError: a file is missing, additional, renamed or another one.
    """
    try:
        subjects = [(str(s["name"]), str(s["digest"][algorithm])) for s in statement["subject"]]
    except (LookupError, TypeError):
        raise SignatureError(BROKEN, "has a signed statement that buildsys did not make") from None
    files = {(name, str(digest)) for name, digest in digests.items()}
    if differing := sorted(files.symmetric_difference(subjects)):
        problem = f"and its signed statement disagree about the file {differing[0][0]!a:.100}"
        raise SignatureError(BROKEN, problem)


def _decode(text: object) -> bytes:
    """Decode base64, also in its URL-safe form. Raises: ValueError."""
    if not isinstance(text, str):
        raise ValueError("not a text")
    return base64.b64decode(text.translate(_URL_SAFE), validate=True)
