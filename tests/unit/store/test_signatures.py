"""Signed records of a shared cache: what other keys signed, or nobody, counts as absent."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from checkouts import Checkout, restored
from tiny_project import EXPORT, MODEL

from buildsys.errors import StageError
from buildsys.execution.stale_reasons import summarize_reasons
from buildsys.store.ledger import ActionRecord, OutputFile
from buildsys.store.record_file import decode_record, encode_record
from buildsys.store.signatures import (
    ACCEPT,
    REFUSE,
    WARN,
    SigningKey,
    TrustPolicy,
    generate_key,
)

Clone = Callable[[str], Path]
RECORD = ActionRecord(
    EXPORT,
    "a" * 64,
    {"config:x": "1"},
    {MODEL: OutputFile("d" * 64, 5), "m/export/x": None},
    "passed",
    "2026-01-02T03:04:05Z",
    1,
    figures={"n": 1, "é": [0.1, float("inf")], "by number": {10: "x", 9: "y"}},
)


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, str]:
    """A private key and its public key."""
    return tmp_path / "key.pem", generate_key(tmp_path / "key.pem")


def signed(record: ActionRecord, key: Path) -> ActionRecord:
    return replace(record, signature=SigningKey(key).sign(record))


def test_a_signature_holds_after_a_round_trip(keys: tuple[Path, str]) -> None:
    file, public = keys
    read = decode_record(encode_record(signed(RECORD, file)), EXPORT, "a" * 64)
    assert TrustPolicy([public]).problem(read) == ""
    assert TrustPolicy([public]).problem(replace(read, origin="shared")) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"target": "export:other"},
        {"key": "b" * 64},
        {"parts": {"config:x": "2"}},
        {"outputs": {MODEL: OutputFile("e" * 64, 5), "m/export/x": None}},
        {"outputs": {MODEL: OutputFile("d" * 64, 6), "m/export/x": None}},
        {"outputs": {MODEL: OutputFile("d" * 64, 5)}},
        {"status": "unavailable"},
        {"figures": {}},
        {"seconds": 2},
        {"reason": "x"},
    ],
)
def test_a_changed_field_does_not_match(keys: tuple[Path, str], change: dict[str, Any]) -> None:
    file, public = keys
    changed = replace(signed(RECORD, file), **change)
    assert TrustPolicy([public]).problem(changed) == "does not match its signature"


def test_other_signatures_are_not_trusted(keys: tuple[Path, str], tmp_path: Path) -> None:
    _, public = keys
    other = generate_key(tmp_path / "other.pem")
    policy = TrustPolicy([public])
    assert policy.problem(RECORD) == "is not signed"
    foreign = signed(RECORD, tmp_path / "other.pem")
    assert policy.problem(foreign) == "is not signed by a trusted key"
    assert foreign.signature is not None
    for signature in (
        {**foreign.signature, "key": public},  # of another key under a trusted name
        {"key": public, "value": "????"},
        {"key": public, "value": ""},
        {"key": public},
    ):
        forged = replace(RECORD, signature=signature)
        assert policy.problem(forged) == "does not match its signature"
    assert policy.problem(replace(RECORD, signature={})) == "is not signed by a trusted key"
    assert TrustPolicy([public, other]).problem(foreign) == ""


def test_a_key_is_private_and_never_overwritten(keys: tuple[Path, str]) -> None:
    file, public = keys
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(public) == len("ed25519:") + 44
    with pytest.raises(StageError, match="File exists"):
        generate_key(file)


def test_an_unusable_key_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"cannot read .*no\.pem: No such file"):
        SigningKey(tmp_path / "no.pem").sign(RECORD)
    (tmp_path / "text.pem").write_text("text")
    with pytest.raises(StageError, match="is not a PEM file without a password"):
        SigningKey(tmp_path / "text.pem").sign(RECORD)


def test_signatures_need_their_library_only_when_used() -> None:
    code = "import sys, buildsys.execution.executor; print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_without_the_library_nothing_is_trusted(
    keys: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, public = keys
    record = signed(RECORD, file)
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    assert "pip install 'buildsys[signing]'" in TrustPolicy([public]).problem(record)


# --- builds with a shared cache ---


def share(clone: Clone, shared: Path, key: Path | None) -> None:
    one = Checkout(clone("one"), shared, signing_key=SigningKey(key) if key else None)
    one.build(EXPORT)
    assert one.warnings == []


def alter(shared: Path) -> None:
    """Replace an output and its digest, with matching checksums."""
    content = b"malicious"
    digest = blake3(content).hexdigest()
    path = shared / f"objects/{digest[:2]}/{digest}"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    (file,) = shared.glob("actions/*/*.json")
    stored = json.loads(file.read_bytes().partition(b"\n")[2])
    stored["outputs"][MODEL] = [digest, len(content)]
    body = json.dumps(stored).encode()
    file.write_bytes(blake3(body).hexdigest().encode() + b"\n" + body)


@pytest.mark.parametrize("attack", ["unsigned", "wrong key", "altered", "signature removed"])
@pytest.mark.parametrize("unsigned", [REFUSE, WARN, ACCEPT])
def test_untrusted_records_are_treated_as_declared(
    clone: Clone, shared: Path, keys: tuple[Path, str], tmp_path: Path, attack: str, unsigned: str
) -> None:
    file, public = keys
    generate_key(tmp_path / "other.pem")
    key = {"unsigned": None, "wrong key": tmp_path / "other.pem"}.get(attack, file)
    share(clone, shared, key)
    if attack == "altered":
        alter(shared)
    if attack == "signature removed":
        (path,) = shared.glob("actions/*/*.json")
        stored = json.loads(path.read_bytes().partition(b"\n")[2])
        body = json.dumps({**stored, "signature": None}).encode()
        path.write_bytes(blake3(body).hexdigest().encode() + b"\n" + body)
    root = clone("two")
    two = Checkout(root, shared, mode="read-only", trust=TrustPolicy([public], unsigned))
    used = unsigned == ACCEPT or (unsigned == WARN and attack != "altered")
    assert restored(two.build(EXPORT)) == ([EXPORT] if used else [])
    assert len(two.warnings) == (unsigned != ACCEPT)
    assert all("the shared record of export:m" in warning for warning in two.warnings)
    assert (root / "build" / MODEL).read_bytes().startswith(b"opset") or used
    # another run, after the policy became strict: nothing rests on what was restored before
    three = Checkout(root, shared, mode="read-only", trust=TrustPolicy([public]))
    assert three.executor.is_fresh(EXPORT) != used
    if used:
        why = summarize_reasons(three.executor.examine(EXPORT).reasons)
        assert why == "restored from a shared cache without a trusted signature"
        assert restored(three.build(EXPORT)) == []
    assert Checkout(root, shared, trust=TrustPolicy([public])).executor.is_fresh(EXPORT)


def test_a_trusted_record_is_restored_and_names_its_signer(
    clone: Clone, shared: Path, keys: tuple[Path, str]
) -> None:
    file, public = keys
    share(clone, shared, file)
    root, trust = clone("two"), TrustPolicy([public])
    two = Checkout(root, shared, trust=trust)
    assert restored(two.build(EXPORT)) == [EXPORT]
    assert two.warnings == []
    log = (root / "build/m/export/export.log").read_text()
    assert log.endswith(f"; signed by {public[:16]}\n")
    shutil.rmtree(shared)
    shutil.rmtree(root / "build")  # restored from the local store, which keeps the signature
    assert restored(Checkout(root, shared, trust=trust).build(EXPORT)) == [EXPORT]
    shutil.rmtree(root / "build")
    other = TrustPolicy(["ed25519:" + "A" * 43 + "="])  # the key is revoked
    assert restored(Checkout(root, shared, trust=other).build(EXPORT)) == []


def test_results_of_this_machine_need_no_signature(clone: Clone, shared: Path) -> None:
    root, trust = clone("one"), TrustPolicy(["ed25519:" + "A" * 43 + "="])
    Checkout(root, shared, trust=trust).build(EXPORT)
    assert Checkout(root, shared, trust=trust).executor.is_fresh(EXPORT)
    shutil.rmtree(root / "build")
    assert restored(Checkout(root, shared, trust=trust).build(EXPORT)) == [EXPORT]


def test_without_a_usable_key_nothing_is_shared(clone: Clone, shared: Path, tmp_path: Path) -> None:
    one = Checkout(clone("one"), shared, signing_key=SigningKey(tmp_path / "no.pem"))
    one.build()
    (warning,) = one.warnings
    assert warning.startswith("cannot sign results: cannot read")
    assert not list(shared.glob("actions/*/*"))
