"""Signed engines, from the key to the check on another machine."""

import base64
import json
import shutil
from pathlib import Path

import pytest
from command_answers import commit, git
from ready_project import ReadyProject

from buildsys import EngineError, can_run, load_engine
from buildsys.store.signatures import generate_key

OTHER = "ed25519:" + "A" * 43 + "="
FOLDER = "build/a/engine/ort"


def test_an_engine_is_signed_checked_and_refused(ready: ReadyProject, tmp_path: Path) -> None:
    git(ready.root, "init", "-q")
    commit(ready.root, "zero")
    key = tmp_path / "key.pem"
    public = generate_key(key)
    ready.environment["BUILDSYS_SIGNING_KEY"] = key.read_text()
    ran = ready.doit("engine:a:ort")
    assert (ran.code, ran.err) == (0, "")
    record = json.loads((ready.root / FOLDER / "engine.json").read_text())
    statement = json.loads(base64.b64decode(record["attestation"]["payload"]))
    source, *_ = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source["digest"] == {"gitCommit": git(ready.root, "rev-parse", "HEAD").strip()}

    deployed = tmp_path / "deployed"
    shutil.copytree(ready.root / FOLDER, deployed)
    result = can_run(deployed, trusted_keys=[public])
    assert result, str(result)
    assert result.signed_by == public
    with load_engine(deployed, trusted_keys=[public]) as engine:
        assert engine.inputs
    with pytest.raises(EngineError, match="is signed by the revoked key"):
        load_engine(deployed, trusted_keys=[public], revoked_keys=[public])

    doctor = ready.buildsys("doctor", str(deployed), "--trusted-key", public)
    assert doctor.code == 0
    assert f"it can run here, and is signed by {public[:16]}" in doctor.out
    del ready.environment["BUILDSYS_SIGNING_KEY"]
    settings = ready.root / "configs/project.yaml"
    settings.write_text(f"cache: {{trusted_keys: ['{OTHER}']}}\n")
    refused = ready.buildsys("doctor", str(deployed))
    assert refused.code == 1
    assert f"is not signed by a trusted key, but by {public[:16]}" in refused.out
    settings.write_text(f"cache: {{trusted_keys: ['{public}']}}\n")
    assert "is signed by" in ready.buildsys("doctor", str(deployed)).out
