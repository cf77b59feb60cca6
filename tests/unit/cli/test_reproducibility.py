"""Copies of a project, and the files of two builds that differ."""

import os
from pathlib import Path

from buildsys.cli.commands.check import Artifact, compare_builds, copy_project
from buildsys.plan.action import Action
from buildsys.project.model import model_fields
from buildsys.project.plan import plan_model

MANIFEST = {
    "model": "net",
    "source": {"python": "net.py:Net"},
    "inputs": {"x": {"shape": [1, 4]}},
    "engines": [
        {"backend": "onnxruntime", "name": "plain", "graph_optimization_level": "extended"},
        {"backend": "onnxruntime", "name": "laid-out"},
        {"backend": "tensorrt_rtx", "name": "rtx"},
    ],
}


def plan() -> tuple[Action, ...]:
    return plan_model(model_fields(MANIFEST))


def write(build: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (build / "build/net" / name).parent.mkdir(parents=True, exist_ok=True)
        (build / "build/net" / name).write_bytes(content)
    return build


def compared(
    tmp_path: Path, first: dict[str, bytes], second: dict[str, bytes]
) -> dict[str, Artifact]:
    roots = [write(tmp_path / "a", first), write(tmp_path / "b", second)]
    found = compare_builds(roots[0] / "build", roots[1] / "build", plan())
    return {artifact.file: artifact for artifact in found}


STATES = {
    "export/model.onnx": "different",
    "export/model.onnx.data": "different",
    "simplify/model.onnx": "different",
    "reference/opt.npz": "different",
    "engine/plain/engine.onnx": "different",
    "engine/laid-out/engine.onnx": "not expected to be equal",
    "engine/rtx/engine.engine": "not expected to be equal",
}


def test_files_that_should_be_equal(tmp_path: Path) -> None:
    first, second = (dict.fromkeys(STATES, content) for content in (b"[1]", b"[2]"))
    artifacts = compared(tmp_path, first, second)
    assert {file: artifact.state for file, artifact in artifacts.items()} == {
        **STATES,
        "simplify/assembled.json": "not built",
        "report/report.md": "not built",
    }
    artifacts = compared(tmp_path, first, first)
    assert all(artifacts[file].state == "equal" for file in STATES)


def test_a_file_missing_in_one_build(tmp_path: Path) -> None:
    artifact = compared(tmp_path, {"export/model.onnx": b"x"}, {})["export/model.onnx"]
    assert (artifact.state, artifact.detail) == ("different", "only one build has it")


def test_only_the_report_reads_records() -> None:
    """Times differ from run to run, so that readers of records always run again."""
    records = {action.outputs["result"] for action in plan()}
    readers = {action.stage for action in plan() if records & set(action.inputs.values())}
    assert readers == {"report"}


def project(root: Path) -> Path:
    for name in ("dodo.py", "plugins/net.py", "build/old.onnx", ".git/HEAD",
                 "plugins/__pycache__/net.pyc", "venv/pyvenv.cfg", "data/small.txt",
                 "elsewhere/deep/dodo.py"):  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "data/weights.pth").write_bytes(bytes(2 << 20))
    os.mkfifo(root / "data/pipe")
    return root


def test_files_are_copied_linked_or_left_out(tmp_path: Path) -> None:
    root, copy = project(tmp_path / "p"), tmp_path / "c"
    copy_project(root, copy, (root / "build",))
    found = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    assert found == {
        "dodo.py",
        "plugins/net.py",
        "data/small.txt",
        "data/weights.pth",
        "elsewhere/deep/dodo.py",
    }
    assert (copy / ".git").readlink() == root / ".git"
    assert (copy / "venv").readlink() == root / "venv"
    assert (copy / "data/weights.pth").readlink() == root / "data/weights.pth"
    (copy / "plugins/net.py").write_text("changed")
    assert (root / "plugins/net.py").read_text() == "plugins/net.py"


def test_links_lead_where_they_led(tmp_path: Path) -> None:
    root, copy = project(tmp_path / "p"), tmp_path / "deeper/c"
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/a.yaml").write_text("a")
    (root / "configs").symlink_to("../shared")
    (root / "loop").symlink_to(".")
    (root / "dangling").symlink_to("nowhere")
    copy_project(root, copy, ())
    assert (copy / "configs/a.yaml").read_text() == "a"
    assert (copy / "loop").resolve() == root
    assert (copy / "dangling").is_symlink()
