"""Private keys, and signatures of shared action records.

The signature of a record is the envelope of a statement with the digest of the record's canonical
bytes: target, key with all parts, outputs with digests and sizes, status, figures.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from buildsys.errors import StageError
from buildsys.store.ledger import ActionRecord
from buildsys.store.record_file import signed_bytes
from buildsys.system.files import TextCache
from buildsys.system.signatures import (
    BROKEN,
    INSTALL,
    PAYLOAD_TYPE,
    PREFIX,
    UNSIGNED,
    UNTRUSTED,
    SignatureError,
    TrustedKeys,
    byproduct_digest,
    check_subjects,
    encoded,
    key_name,
    open_envelope,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

BUILT_HERE = "built here"
REFUSE, WARN, ACCEPT = "refuse", "warn", "accept"
RECORD = "record"  # the byproduct of a statement about a record
_OTHERS = 0o027  # may read, or write it together with the group


class SigningKey:
    """A private key as PEM file or text, read on first use."""

    def __init__(self, source: Path | str) -> None:
        self._source = source

    def sign_statement(self, payload: bytes) -> dict[str, str]:
        """Sign an in-toto statement; return the signature by public key.

        Raises: StageError: the key cannot be used.
        """
        signature = self._key.sign(encoded(PAYLOAD_TYPE, payload))
        return {self.public_key: base64.b64encode(signature).decode("ascii")}

    @property
    def public_key(self) -> str:
        """The public key, as ``trusted_keys`` has it. Raises: StageError: the key is unusable."""
        public = self._key.public_key().public_bytes_raw()
        return PREFIX + base64.b64encode(public).decode("ascii")

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        try:
            from cryptography.exceptions import UnsupportedAlgorithm
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import load_pem_private_key
        except ImportError as error:
            raise StageError("cryptography is not installed", INSTALL) from error
        name, content = "the key", str(self._source).encode()
        if isinstance(self._source, Path):
            name = str(self._source)
            try:
                mode, content = self._source.stat().st_mode, self._source.read_bytes()
            except OSError as error:
                problem = f"cannot read {name}: {error.strerror}"
                raise StageError(problem, "check the path of the key") from error
            if mode & _OTHERS:
                problem = f"{name} is a private key that other users can read or replace"
                raise StageError(f"{problem} (mode {mode & 0o777:o})", f"chmod 600 {name}")
        try:
            key = load_pem_private_key(content, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: a password
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            problem = f"{name} is not an ed25519 key in a PEM file without a password"
            raise StageError(problem, "make one with `buildsys cache keygen FILE`")
        return key


class TrustPolicy:
    """The keys trusted by a project, and its treatment of other records."""

    def __init__(
        self, trusted: Iterable[str] = (), unsigned: str = REFUSE, revoked: Iterable[str] = ()
    ) -> None:
        self.keys = TrustedKeys(frozenset(trusted), frozenset(revoked))
        self.unsigned = unsigned

    @property
    def is_active(self) -> bool:
        """True if signatures are checked at all."""
        return bool(self.keys.trusted) and self.unsigned != ACCEPT

    def __repr__(self) -> str:
        """Describe the policy for the token of up-to-date models."""
        trusted, revoked = sorted(self.keys.trusted), sorted(self.keys.revoked)
        return f"{self.unsigned}: {trusted} - {revoked}" if self.is_active else ""

    def signer(self, record: ActionRecord) -> str:
        """Find a record's trusted signer. Raises: SignatureError: it has none."""
        if record.signature is None:
            raise SignatureError(UNSIGNED, "is not signed")
        statement, signer = open_envelope(record.signature, self.keys)
        digest = hashlib.sha256(signed_bytes(record)).hexdigest()
        if byproduct_digest(statement, RECORD) != digest:
            raise SignatureError(BROKEN, "was altered after it was signed")
        digests = {name: file.digest for name, file in record.files.items()}
        check_subjects(statement, "blake3", digests)
        return signer

    def tolerates(self, problem: SignatureError) -> bool:
        """Return True for results usable with a warning."""
        return self.unsigned == WARN and problem.kind in (UNSIGNED, UNTRUSTED)


NO_POLICY = TrustPolicy()


class RestoredSigners:
    """The signers of outputs from a shared cache, by target and key."""

    def __init__(self, texts: TextCache) -> None:
        self._texts = texts

    def add(self, record: ActionRecord, signer: str) -> None:
        """Record the signer of a restored record, "" without a verified signature.

        One built here needs none; ``signer`` is then ``BUILT_HERE``.
        """
        name = _restored_name(record.target, record.key)
        if signer != BUILT_HERE or self._texts.get(name) is not None:
            self._texts.set(name, signer)

    def are_trusted(self, target: str, key: str, policy: TrustPolicy) -> bool:
        """Return False for outputs of untrusted signers."""
        if not policy.is_active:
            return True
        signer = self._texts.get(_restored_name(target, key))
        if signer in (None, BUILT_HERE):
            return True
        is_usable = signer in policy.keys.trusted or policy.unsigned == WARN
        return is_usable and signer not in policy.keys.revoked


def signed_by(signer: str) -> str:
    """Write the end of a sentence with a signer, or ""."""
    return "" if signer in ("", BUILT_HERE) else f"; signed by {key_name(signer)}"


def _restored_name(target: str, key: str) -> str:
    return f"restored/1:{target}:{key}"


def generate_key(file: Path) -> str:
    """Write a new private key for its owner only. Return the public key.

    Raises: StageError: the file exists, or cannot be written.
    """
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise StageError("cryptography is not installed", INSTALL) from error
    key = Ed25519PrivateKey.generate()
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StageError(f"cannot write {file}: {error.strerror}", "name another file") from error
    with os.fdopen(handle, "wb") as writer:
        writer.write(key.private_bytes(encoding, form, serialization.NoEncryption()))
    return SigningKey(file).public_key
