"""Provenance of engines: what a signing run adds to engine.json, and to nothing else."""

import base64
import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import pytest
import tiny_project
from tiny_project import BENCH, ENGINE, EXPORT, REPORT, make_executor

from buildsys import __version__
from buildsys.deploy.can_run import check_signature
from buildsys.errors import UsageError
from buildsys.execution.provenance import ProvenanceSigner
from buildsys.store.signatures import SigningKey, generate_key
from buildsys.system.git import Checkout
from buildsys.system.signatures import TrustedKeys

COMMIT = "1f" * 20
CHECKOUT = Checkout("git.example.org/team/nets//vision", COMMIT, dirty=True)
RECORD = "build/m/engine/e/engine.json"


@pytest.fixture(autouse=True)
def engines_list_their_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def engine(job: Any) -> dict[str, Any]:
        figures = tiny_project.engine(job)
        file = job.outputs["engine"]
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        facts = {"bytes": file.stat().st_size, "sha256": digest}
        return {**figures, "backend": "onnxruntime", "files": {file.name: facts}}

    monkeypatch.setitem(tiny_project.STAGES, "engine", engine)


def build(root: Path, key: Path | None, *targets: str, **options: Any) -> list[str]:
    """Build targets, with a signer if there is a key; return what ran and the warnings."""
    said: list[str] = []
    signer = ProvenanceSigner(SigningKey(key), said.append, **options) if key else None
    executor, pool = make_executor(root, signer=signer)
    for target in targets or (EXPORT, ENGINE, BENCH, REPORT):
        if not executor.up_to_date_status(target):
            executor.run(target)
    executor.close()
    return pool.ran + said


def envelope(root: Path) -> Any:
    return json.loads((root / RECORD).read_text()).get("attestation")


def statement(root: Path) -> Any:
    return json.loads(base64.b64decode(envelope(root)["payload"]))


def test_an_engine_carries_its_provenance(root: Path, tmp_path: Path) -> None:
    public = generate_key(tmp_path / "key.pem")
    build(root, tmp_path / "key.pem", read_checkout=lambda: CHECKOUT)
    found = statement(root)
    assert (found["_type"], found["predicateType"]) == (
        "https://in-toto.io/Statement/v1",
        "https://slsa.dev/provenance/v1",
    )
    engine = root / "build/m/engine/e/engine.bin"
    digest = hashlib.sha256(engine.read_bytes()).hexdigest()
    assert found["subject"] == [{"name": "engine.bin", "digest": {"sha256": digest}}]
    definition, run = found["predicate"]["buildDefinition"], found["predicate"]["runDetails"]
    assert definition["externalParameters"] == {"target": ENGINE, "options": {"engine": "{}"}}
    source, graph = definition["resolvedDependencies"]
    assert source == {
        "name": "source",
        "digest": {"gitCommit": COMMIT},
        "uri": f"git+https://git.example.org/team/nets@{COMMIT}",
        "annotations": {"folder": "vision", "uncommitted": True},
    }
    assert graph["name"] == "m/export/model.onnx"
    assert run["builder"]["id"].removeprefix("urn:buildsys:builder:") == (
        base64.b64decode(public.partition(":")[2]).hex()
    )
    version = run["builder"]["version"]
    assert version == {"buildsys": __version__, "python": platform.python_version()}
    assert check_signature(engine, TrustedKeys.of([public])) == (public, ())
    others = [path for path in (root / "build").rglob("*.json") if path != root / RECORD]
    assert len(others) == 3
    assert not any("attestation" in path.read_text() for path in others)


def test_a_key_makes_nothing_stale(root: Path, tmp_path: Path) -> None:
    generate_key(tmp_path / "key.pem")
    assert build(root, None) == [EXPORT, ENGINE, BENCH, REPORT]
    assert envelope(root) is None
    assert build(root, tmp_path / "key.pem") == []
    assert envelope(root) is None
    (root / "build/m/engine/e/engine.bin").unlink()  # restored as it was built
    assert build(root, tmp_path / "key.pem") == []
    assert envelope(root) is None


def test_tools_and_files_are_named_without_paths(tmp_path: Path) -> None:
    def no_git() -> Checkout:
        raise UsageError("there is no git repository")

    signer = ProvenanceSigner(SigningKey(tmp_path / "key.pem"), print, no_git)
    generate_key(tmp_path / "key.pem")
    parts = {
        "tool:torch": "2.14.1+cpu",
        "tool:old/tensorrt": "8.6.1",
        "tool:python": "3.12.1",
        "tool:torch (files)": "0" * 64,
        "tool:onnx": "absent",
        "source:net.py": "b" * 64,
        "source:/home/me/net.py": "c" * 64,
        "read:labels.txt": f"{'d' * 64} net.py:3",
        "env:TOKEN": "set, digest 0123",
        "device:gpu.name": "L4",
    }
    definition = signer._statement("engine:m:e", "k" * 64, parts, "", [], {})["predicate"][
        "buildDefinition"
    ]
    assert definition["resolvedDependencies"] == [
        {"name": "net.py", "digest": {"blake3": "b" * 64}, "annotations": {"kind": "source"}},
        {"name": "labels.txt", "digest": {"blake3": "d" * 64}, "annotations": {"kind": "read"}},
        {"uri": "pkg:pypi/tensorrt@8.6.1"},
        {"uri": "pkg:generic/python@3.12.1"},
        {"uri": "pkg:pypi/torch@2.14.1%2Bcpu"},
    ]
    assert definition["internalParameters"] == {"key": "k" * 64, "devices": {"gpu.name": "L4"}}


def test_an_unusable_key_is_a_warning_and_the_engine_stays_unsigned(
    root: Path, tmp_path: Path
) -> None:
    *ran, warning = build(root, tmp_path / "none.pem")
    assert ran == [EXPORT, ENGINE, BENCH, REPORT]
    assert warning == (
        f"cannot sign results: cannot read {tmp_path}/none.pem: No such file or directory; "
        "check the path of the key; engines stay unsigned, and nothing is shared"
    )
    assert envelope(root) is None


def test_the_libraries_of_in_toto_accept_envelope_and_statement(root: Path, tmp_path: Path) -> None:
    dsse = pytest.importorskip("securesystemslib.dsse")
    v1 = pytest.importorskip("in_toto_attestation.v1.statement")
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from google.protobuf import json_format
    from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import SSlibKey

    key = tmp_path / "key.pem"
    public = generate_key(key)
    build(root, key, EXPORT, ENGINE, read_checkout=lambda: CHECKOUT)
    found = dsse.Envelope.from_dict(envelope(root))
    private: Any = load_pem_private_key(key.read_bytes(), None)
    theirs = SSlibKey.from_crypto(private.public_key(), keyid=public)
    assert set(found.verify([theirs], 1)) == {public}
    parsed = json_format.Parse(found.payload, statement_pb2.Statement())
    v1.Statement.copy_from_pb(parsed).validate()
    # protobuf refuses unknown fields and times in another format
    predicate = json_format.ParseDict(statement(root)["predicate"], provenance_pb2.Provenance())
    described = [
        *predicate.build_definition.resolved_dependencies,
        *predicate.run_details.byproducts,
    ]
    assert len(described) == 3
    for one in described:
        ResourceDescriptor.copy_from_pb(one).validate()
    found.payload += b" "
    with pytest.raises(VerificationError):
        found.verify([theirs], 1)
