"""Signatures of engines: each problem has one sentence, before anything is loaded."""

import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buildsys import EngineError, can_run, doctor, load_engine
from buildsys.deploy.can_run import check_signature
from buildsys.store.signatures import SigningKey, generate_key
from buildsys.system.engine_files import content_digest
from buildsys.system.signatures import TrustedKeys, make_envelope

OTHER = "ed25519:" + "A" * 43 + "="
CONTENT = b"an engine"
Change = Callable[[dict[str, Any]], Any]


class Signed:
    """A folder with a signed engine."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.key = folder.parent / "key.pem"
        self.public = generate_key(self.key)
        self.engine = folder / "engine.onnx"
        self.engine.write_bytes(CONTENT)
        digest = hashlib.sha256(CONTENT).hexdigest()
        self.figures: dict[str, Any] = {
            "model": "m",
            "backend": "onnxruntime",
            "files": {"engine.onnx": {"bytes": len(CONTENT), "sha256": digest}},
            "loss": 0.1,
        }
        self.statement: dict[str, Any] = {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": "engine.onnx", "digest": {"sha256": digest}}],
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": {"runDetails": {"byproducts": [
                {"name": "engine.json", "digest": {"sha256": content_digest(self.figures)}}
            ]}},
        }  # fmt: skip
        self.sign()

    def sign(self, *keys: Path) -> None:
        """Sign the present statement."""
        payload = json.dumps(self.statement).encode()
        signatures = {}
        for key in keys or (self.key,):
            signatures |= SigningKey(key).sign_statement(payload)
        self.write({**self.figures, "attestation": make_envelope(payload, signatures)})

    def write(self, record: Any) -> None:
        self.engine.with_name("engine.json").write_text(json.dumps(record))

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.engine.with_name("engine.json").read_text())
        return found

    def reason(self, *trusted: str, revoked: tuple[str, ...] = ()) -> tuple[str, str]:
        """Return kind and problem of the only reason against the engine."""
        result = can_run(
            self.engine.parent, trusted_keys=trusted or [self.public], revoked_keys=revoked
        )
        assert not result
        (reason,) = result.reasons
        assert "\n" not in str(reason)
        assert reason.remedy
        return reason.kind, reason.problem


@pytest.fixture
def signed(tmp_path: Path) -> Signed:
    return Signed(tmp_path / "engine")


def test_a_trusted_signature_is_named(signed: Signed) -> None:
    keys = TrustedKeys.of([OTHER, signed.public])
    assert check_signature(signed.engine, keys) == (signed.public, ())


def test_an_unsigned_engine_is_refused(signed: Signed) -> None:
    signed.write(signed.figures)
    assert signed.reason() == ("unsigned", "engine.json is not signed")


def test_the_signer_of_an_untrusted_engine_is_named(signed: Signed) -> None:
    name = signed.public[:16]
    assert signed.reason(OTHER) == (
        "untrusted",
        f"engine.json is not signed by a trusted key, but by {name}",
    )
    nobody = can_run(signed.engine, trusted_keys=[])  # as of an empty setting
    assert nobody.reasons[0].kind == "untrusted"


def test_a_revoked_key_is_refused_although_it_is_trusted(signed: Signed) -> None:
    problem = f"engine.json is signed by the revoked key {signed.public[:16]}"
    assert signed.reason(signed.public, OTHER, revoked=(signed.public,)) == ("revoked", problem)


def test_of_two_signatures_one_must_be_trusted(signed: Signed, tmp_path: Path) -> None:
    second = tmp_path / "second.pem"
    public = generate_key(second)
    signed.sign(second, signed.key)
    for trusted, revoked in (([public], []), ([signed.public], []), ([signed.public], [public])):
        signer, reasons = check_signature(signed.engine, TrustedKeys.of(trusted, revoked))
        assert (signer, reasons) == (trusted[0], ())
    assert signed.reason(OTHER)[1].endswith(f"but by {public[:16]}, {signed.public[:16]}")
    record = signed.record
    record["attestation"]["signatures"][0]["sig"] = "AAAA"  # the other one is still valid
    signed.write(record)
    both = TrustedKeys.of([public, signed.public])
    assert check_signature(signed.engine, both) == (signed.public, ())


@pytest.mark.parametrize("content", [CONTENT + b"!", b"another 1", b""])
def test_another_engine_file_is_refused(signed: Signed, content: bytes) -> None:
    signed.engine.write_bytes(content)
    kind, problem = signed.reason()
    assert kind == ("truncated" if not content else "digest")
    assert problem.startswith("engine.onnx is ")
    # digests are compared whatever the caller says
    assert not can_run(signed.engine, digest=False, trusted_keys=[signed.public])


def altered_payload(record: dict[str, Any]) -> None:
    envelope = record["attestation"]
    payload = base64.b64decode(envelope["payload"]).replace(b"engine.onnx", b"engine.evil")
    envelope["payload"] = base64.b64encode(payload).decode()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda r: r.update(loss=0.2), "was altered after it was signed"),
        (lambda r: r.update(plugins=[{"file": "evil.py"}]), "was altered after it was signed"),
        (altered_payload, "does not match its signature"),
        (lambda r: r["attestation"]["signatures"][0].update(sig="AAAA"), "does not match"),
        (lambda r: r["attestation"].update(payloadType="text/plain"), "does not match its"),
        (lambda r: r["attestation"].update(payload="?"), "no valid DSSE envelope"),
        (lambda r: r["attestation"].update(payload=7), "no valid DSSE envelope"),
        (lambda r: r["attestation"].pop("payload"), "no valid DSSE envelope"),
        (lambda r: r["attestation"].update(signatures={"a": 1}), "no valid DSSE envelope"),
        (lambda r: r["attestation"]["signatures"][0].update(sig=7), "does not match"),
        (lambda r: r.update(attestation="signed"), "no valid DSSE envelope"),
        (lambda r: r["attestation"].update(signatures=[]), "is not signed"),
    ],
)
def test_an_altered_record_is_refused(signed: Signed, change: Change, problem: str) -> None:
    record = signed.record
    change(record)
    signed.write(record)
    kind, found = signed.reason()
    assert kind in ("signature", "unsigned")
    assert found.startswith("engine.json ")
    assert problem in found


def subject(name: str) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": "0" * 64}}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda s: s.update(_type="https://in-toto.io/Statement/v0.1"), "not an in-toto statement"),
        (lambda s: s.update(predicateType="https://spdx.dev/Document"), "statement of https://sl"),
        (lambda s: s.pop("predicateType"), "is not an in-toto statement of"),
        (lambda s: s.update(predicate=[]), "buildsys did not make"),
        (lambda s: s.update(subject=[]), "about the file 'engine.onnx'"),
        (lambda s: s["subject"][0].update(name="other.onnx"), "about the file 'engine.onnx'"),
        (lambda s: s["subject"][0]["digest"].update(sha256="0" * 64), "file 'engine.onnx'"),
        (lambda s: s["subject"].append(subject("z.data")), "about the file 'z.data'"),
        (lambda s: s["subject"].append(subject("engine.onnx")), "about the file 'engine.onnx'"),
        (lambda s: s["subject"][0].update(digest={"md5": ""}), "buildsys did not make"),
        (lambda s: s.pop("subject"), "buildsys did not make"),
    ],
)
def test_another_statement_of_a_trusted_key_is_refused(
    signed: Signed, change: Change, problem: str
) -> None:
    change(signed.statement)
    signed.sign()
    kind, found = signed.reason()
    assert kind == "signature"
    assert problem in found


def test_load_engine_loads_nothing_that_is_not_trusted(signed: Signed) -> None:
    with pytest.raises(EngineError, match="not signed by a trusted key") as refused:
        load_engine(signed.engine, trusted_keys=[OTHER])
    assert refused.value.hint == "take an engine that a trusted key has signed"


@pytest.mark.parametrize(
    ("trusted", "revoked", "problem"),
    [
        (OTHER, (), "is a string, not a list"),
        (["me"], (), "'me' is not a public key"),
        ([7], (), "7 is not a public key"),
        (7, (), "not iterable"),
        ([OTHER], ["-"], "'-' is not a public key"),
    ],
)
def test_wrong_keys_are_one_sentence(
    signed: Signed, trusted: Any, revoked: Any, problem: str
) -> None:
    with pytest.raises(EngineError, match="buildsys cache keygen") as refused:
        can_run(signed.engine, trusted_keys=trusted, revoked_keys=revoked)
    assert problem in refused.value.problem


def test_revoked_keys_alone_would_check_nothing(signed: Signed) -> None:
    with pytest.raises(EngineError, match="no effect without trusted_keys"):
        can_run(signed.engine, revoked_keys=[signed.public])


def test_the_module_takes_keys(signed: Signed, capsys: pytest.CaptureFixture[str]) -> None:
    engine = str(signed.engine)
    assert doctor.main([engine, f"--trusted-key={OTHER}"]) == 1
    assert "but by ed25519:" in capsys.readouterr().out
    assert doctor.main([engine, f"--trusted-key={OTHER}", "--trusted-key=me"]) == 3
    assert "'me' is not a public key" in capsys.readouterr().err
    keys = [f"--trusted-key={signed.public}", f"--revoked-key={signed.public}"]
    assert doctor.main([engine, *keys, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["reasons"][0]["kind"] == "revoked"


def test_without_cryptography_the_remedy_is_its_installation(
    signed: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    (reason,) = can_run(signed.engine, trusted_keys=[signed.public]).reasons
    assert reason.problem == "engine.json cannot be verified without cryptography"
    assert reason.remedy == "pip install 'buildsys[signing]'"


def test_no_library_is_imported_for_an_engine_that_is_refused(signed: Signed) -> None:
    code = (
        "import sys\n"
        "from buildsys import can_run\n"
        f"result = can_run({str(signed.engine)!r}, trusted_keys=[{OTHER!r}])\n"
        "found = [n for n in ('cryptography', 'numpy', 'onnxruntime') if n in sys.modules]\n"
        "print(result.reasons[0].kind, found)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "untrusted []\n"
