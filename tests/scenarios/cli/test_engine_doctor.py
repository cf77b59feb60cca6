"""`buildsys doctor ENGINE`: targets, files and folders; exit codes; JSON; a copied folder."""

import json
import shutil
from pathlib import Path

from project_folder import ProjectFolder

NAMES = ("lin:ort", "build/lin/engine/ort/engine.onnx", "build/lin/engine/ort")


def test_doctor_of_engines(built: ProjectFolder, tmp_path: Path) -> None:
    found = built.buildsys("doctor", *NAMES)
    assert (found.code, found.err) == (0, ""), found
    assert found.out.count("it can run here\n") == found.out.count(": lin:ort, ONNX Runtime ") == 3

    # as it is copied to another machine: nothing in it knows where it was built
    elsewhere = tmp_path / "deployed"
    shutil.copytree(built.root / "build/lin/engine/ort", elsewhere)
    for file in elsewhere.iterdir():
        assert file.suffix == ".log" or str(built.root).encode() not in file.read_bytes(), file.name
    record = json.loads((elsewhere / "engine.json").read_text())
    record["built_with"]["onnxruntime"] = "99.0.0"
    (elsewhere / "engine.json").write_text(json.dumps(record))
    (elsewhere / "engine.onnx").write_bytes((elsewhere / "engine.onnx").read_bytes()[:-10])
    found = built.buildsys("doctor", str(elsewhere), "lin:ort", "--json")
    assert found.code == 1
    wrong, right = json.loads(found.out)["engines"]
    assert (wrong["runs"], right["runs"]) == (False, True)
    assert [reason["kind"] for reason in wrong["reasons"]] == ["truncated", "version"]
    assert wrong["engine"] == str(elsewhere)

    missing = built.buildsys("doctor", "./nothing.engine")
    assert (missing.code, missing.err) == (1, "")
    assert "there is no engine file" in missing.out
    assert "build it, or pass the path" in missing.out
    unknown = built.buildsys("doctor", "lin:otr")
    assert (unknown.code, unknown.out) == (3, "")
    assert "there is no engine 'lin:otr'; nearest: lin:ort" in unknown.err


def test_doctor_of_an_engine_that_is_not_built(project: ProjectFolder) -> None:
    project.add_model("lin")
    found = project.buildsys("doctor", "lin:ort")
    assert found.code == 1
    assert "engine:lin:ort has not been built; buildsys build engine:lin:ort" in found.out


def test_an_engine_that_does_not_match_its_manifest(built: ProjectFolder, tmp_path: Path) -> None:
    fine = json.loads(built.buildsys("doctor", "lin:ort", "--json").out)["engines"][0]
    assert (fine["runs"], fine["current"], fine["reasons"]) == (True, True, [])
    before = sorted(path for path in built.root.rglob("*") if ".pyc" not in path.name)

    built.edit("configs/models/lin.yaml", "opset: 17", "opset: 18")
    found = built.buildsys("doctor", *NAMES)
    assert (found.code, found.err) == (1, "")
    assert found.out.count("it can run here\nit does not match its manifest, or has not") == 3
    reason = "engine:lin:ort does not match its manifest: upstream: simplify:lin may rerun"
    assert found.out.count(f"\n  - {reason}; buildsys build engine:lin:ort\n") == 3
    elsewhere = tmp_path / "deployed"  # of a copy nobody knows which project it is of
    shutil.copytree(built.root / "build/lin/engine/ort", elsewhere)
    found = built.buildsys("doctor", str(elsewhere), "lin:ort", "--json")
    copied, here = json.loads(found.out)["engines"]
    assert (copied["runs"], copied["current"], copied["reasons"]) == (True, None, [])
    assert (here["runs"], here["current"]) == (True, False)
    assert [reason["kind"] for reason in here["reasons"]] == ["stale", "check", "check"]
    assert before == sorted(
        path for path in built.root.rglob("*") if ".pyc" not in path.name
    )  # it only looks

    built.edit("configs/models/lin.yaml", "opset: 18", "opset: 17")
    (built.root / "build/lin/verify/ort.json").unlink()
    found = built.buildsys("doctor", "lin:ort")
    missing = "verify:lin:ort has not run on the current files: output missing: lin/verify/ort.json"
    assert (found.code, f"  - {missing}; buildsys build verify:lin:ort\n" in found.out) == (
        1,
        True,
    ), found
