"""Releases as a user makes them: publish, promote, resolve, roll back, collect."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from project_folder import ProjectFolder

ROOT = Path(__file__).parents[3]


def test_an_engine_is_released_resolved_and_rolled_back(
    built: ProjectFolder, tmp_path: Path
) -> None:
    url, cache = str(tmp_path / "releases"), tmp_path / "cache"
    key = tmp_path / "ci.key"
    made = built.buildsys("cache", "keygen", str(key), "--json")
    public = json.loads(made.out)["public_key"]
    built.environment["BUILDSYS_SIGNING_KEY"] = str(key)
    for serial, release in ((1, "1.0"), (2, "1.1")):
        published = built.buildsys("publish", "lin", url, "--release", release)
        assert (published.code, published.err) == (0, "")
        assert published.out.splitlines()[-2:] == [
            f"published the release {release} with 1 engine",
            f"next: buildsys release promote {url} {release}",
        ]
        promoted = built.buildsys("release", "promote", url, release)
        assert promoted.out == f"stable is {release} (serial {serial})\n"
    again = built.buildsys("publish", "lin:ort", url, "--release", "1.1")
    assert "unchanged the release 1.1 with 1 engine" in again.out
    listed = built.buildsys("release", "list", url).out.splitlines()
    assert [line.split()[0] for line in listed] == ["release", "1.1", "1.0"]
    assert listed[1].endswith("stable (2)")

    code = (
        "import sys, buildsys, numpy\n"
        "url, key, cache = sys.argv[1:]\n"
        "engine = buildsys.resolve(url, trusted_keys=[key], folder=cache)\n"
        "with buildsys.load_engine(engine) as loaded:\n"
        "    shape = [s if isinstance(s, int) else 2 for s in loaded.inputs[0].shape]\n"
        "    loaded({loaded.inputs[0].name: numpy.zeros(shape, loaded.inputs[0].dtype)})\n"
        "print(engine.index.release, engine.decision.choices[0].same_device)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, url, public, str(cache)],
        capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert (done.stdout.split()[0], done.stderr) == ("1.1", "")
    ranked = built.buildsys("release", "resolve", url, "--trusted-key", public, "--json")
    document = json.loads(ranked.out)
    assert (document["engine"], document["folder"]) == ("lin:ort", None)
    assert document["channel"] == {"name": "stable", "serial": 2}

    assert built.buildsys("release", "rollback", url).out == "stable is 1.0 (serial 3)\n"
    canary = built.buildsys("release", "promote", url, "1.1", "--channel", "canary")
    assert canary.code == 0
    unneeded = built.buildsys("release", "gc", url, "--keep", "0", "--older-than", "0s")
    assert unneeded.out == "removed 0 releases and 0 unfinished uploads\n"
    assert built.buildsys("release", "list", url, "--json").code == 0  # checks the document
    missing = built.buildsys("release", "promote", url, "9")
    assert (missing.code, missing.out) == (3, "")
    assert "there is no release 9; `buildsys release list URL` lists all" in missing.err
    wrong = built.buildsys("release", "promote", url)
    assert "release takes a subcommand and a URL; run `buildsys help release`" in wrong.err

    for name, target in (
        ("triton", "served"),
        ("oci", "layout"),
        ("card", "c.md"),
        ("bom", "b.json"),
    ):
        served = built.buildsys("release", name, url, str(tmp_path / target), "--channel", "canary")
        assert (served.code, served.err) == (0, "")
    assert (tmp_path / "served/lin-ort/1/model.onnx").is_file()
    assert "# lin 1.1" in (tmp_path / "c.md").read_text()
    pytest.importorskip("model_signing")
    curve = ec.generate_private_key(ec.SECP256R1())
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private = curve.private_bytes(serialization.Encoding.PEM, *form)
    public_format = serialization.PublicFormat.SubjectPublicKeyInfo
    (tmp_path / "ec.pem").write_bytes(private)
    (tmp_path / "ec.pub").write_bytes(
        curve.public_key().public_bytes(serialization.Encoding.PEM, public_format)
    )
    place = tmp_path / "signed/lin/ort"
    signed = built.buildsys(
        "release", "sign", url, str(tmp_path / "signed"), "--key", str(tmp_path / "ec.pem")
    )
    assert signed.out == f"signed  {place}.sig\n"
    verify = [sys.executable, "-m", "model_signing", "verify", "key", str(place)]
    verify += ["--signature", f"{place}.sig", "--public_key", str(tmp_path / "ec.pub")]
    assert subprocess.run(verify, capture_output=True, check=False).returncode == 0
    (place / "engine.onnx").write_bytes(b"another")
    assert subprocess.run(verify, capture_output=True, check=False).returncode == 1

    index = tmp_path / "releases/releases/1.0.json"
    index.write_text(index.read_text().replace('"fp32"', '"fp64"'))
    altered = built.buildsys("release", "resolve", url, "--trusted-key", public)
    assert altered.code == 2
    assert "releases/1.0.json was altered after it was signed" in altered.err
    unsigned = built.buildsys("release", "resolve", url)
    assert "releases/1.0.json is not the index that channels/stable names" in unsigned.err
