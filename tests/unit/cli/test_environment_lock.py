"""`buildsys lock`, and differences from it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from buildsys.cli.commands.doctor import machine
from buildsys.cli.commands.doctor.machine import BROKEN, DIFFERS, OK, Check, check_lock
from buildsys.cli.commands.doctor.next_step import next_step
from buildsys.cli.commands.lock import Lock
from buildsys.cli.environment_lock import (
    Environment,
    LockedToolchain,
    current_environment,
    differences,
    read_lock,
)
from buildsys.errors import UsageError

LOCKED = Environment(
    python="CPython 3.11.2",
    platform="Linux x86_64",
    buildsys="1.0",
    packages={"numpy": "2.1", "torch": "2.14"},
    toolchains={"trt": LockedToolchain("CPython 3.10.1", {"tensorrt": "10.9"})},
    variables={"OMP_NUM_THREADS": "4"},
    devices={"cpu.cores": "8", "gpu.name": "none"},
)


def changed(**fields: object) -> Environment:
    return replace(LOCKED, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("now", "found"),
    [
        (LOCKED, []),
        (
            changed(python="CPython 3.12.0"),
            [("python is CPython 3.12.0, locked was CPython 3.11.2", True)],
        ),
        (changed(buildsys="1.1"), [("buildsys is 1.1, locked was 1.0", True)]),
        (
            changed(packages={"torch": "2.15"}),
            [
                ("numpy is not installed, locked was 2.1", True),
                ("torch is 2.15, locked was 2.14", True),
            ],
        ),
        (
            changed(packages={**LOCKED.packages, "pytest": "9", "ruff": "1"}),
            [("packages without a locked version: pytest, ruff", False)],
        ),
        (changed(toolchains={}), [("trt is locked as a toolchain, and missing", True)]),
        (
            changed(toolchains={"trt": LockedToolchain("CPython 3.10.2", {"tensorrt": "10.8"})}),
            [
                ("trt/python is CPython 3.10.2, locked was CPython 3.10.1", True),
                ("trt/tensorrt is 10.8, locked was 10.9", True),
            ],
        ),
        (
            changed(toolchains={**LOCKED.toolchains, "new": LockedToolchain("x", {})}),
            [("new is a toolchain, and not locked", False)],
        ),
        (changed(variables={}), [("OMP_NUM_THREADS is not set, locked was '4'", True)]),
        (
            changed(variables={"OMP_NUM_THREADS": "4", "TORCH_X": "1"}),
            [("TORCH_X is '1', locked was not set", True)],
        ),
        (
            changed(devices={"cpu.cores": "2", "gpu.name": "L4"}),
            [("cpu.cores is 2, locked was 8", False), ("gpu.name is L4, locked was none", False)],
        ),
    ],
)
def test_each_difference_is_one_sentence(now: Environment, found: list[tuple[str, bool]]) -> None:
    seen = [(f"{one.name} {one.text}", one.is_software) for one in differences(LOCKED, now)]
    assert len(seen) == len(found)
    for (text, software), (expected, is_software) in zip(seen, found, strict=True):
        assert text.startswith(expected)
        assert software == is_software


def test_remedies_install_the_locked_version_and_set_variables() -> None:
    now = changed(packages={"numpy": "2.1", "torch": "2.15"}, variables={})
    remedies = [one.remedy for one in differences(LOCKED, now)]
    assert remedies[0].endswith(" -m pip install torch==2.14")
    assert remedies[1] == "export OMP_NUM_THREADS=4"


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Environment], Path]:
    """Lock one environment and let another one be the present one."""

    def make(now: Environment) -> Path:
        (tmp_path / "buildsys.lock").write_text(json.dumps(LOCKED.as_json()))
        monkeypatch.setattr(machine, "current_environment", lambda _: (now, []))
        return tmp_path

    return make


def test_doctor_reports_differences_and_the_next_step(
    locked: Callable[[Environment], Path],
) -> None:
    root = locked(changed(packages={"numpy": "2.1", "torch": "2.15"}, devices={"cpu.cores": "2"}))
    checks = list(check_lock(root, ()))
    assert [(one.name, one.state) for one in checks] == [
        ("torch", DIFFERS), ("cpu.cores", DIFFERS), ("gpu.name", DIFFERS)
    ]  # fmt: skip
    step = next_step(root, checks, "doit")
    assert "pip install torch==2.14, or doit lock, to accept the 1 difference" in step
    broken = Check("library", "torch", BROKEN, remedy="pip install torch")
    assert next_step(root, [*checks, broken], "doit") == "pip install torch"


def test_other_devices_are_no_error(locked: Callable[[Environment], Path]) -> None:
    checks = list(check_lock(locked(changed(devices={})), ()))
    assert [one.state for one in checks] == [DIFFERS, DIFFERS, OK]
    assert checks[-1].text == "CPython 3.11.2 and 2 packages are as locked"


def test_without_a_lock_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert list(check_lock(tmp_path, ())) == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it is not a lock file"),
        (b"{}", "it is not a lock file"),
        (b"[" * 100_000, "it is not a lock file"),
        (b'{"schema": "buildsys/lock/2"}', "its schema is 'buildsys/lock/2', not"),
        (b'{"schema": "buildsys/lock/1", "toolchains": {}, "x": 1}', "it is not a lock file"),
        (json.dumps({**LOCKED.as_json(), "packages": {"a": 1}}).encode(), "it is not a lock"),
        (json.dumps({**LOCKED.as_json(), "python": None}).encode(), "it is not a lock file"),
        (b" " * (5 << 20), "it has 5 MiB, more than 4 MiB"),
    ],
)
def test_a_damaged_lock_is_one_sentence(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "buildsys.lock").write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_lock(tmp_path / "buildsys.lock")
    assert str(caught.value).startswith("cannot read buildsys.lock: ")
    assert problem in str(caught.value)
    assert [one.state for one in check_lock(tmp_path, ())] == [BROKEN]


def test_a_lock_has_the_present_environment_and_names_its_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "configs/models").mkdir(parents=True)
    (tmp_path / "configs/project.yaml").write_text("toolchains: {gone: {python: /no/python}}\n")
    assert Lock().run(tmp_path, [], {"json": False}) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "the toolchain gone cannot be used: there is no /no/python; it is left out"
    assert printed[1].startswith("wrote buildsys.lock: CPython 3.")
    found = read_lock(tmp_path / "buildsys.lock")
    assert found == current_environment(())[0]
    assert "torch" in found.packages
    assert "buildsys" not in found.packages
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert Lock().run(tmp_path, [], {"json": False}) == 0
    assert "changed: OMP_NUM_THREADS is '3', locked was not set" in capsys.readouterr().out
    (tmp_path / "buildsys.lock").write_text("damaged")
    assert Lock().run(tmp_path, [], {"json": True}) == 0
    assert json.loads(capsys.readouterr().out)["variables"]["OMP_NUM_THREADS"] == "3"


def test_remedies_execute_nothing_that_a_lock_file_says() -> None:
    hostile = "1; touch x $(evil) `evil`"
    locked = Environment(
        "CPython 3.11", "Linux", hostile, packages={hostile: hostile}, variables={"A": hostile}
    )
    now = Environment("CPython 3.11", "Linux", "1")
    remedies = [one.remedy for one in differences(locked, now) if one.remedy]
    assert len(remedies) == 3
    for remedy in remedies:
        words = shlex.split(remedy, posix=True)
        assert any(hostile in word for word in words), remedy
        assert ";" not in words
