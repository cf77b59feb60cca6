"""buildsys check --reproducible: equal builds, planted differences and failures."""

import json
import os
import signal
from pathlib import Path

from project_folder import TIMEOUT_S, ProjectFolder, processes_of_session, wait_until
from ready_project import FEATURES, VALUES, ReadyProject

HOOK = rf"""
import os
from pathlib import Path

import numpy
from onnx import helper, numpy_helper


def limit(model):
    floor = numpy.full({FEATURES}, -1000, numpy.float32)
    floor[INDEX] -= NUMBER
    model.graph.initializer.append(numpy_helper.from_array(floor, "fl\x1b[2Joor"))
    model.graph.node[-1].output[0] = "unlimited"
    model.graph.node.append(helper.make_node("Max", ["unlimited", "fl\x1b[2Joor"], ["y"]))
    return model
"""


def temporary_folder(project: ProjectFolder, tmp_path: Path) -> Path:
    """Return the folder for temporary files of the processes of a project."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    project.environment |= {
        "TMPDIR": str(folder),
        "BUILDSYS_WORKER_IDLE": "0",  # a server might write into the folder
        "BUILDSYS_MACHINE_LOCK": str(tmp_path / "machine"),
    }
    return folder


def add_hook(project: ReadyProject, index: int, number: str) -> None:
    """Add an edit that writes a number, which is different in each build, into the graph."""
    hook = HOOK.replace("INDEX", str(index)).replace("NUMBER", number)
    (project.root / "plugins/hooks").mkdir()
    (project.root / "plugins/hooks/limit.py").write_text(hook)
    with (project.root / "configs/models/a.yaml").open("a") as manifest:
        manifest.write("surgery: [{function: plugins/hooks/limit.py:limit}]\n")


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def test_targets_are_built_twice_and_nothing_else_is_touched(
    ready_built: ReadyProject, tmp_path: Path
) -> None:
    folder = temporary_folder(ready_built, tmp_path)
    state = ready_built.root / ".buildsys/state.db"
    before, recorded = contents(ready_built.root / "build"), state.read_bytes()

    ran = ready_built.buildsys("check", "--reproducible", "a:engine")
    assert ran.code == 0, ran.out + ran.err
    for line in (
        "equal  export:a      export/model.onnx",
        "equal  reference:a   reference/opt.npz",
        "engine:a:ort  engine/ort/engine.onnx",
    ):
        assert line in ran.out
    assert "  different" not in ran.out
    assert ran.out.endswith(" artifacts are byte-equal\n")
    assert ran.err.count("done         engine:a:ort") == 2
    assert contents(ready_built.root / "build") == before
    assert state.read_bytes() == recorded
    assert not list(folder.iterdir())


def test_differences_and_failures(ready: ReadyProject, tmp_path: Path) -> None:
    folder = temporary_folder(ready, tmp_path)
    add_hook(ready, 0, "os.getpid()")
    ran = ready.buildsys("check", "--reproducible", "a:surgery", "--json", "--keep")
    assert ran.code == 1, ran.out + ran.err
    answer = json.loads(ran.out)
    assert (answer["schema"], answer["status"]) == ("buildsys/repro/3", "different")
    artifacts = {artifact["file"]: artifact for artifact in answer["artifacts"]}
    assert artifacts["export/model.onnx"]["state"] == "equal"
    changed = artifacts["surgery/after_export/model.onnx"]
    assert changed["state"] == "different"
    name = "build/a/surgery/after_export/model.onnx"
    files = [(Path(root) / name).read_bytes() for root in answer["folders"]]
    assert files[0] != files[1]

    kept = {*folder.iterdir()}
    start = "    if os.access("
    ready.edit(VALUES, start, f"    raise RuntimeError('the disk is gone')\n{start}")
    ran = ready.buildsys("check", "--reproducible", "reference:a")
    assert (ran.code, ran.out) == (2, "")
    assert "the disk is gone" in ran.err
    assert ran.err.count("1 failed in ") == 1, "there is no second build"
    assert "failed, so nothing was compared; `buildsys build a` shows the cause" in ran.err
    assert {*folder.iterdir()} == kept


def test_an_interrupted_comparison_leaves_no_files(ready: ReadyProject, tmp_path: Path) -> None:
    folder = temporary_folder(ready, tmp_path)
    start = "    if os.access("
    ready.edit(VALUES, start, f"    print('sleeping', flush=True)\n    time.sleep(600)\n{start}")
    process = ready.start("check", "--reproducible", "a")
    try:
        logs = "*/a/project/build/a/reference/reference.log"
        wait_until(
            lambda: any("sleeping" in log.read_text() for log in folder.glob(logs)),
            "the stage has begun",
        )
        os.kill(process.pid, signal.SIGTERM)
        out, err = process.communicate(timeout=TIMEOUT_S)  # the stage sleeps ten times as long
        assert process.returncode == 143, out + err
        assert "Traceback" not in out + err
        assert out == ""
        wait_until(lambda: not processes_of_session(process.pid), "all workers are gone")
        assert not list(folder.iterdir())
    finally:
        for left in processes_of_session(process.pid):
            os.kill(left, signal.SIGKILL)
