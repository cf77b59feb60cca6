"""Signed records of a shared cache: what other keys signed, or nobody, counts as absent."""

import json
import shutil
import stat
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from checkouts import Checkout, restored
from tiny_project import EXPORT, MODEL

from buildsys.errors import StageError
from buildsys.execution.provenance import ProvenanceSigner
from buildsys.execution.stale_reasons import summarize_reasons
from buildsys.store.ledger import ActionRecord, OutputFile
from buildsys.store.record_file import decode_record, encode_record
from buildsys.store.signatures import ACCEPT, REFUSE, WARN, SigningKey, TrustPolicy, generate_key
from buildsys.store.state_db import warn_on_stderr
from buildsys.system.signatures import (
    SignatureError,
    TrustedKeys,
    described,
    make_envelope,
    open_envelope,
)

OTHER = "ed25519:" + "A" * 43 + "="
DISAGREE = "and its signed statement disagree about the file"
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
    found = signer(key).sign_record(record)
    assert found is not None
    return found


def problem(policy: TrustPolicy, record: ActionRecord) -> str:
    with pytest.raises(SignatureError) as refused:
        policy.signer(record)
    return refused.value.problem


def signer(file: Path) -> ProvenanceSigner:
    return ProvenanceSigner(SigningKey(file), warn_on_stderr)


def test_a_signature_holds_after_a_round_trip(keys: tuple[Path, str]) -> None:
    file, public = keys
    content = encode_record(signed(RECORD, file))
    assert json.loads(content.partition(b"\n")[2])["schema"] == 3
    read = decode_record(content, EXPORT, "a" * 64)
    assert TrustPolicy([public]).signer(read) == public
    assert TrustPolicy([public]).signer(replace(read, origin="shared")) == public


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
    assert problem(TrustPolicy([public]), changed) == "was altered after it was signed"


@pytest.mark.parametrize(
    ("digests", "byproduct", "text"),
    [
        ({MODEL: "d" * 64}, "engine.json", "has a signed statement that buildsys did not make"),
        ({}, "record", f"{DISAGREE} '{MODEL}'"),
        ({MODEL: "e" * 64}, "record", f"{DISAGREE} '{MODEL}'"),
        ({MODEL: "d" * 64, "a": ""}, "record", f"{DISAGREE} 'a'"),
    ],
)
def test_a_signature_of_another_statement_does_not_count(
    keys: tuple[Path, str], digests: dict[str, str], byproduct: str, text: str
) -> None:
    """An engine's envelope is of the same key and type, and says nothing about a record."""
    file, public = keys
    statement, _ = open_envelope(signed(RECORD, file).signature, TrustedKeys.of([public]))
    statement["subject"] = [described(name, blake3=digest) for name, digest in digests.items()]
    statement["predicate"]["runDetails"]["byproducts"][0]["name"] = byproduct
    payload = json.dumps(statement).encode()
    envelope = make_envelope(payload, SigningKey(file).sign_statement(payload))
    assert problem(TrustPolicy([public]), replace(RECORD, signature=envelope)) == text


def test_other_signatures_are_not_trusted(keys: tuple[Path, str], tmp_path: Path) -> None:
    _, public = keys
    other = generate_key(tmp_path / "other.pem")
    policy = TrustPolicy([public])
    assert problem(policy, RECORD) == "is not signed"
    foreign = signed(RECORD, tmp_path / "other.pem")
    assert problem(policy, foreign).startswith("is not signed by a trusted key, but by ed25519:")
    assert foreign.signature is not None
    (other_signature,) = foreign.signature["signatures"]
    for value in (other_signature["sig"], "????", ""):  # under the name of a trusted key
        pair = {"keyid": public, "sig": value}
        forged = replace(RECORD, signature={**foreign.signature, "signatures": [pair]})
        assert problem(policy, forged) == "does not match its signature"
    for before in ({}, {"key": public, "value": "AAAA"}):
        earlier = replace(RECORD, signature=before)
        assert problem(policy, earlier) == "has no valid DSSE envelope as its signature"
    assert TrustPolicy([public, other]).signer(foreign) == other


