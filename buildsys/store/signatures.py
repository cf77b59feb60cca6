"""Ed25519 signatures of shared action records.

A record is signed in DSSE's encoding (github.com/secure-systems-lab/dsse), over its canonical
bytes: target, key with all parts, outputs with digests and sizes, status, figures. A public key is
written as ``ed25519:`` and 32 bytes in base64, and named by its first digits.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from buildsys.errors import StageError
from buildsys.store.ledger import ActionRecord
from buildsys.store.record_file import signed_bytes
from buildsys.system.text_cache import TextCache

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PREFIX = "ed25519:"
MISMATCH = "does not match its signature"
BUILT_HERE = "built here"
REFUSE, WARN, ACCEPT = "refuse", "warn", "accept"
_PAYLOAD_TYPE = "application/vnd.buildsys.action-record+json"
_INSTALL = "pip install 'buildsys[signing]'"


class SigningKey:
    """A private key in a PEM file, read on first use."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def sign(self, record: ActionRecord) -> dict[str, str]:
        """Return the signature of a record.

        Raises: StageError: the key cannot be used.
        """
        return self.sign_payload(_PAYLOAD_TYPE, signed_bytes(record))

    def sign_payload(self, payload_type: str, payload: bytes) -> dict[str, str]:
        """Return the signature of some bytes.

        Raises: StageError: the key cannot be used.
        """
        signature = self._key.sign(_encoded(payload_type, payload))
        return {"key": self.public_key, "value": base64.b64encode(signature).decode("ascii")}

    @property
    def public_key(self) -> str:
        """The public key. Raises: StageError: the key cannot be used."""
        return public_key_text(self._key)

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        try:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import load_pem_private_key
        except ImportError as error:
            raise StageError("cryptography is not installed", _INSTALL) from error
        try:
            key = load_pem_private_key(self._file.read_bytes(), None)
        except OSError as error:
            raise StageError(
                f"cannot read {self._file}: {error.strerror}", "check the path of the key"
            ) from error
        except (ValueError, TypeError) as error:  # TypeError: it has a password
            raise StageError(
                f"{self._file} is not a PEM file without a password",
                "make one with `doit cache keygen FILE`",
            ) from error
        if not isinstance(key, Ed25519PrivateKey):
            raise StageError(f"{self._file} is not an ed25519 key", "`doit cache keygen` makes one")
        return key


class TrustPolicy:
    """The keys trusted by a project, and its treatment of other records."""

    def __init__(self, trusted: Iterable[str] = (), unsigned: str = REFUSE) -> None:
        self.trusted = frozenset(trusted)
        self.unsigned = unsigned

    @property
    def is_active(self) -> bool:
        """True if signatures are checked at all."""
        return bool(self.trusted) and self.unsigned != ACCEPT

    def __repr__(self) -> str:
        """Return the policy as a part of the token of up-to-date models."""
        return f"{self.unsigned}: {sorted(self.trusted)}" if self.is_active else ""

    def problem(self, record: ActionRecord) -> str:
        """Return the reason not to trust a record, or ""."""
        return self.payload_problem(record.signature, _PAYLOAD_TYPE, signed_bytes(record))

    def payload_problem(
        self, signature: Mapping[str, str] | None, payload_type: str, payload: bytes
    ) -> str:
        """Return the reason not to trust some bytes, or ""."""
        if signature is None:
            return "is not signed"
        key = signature.get("key", "")
        if key not in self.trusted:
            return "is not signed by a trusted key"
        try:
            from cryptography.exceptions import InvalidSignature
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        except ImportError:
            return f"cannot be verified without cryptography ({_INSTALL})"
        try:
            public = Ed25519PublicKey.from_public_bytes(base64.b64decode(key[len(PREFIX) :]))
            value = base64.b64decode(signature.get("value", ""), validate=True)
            public.verify(value, _encoded(payload_type, payload))
        except (InvalidSignature, ValueError):
            return MISMATCH
        return ""


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
        if not policy.is_active or policy.unsigned == WARN:
            return True
        signer = self._texts.get(_restored_name(target, key))
        return signer in (None, BUILT_HERE) or signer in policy.trusted


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
        raise StageError("cryptography is not installed", _INSTALL) from error
    key = Ed25519PrivateKey.generate()
    content = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StageError(f"cannot write {file}: {error.strerror}", "name another file") from error
    with os.fdopen(handle, "wb") as writer:
        writer.write(content)
    return public_key_text(key)


def public_key_text(key: Ed25519PrivateKey) -> str:
    """Return the public key of a private one, as ``trusted_keys`` has it."""
    return PREFIX + base64.b64encode(key.public_key().public_bytes_raw()).decode("ascii")


def key_name(key: str) -> str:
    """Return the first digits of a public key, for people."""
    return key[: len(PREFIX) + 8]


def _encoded(payload_type: str, payload: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding."""
    header = f"DSSEv1 {len(payload_type)} {payload_type} {len(payload)} "
    return header.encode("ascii") + payload
