import os
import sys
from pathlib import Path

import pytest

from buildsys.workers import registry
from buildsys.workers.registry import ServerRecord, idle_limit_s

PATH = Path("/run/user/0/buildsys/a.sock")
RECORD = ServerRecord(4711, 99, "torch", "/usr/bin/python3", "/p/.buildsys/workers/torch.log")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", 300), ("0", 0), ("90", 90), ("1.5s", 1.5), ("10min", 600), ("10 min", 600), ("2h", 7200)],
)
def test_idle_limits(text: str, seconds: float) -> None:
    assert idle_limit_s({registry.IDLE_VARIABLE: text}) == seconds


def test_a_relative_runtime_folder_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = registry.server_folder({"XDG_RUNTIME_DIR": "run"})
    assert folder is None or folder.is_absolute()
    assert not (tmp_path / "run").exists()


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    assert registry.read_record(path) is None
    registry.write_record(path, RECORD)
    assert registry.read_record(path) == RECORD
    for text in ("{}", "[" * 100_000, "\xff"):
        registry.record_path(path).write_text(text, encoding="latin-1")
        assert registry.read_record(path) is None
    os.truncate(registry.record_path(path), 1 << 40)
    assert registry.read_record(path) is None
    registry.remove(path)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a server ends with its run")
def test_a_folder_open_to_others_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path / "r"
    runtime.mkdir(mode=0o700)
    monkeypatch.setattr(registry, "_ADDRESS_LIMIT", 500)
    assert registry.server_folder({"XDG_RUNTIME_DIR": str(runtime)}) == runtime / "buildsys"
    (runtime / "buildsys").chmod(0o750)
    assert registry.server_folder({"XDG_RUNTIME_DIR": str(runtime)}) != runtime / "buildsys"
    (runtime / "buildsys").rmdir()
    (runtime / "buildsys").symlink_to(tmp_path)
    assert registry.server_folder({"XDG_RUNTIME_DIR": str(runtime)}) != runtime / "buildsys"
