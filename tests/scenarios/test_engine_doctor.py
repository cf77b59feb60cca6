"""`doit doctor ENGINE` as users type it: targets, files, folders; exit codes; JSON; a folder on another machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from project_folder import ProjectFolder


def test_doctor_of_engines(built: ProjectFolder, tmp_path: Path) -> None:
    for name in ("lin:ort", "engine:lin:ort", "build/lin/engine/ort/engine.onnx", "build/lin/engine/ort"):
        told = built.doit("doctor", name)
        assert (told.code, told.err) == (0, ""), told
        assert told.out.splitlines()[1] == "it can run here"
        assert ": lin:ort, ONNX Runtime " in told.out.splitlines()[0]

    elsewhere = tmp_path / "deployed"  # as it is copied to another machine: nothing in it knows where it was built
    shutil.copytree(built.root / "build/lin/engine/ort", elsewhere)
    for file in elsewhere.iterdir():
        assert file.suffix == ".log" or str(built.root).encode() not in file.read_bytes(), file.name
    record = json.loads((elsewhere / "engine.json").read_text())
    record["built_with"]["onnxruntime"] = "99.0.0"
    (elsewhere / "engine.json").write_text(json.dumps(record))
    (elsewhere / "engine.onnx").write_bytes((elsewhere / "engine.onnx").read_bytes()[:-10])
    told = built.doit("doctor", str(elsewhere), "lin:ort", "--json")
    assert told.code == 1
    wrong, right = json.loads(told.out)["engines"]
    assert (wrong["runs"], right["runs"]) == (False, True)
    assert [reason["kind"] for reason in wrong["reasons"]] == ["truncated", "version"]
    assert wrong["engine"] == str(elsewhere)

    missing = built.doit("doctor", "./nothing.engine")
    assert (missing.code, missing.err) == (1, "")
    assert "there is no engine file" in missing.out
    assert "build it, or give the path" in missing.out
    unknown = built.doit("doctor", "lin:otr")
    assert (unknown.code, unknown.out) == (3, "")
    assert "there is no engine file and no engine 'lin:otr'; nearest: lin:ort" in unknown.err


def test_doctor_of_an_engine_that_is_not_built(project: ProjectFolder) -> None:
    project.add_model("lin")
    told = project.doit("doctor", "lin:ort")
    assert told.code == 1
    assert "engine:lin:ort has not been built; doit engine:lin:ort" in told.out