def test_a_key_is_private_and_never_overwritten(keys: tuple[Path, str]) -> None:
    file, public = keys
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(public) == len("ed25519:") + 44
    with pytest.raises(StageError, match="File exists"):
        generate_key(file)


def test_an_unusable_key_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"cannot read .*no\.pem: No such file"):
        _ = SigningKey(tmp_path / "no.pem").public_key
    (tmp_path / "text.pem").write_text("text")
    (tmp_path / "text.pem").chmod(0o600)
    with pytest.raises(StageError, match="is not an ed25519 key in a PEM file"):
        _ = SigningKey(tmp_path / "text.pem").public_key
    with pytest.raises(StageError, match="the key is not an ed25519 key"):
        _ = SigningKey("-----BEGIN nothing").public_key
    make = ["openssl", "genpkey", "-algorithm", "x25519", "-out", str(tmp_path / "other.pem")]
    subprocess.run(make, check=True, capture_output=True)
    (tmp_path / "other.pem").chmod(0o600)
    with pytest.raises(StageError, match=r"other\.pem is not an ed25519 key"):
        _ = SigningKey(tmp_path / "other.pem").public_key


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o602])
def test_a_key_that_others_can_read_or_replace_is_not_used(
    keys: tuple[Path, str], mode: int
) -> None:
    file, _ = keys
    file.chmod(mode)
    with pytest.raises(StageError, match=f"mode {mode:o}") as refused:
        _ = SigningKey(file).public_key
    assert refused.value.hint == f"chmod 600 {file}"
    file.chmod(0o640)  # a group of its own, as Kubernetes mounts secrets
    assert SigningKey(file).public_key == keys[1]


def test_a_revoked_key_is_never_trusted(keys: tuple[Path, str]) -> None:
    file, public = keys
    for unsigned in (REFUSE, WARN):
        policy = TrustPolicy([public], unsigned, revoked=[public])
        with pytest.raises(SignatureError) as refused:
            policy.signer(signed(RECORD, file))
        assert refused.value.problem == f"is signed by the revoked key {public[:16]}"
        assert not policy.tolerates(refused.value)


# --- builds with a shared cache ---


def share(clone: Clone, shared: Path, key: Path | None) -> None:
    one = Checkout(clone("one"), shared, signer=signer(key) if key else None)
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
    assert bool(three.executor.up_to_date_status(EXPORT)) != used
    if used:
        why = summarize_reasons(three.executor.examine(EXPORT).reasons)
        assert why == "restored from a shared cache without a trusted signature"
        assert restored(three.build(EXPORT)) == []
    assert Checkout(root, shared, trust=TrustPolicy([public])).executor.up_to_date_status(EXPORT)


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
    assert restored(Checkout(root, shared, trust=TrustPolicy([OTHER])).build(EXPORT)) == []


@pytest.mark.parametrize("unsigned", [REFUSE, WARN])
def test_results_of_a_revoked_key_are_stale(
    clone: Clone, shared: Path, keys: tuple[Path, str], unsigned: str
) -> None:
    file, public = keys
    share(clone, shared, file)
    root = clone("two")
    trust = TrustPolicy([public], unsigned)
    assert restored(Checkout(root, shared, trust=trust).build(EXPORT)) == [EXPORT]
    revoked = TrustPolicy([public, OTHER], unsigned, revoked=[public])
    two = Checkout(root, shared, trust=revoked)
    assert not two.executor.up_to_date_status(EXPORT)
    assert restored(two.build(EXPORT)) == []
    assert f"is signed by the revoked key {public[:16]}; ignored" in two.warnings[0]


def test_without_a_usable_key_nothing_is_shared(clone: Clone, shared: Path, tmp_path: Path) -> None:
    warnings: list[str] = []
    signer = ProvenanceSigner(SigningKey(tmp_path / "no.pem"), warnings.append)
    Checkout(clone("one"), shared, signer=signer).build()
    (warning,) = warnings
    assert warning.startswith("cannot sign results: cannot read")
    assert warning.endswith("engines stay unsigned, and nothing is shared")
    assert not list(shared.glob("actions/*/*"))
