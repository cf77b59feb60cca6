"""The copy of a project that clean builds are made in."""

from __future__ import annotations

import os
from pathlib import Path

from buildsys.cli.reproducibility import copy_project


def project(root: Path) -> Path:
    for name in ("dodo.py", "plugins/net.py", "build/old.onnx", ".git/HEAD",
                 "plugins/__pycache__/net.pyc", "venv/pyvenv.cfg", "data/small.txt",
                 "elsewhere/deep/dodo.py"):  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "data/weights.pth").write_bytes(bytes(2 << 20))
    return root


def test_files_are_copied_linked_or_left_out(tmp_path: Path) -> None:
    root, copy = project(tmp_path / "p"), tmp_path / "c"
    copy_project(root, copy, root=root, without=(root / "build",))
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
    (root / "plugins/other.py").symlink_to("net.py")
    (root / "loop").symlink_to(".")
    (root / "dangling").symlink_to("nowhere")
    copy_project(root, copy, root=root, without=())
    assert (copy / "configs/a.yaml").read_text() == "a"
    assert (copy / "plugins/other.py").resolve() == copy / "plugins/net.py"
    assert (copy / "loop").resolve() == copy
    assert (copy / "dangling").is_symlink()


def test_a_folder_for_temporary_files_in_the_project_is_not_copied_into_itself(
    tmp_path: Path,
) -> None:
    root = project(tmp_path / "p")
    copy_project(root, root / "tmp/x/c", root=root, without=(root / "tmp/x",))
    assert not (root / "tmp/x/c/tmp/x").exists()


def test_special_files_are_left_out(tmp_path: Path) -> None:
    root, copy = project(tmp_path / "p"), tmp_path / "c"
    os.mkfifo(root / "data/pipe")
    (root / "data/endless").symlink_to("/dev/zero")
    (root / "data/huge.bin").touch()
    os.truncate(root / "data/huge.bin", 1 << 40)
    copy_project(root, copy, root=root, without=())
    assert not (copy / "data/pipe").exists()
    assert (copy / "data/endless").readlink() == Path("/dev/zero")
    assert (copy / "data/huge.bin").readlink() == root / "data/huge.bin"
