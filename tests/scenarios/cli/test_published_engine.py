"""`buildsys publish`: verified engines in a folder, refused ones, and the list."""

import json
import shutil
from pathlib import Path

from project_folder import ProjectFolder

from buildsys import can_run


def test_a_verified_engine_is_published_once(built: ProjectFolder, tmp_path: Path) -> None:
    releases = tmp_path / "releases"
    found = built.buildsys("publish", "lin", str(releases), "--version", "1.0")
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith("published  lin:ort  ")
    version = releases / "lin/ort/1.0"
    assert can_run(version)
    files = {str(path.relative_to(version)) for path in version.rglob("*") if path.is_file()}
    assert {"engine.onnx", "engine.json", "provenance.json", "SHA256SUMS"} < files
    assert {"reports/verify.json", "reports/validate.json", "reports/report.md"} < files
    for path in version.rglob("*.json"):
        assert str(built.root) not in path.read_text(), path.name
    provenance = json.loads((version / "provenance.json").read_text())
    assert provenance["manifest"]["model"] == "lin"
    assert {"export:lin", "engine:lin:ort", "verify:lin:ort"} < provenance["targets"].keys()
    assert "tool:torch" in provenance["targets"]["export:lin"]["parts"]

    again = built.buildsys("publish", "lin:ort", str(releases), "--version", "1.0", "--json")
    assert [one["state"] for one in json.loads(again.out)["engines"]] == ["unchanged"]
    assert built.buildsys("publish", "--list", str(releases), "--json").code == 0
    listed = built.buildsys("publish", "--list", str(releases)).out.splitlines()
    assert [line.split()[:2] for line in listed[1:]] == [["lin:ort", "1.0"]]

    manifest = built.root / "configs/models/lin.yaml"
    manifest.write_text(manifest.read_text() + "verify: {fp32: {rtol: 0.5}}\n")
    refused = built.buildsys("publish", "lin", str(releases), "--version", "1.1")
    assert (refused.code, refused.err) == (1, "")
    assert "verify:lin:ort has not run on the current files" in refused.out
    assert "run `buildsys build verify:lin:ort`" in refused.out
    assert "1 refused; nothing was published" in refused.out
    assert not (releases / "lin/ort/1.1").exists()

    shutil.rmtree(built.root / "build")
    refused = built.buildsys("publish", "lin:ort", str(tmp_path / "other"), "--version", "1.1")
    assert refused.code == 1
    assert "engine:lin:ort does not match its manifest" in refused.out
    assert not (tmp_path / "other").exists()
