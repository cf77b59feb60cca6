"""The limit of the store: what goes, what stays, and what is printed."""

import os
import time
from pathlib import Path

import pytest
from blake3 import blake3
from cli_doubles import Doit

from buildsys.cli.commands import cache
from buildsys.cli.commands.cache import enforce_limit
from buildsys.errors import UsageError
from buildsys.execution.build_cache import store_folder
from buildsys.project.load import Project, empty_project
from buildsys.store.ledger import ActionRecord, OutputFile
from buildsys.store.object_store import Store

DAY_S = 24 * 3600.0
KIB = 1024


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose manifests reach export:reached, with a limit of 4 kiB."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/project.yaml").write_text("store: {limit: 4KiB}\n")
    monkeypatch.setattr(cache, "reached_by", lambda *_: reached)
    return empty_project(tmp_path)


def reached(stored: list[ActionRecord]) -> set[tuple[str, str]]:
    return {(record.target, record.key) for record in stored if record.target == "export:reached"}


def add(project: Project, target: str, used_ago_s: float, size: int = KIB) -> None:
    """Store a result of a target, last used so long ago."""
    store, content = Store(store_folder(project.state)), target.ljust(size).encode()
    digest = blake3(content).hexdigest()
    source = project.root / "source"
    source.write_bytes(content)
    store.put(source, OutputFile(digest, size))
    outputs = {"out": OutputFile(digest, size)}
    key = blake3(target.encode()).hexdigest()
    store.write_action(
        ActionRecord(target, key, {}, outputs, "passed", "2026-01-02T03:04:05Z", 1.0)
    )
    used = time.time() - used_ago_s
    os.utime(store.action_path(key), (used, used))


def stored(project: Project) -> set[str]:
    store = Store(store_folder(project.state))
    return {one.record.target.partition(":")[2] for one in store.actions()}


def test_the_least_recently_used_results_go_first_with_a_notice(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    for age in range(2, 7):
        add(project, f"export:{age}", age * DAY_S)
    enforce_limit(project)
    assert stored(project) == {"2", "3", "4"}  # 90 % of the limit: not the next run again
    assert capsys.readouterr().err == (
        "buildsys: the store exceeded its limit of 4.10 kB (`store.limit`): "
        "2.05 kB removed, 3.07 kB remain\n"
    )
    enforce_limit(project)
    assert capsys.readouterr().err == ""


def test_what_manifests_reach_or_was_used_within_a_day_stays(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    add(project, "export:reached", 9 * DAY_S, 3 * KIB)
    add(project, "export:old", 2 * DAY_S)
    add(project, "export:recent", DAY_S / 2, 3 * KIB)
    enforce_limit(project)
    assert stored(project) == {"reached", "recent"}
    assert "6.14 kB remain, needed by the manifests or used within a day" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "variable", "limit"),
    [
        ("store: {limit: null}\n", "", None),
        ("store: {limit: 4KiB}\n", "0", None),
        ("", "2GiB", 2 << 30),
        ("", " 5000 ", 5000),
        ("", "", 50 << 30),
        ("defaults: {}  # not the store\n", "", 50 << 30),
    ],
)
def test_the_limit_comes_from_the_environment_the_project_or_is_50_gib(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    settings: str,
    variable: str,
    limit: int | None,
) -> None:
    (project.configs / "project.yaml").write_text(settings)
    monkeypatch.setenv("BUILDSYS_STORE_LIMIT", variable)
    assert project.store_limit() == limit
    for age in range(2, 7):
        add(project, f"export:{age}", age * DAY_S)
    enforce_limit(project)
    assert len(stored(project)) == (4 if limit == 5000 else 5)


def test_broken_manifests_remove_nothing_and_fail_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise UsageError("1 error in the manifests")

    monkeypatch.setattr(cache, "reached_by", fail)
    for age in range(2, 7):
        add(project, f"export:{age}", age * DAY_S)
    enforce_limit(project)
    assert len(stored(project)) == 5
    assert "the store stays above its limit: 1 error in the manifests" in capsys.readouterr().err


def test_only_a_run_that_built_something_looks_at_the_store(
    doit: Doit, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Project] = []
    monkeypatch.setattr("buildsys.cli.commands.cache.enforce_limit", looked.append)
    doit.build_all()
    assert len(looked) == 1
    assert doit()[0] == 0
    assert len(looked) == 1
