"""What a stage read outside its key: freshness, reasons, restored outputs, strict reads."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_project import EXPORT, actions, make_executor, make_project

from buildsys.errors import StageError
from buildsys.execution import recorded_reads
from buildsys.execution.executor import Executor
from buildsys.execution.stale_reasons import format_reasons
from buildsys.store.shared_cache import READ_WRITE, SharedCache
from buildsys.system.files import listing_digest, stamp

CONFIG = "config.json"


@pytest.fixture
def project(root: Path) -> Path:
    (root / CONFIG).write_text("1")
    (root / "data").mkdir()
    return root


def read(kind: str, name: str, line: int = 12, *, written: bool = False) -> list[Any]:
    """Return a read as the recorder reports it."""
    before: Any = stamp(name) if kind == "file" else None
    before = listing_digest(name) if kind == "listing" else before and list(before)
    return [kind, name, f"net.py:{line}", before, written]


def executor_for(
    root: Path, *reads: tuple[Any, ...], strict: bool = False, **options: Any
) -> tuple[Executor, list[str]]:
    """Return an executor with an export that reads something, and its runs."""
    graph = actions()
    declared: tuple[str, ...] = options.pop("declared", ())
    export = replace(graph[EXPORT], strict_reads=strict, reads=declared)
    if options.pop("sources", True) is False:
        export = replace(export, sources=())
    graph[EXPORT] = export
    executor, pool = make_executor(root, graph, **options)

    def found() -> list[Any]:
        names = ((k, n if k == "variable" else str(root / n), *line) for k, n, *line in reads)
        return [read(*name) for name in names]

    after_each_run(executor, found)
    return executor, pool.ran


def after_each_run(executor: Executor, reads: Callable[[], list[Any] | None]) -> None:
    """Let every run report these reads; None keeps those it has."""
    pool: Any = executor.here.pool
    run = pool.run

    def run_and_read(job: Any, **keywords: Any) -> Any:
        reply = run(job, **keywords)
        found = reads() if job.target == EXPORT else None
        return reply if found is None else replace(reply, reads=found)

    pool.run = run_and_read


def built(root: Path, *reads: tuple[Any, ...], **options: Any) -> list[str]:
    """Build the export if it is stale; return what ran."""
    executor, ran = executor_for(root, *reads, **options)
    if not executor.up_to_date_status(EXPORT):
        executor.run(EXPORT)
    executor.close()
    return ran


def reasons(root: Path) -> list[str]:
    executor, _ = executor_for(root)
    found = format_reasons(executor.examine(EXPORT).reasons)
    executor.close()
    return found


FILE = ("file", CONFIG)


def test_a_change_of_a_file_that_was_read_is_noticed_and_explained(project: Path) -> None:
    assert built(project, FILE) == [EXPORT]
    assert built(project, FILE) == []
    (project / CONFIG).write_text("2")
    assert reasons(project) == ["read config.json changed (net.py:12)"]
    assert built(project, FILE) == [EXPORT]
    (project / CONFIG).unlink()
    assert reasons(project) == ["read config.json is missing (net.py:12)"]


def test_a_library_outside_the_packages_reads_in_a_stage_without_user_code(project: Path) -> None:
    assert built(project, FILE, sources=False) == [EXPORT]
    assert built(project, FILE, sources=False) == []
    executor, _ = executor_for(project, sources=False)
    planned = ("", [replace(actions()[EXPORT], sources=())])
    assert executor.models.check({"m": planned}) == {"m": {EXPORT: "passed"}}
    executor.close()
    (project / CONFIG).write_text("2")
    executor, _ = executor_for(project, sources=False)
    assert executor.models.find({"m": ""}) == {}
    executor.close()
    assert built(project, FILE, sources=False) == [EXPORT]


def test_earlier_content_is_restored(project: Path) -> None:
    built(project, FILE)
    (project / CONFIG).write_text("2")
    built(project, FILE)
    (project / CONFIG).write_text("1")
    assert built(project, FILE) == []


@pytest.mark.parametrize(
    ("read_first", "written", "reason"),
    [
        (("listing", "data"), "data/new.npy", "read data/ changed (net.py:12)"),
        (("file", "override.json"), "override.json", "read override.json added (net.py:12)"),
    ],
)
def test_a_file_that_appears_is_noticed(
    project: Path, read_first: tuple[str, str], written: str, reason: str
) -> None:
    built(project, read_first)
    assert reasons(project) == []
    (project / written).write_text("1")
    assert reasons(project) == [reason]


def test_a_variable_is_noticed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALE", "1")
    built(project, ("variable", "SCALE"))
    monkeypatch.setenv("SCALE", "2")
    assert reasons(project) == ["read $SCALE changed (net.py:12)"]
    monkeypatch.delenv("SCALE")
    assert reasons(project) == ["read $SCALE is unset (net.py:12)"]
    monkeypatch.setenv("SCALE", "1")
    assert reasons(project) == []


def test_a_copied_environment_is_noticed_except_for_terminals(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(project, ("variable", "*"), ("variable", "SCALE"), ("variable", "TERM"))
    monkeypatch.setenv("TERM", "other")
    assert reasons(project) == []
    monkeypatch.setenv("SOMETHING_NEW", "1")
    assert reasons(project) == ["read $* changed (net.py:12)"]


def test_a_read_in_the_key_is_no_read_outside_it(project: Path) -> None:
    built(project, ("file", "net.py"), ("file", "blocks.py"))
    executor, _ = executor_for(project)
    assert executor.examine(EXPORT).key.reads == {}  # type: ignore[union-attr]
    executor.close()


@pytest.mark.parametrize("what", [FILE, ("listing", "data")])
def test_what_changes_after_the_read_is_read_again_or_fails(
    project: Path, what: tuple[str, str]
) -> None:
    executor, ran = executor_for(project, what)

    def write() -> None:
        if len(ran) < writes:
            (project / CONFIG).write_text(f"written after run {len(ran)}")
            (project / "data" / f"{len(ran)}.npy").write_text("")

    after_each_run(executor, write)
    writes = 2
    executor.run(EXPORT)
    assert ran == [EXPORT, EXPORT]
    writes = 9

    with pytest.raises(StageError, match=f"{what[1]} was written repeatedly"):
        executor.run(EXPORT, force=True)
    executor.close()


def test_files_that_the_stage_writes_itself_do_not_fail_it(project: Path) -> None:
    assert built(project, ("file", CONFIG, 3)) == [EXPORT]
    executor, _ = executor_for(project)

    def cache() -> list[Any]:
        found = read("file", str(project / "cache.json"), written=True)
        (project / "cache.json").write_text("cached")
        return [found, read("file", str(project / "gone.tmp"), written=True)]

    after_each_run(executor, cache)
    executor.run(EXPORT, force=True)
    assert executor.up_to_date_status(EXPORT)
    key = executor.examine(EXPORT).key
    assert key is not None and list(key.reads) == ["read:cache.json"]
    executor.close()


def test_the_result_warns_with_line_and_declaration(project: Path) -> None:
    built(project, FILE, ("variable", "SCALE", 14))
    result = json.loads((project / "build/m/export/export.json").read_text())
    assert result["warnings"] == [
        "net.py:12 reads config.json outside the key: a change will rerun this target; "
        'declare it with reads: ["config.json"]',
        "net.py:14 reads $SCALE outside the key: a change will rerun this target; "
        'declare it with reads: ["$SCALE"]',
    ]


def test_strict_reads_fail_with_line_and_remedy(project: Path) -> None:
    executor, _ = executor_for(project, FILE, strict=True)
    with pytest.raises(StageError) as caught:
        executor.run(EXPORT)
    assert str(caught.value.problem) == (
        "net.py:12 reads config.json outside the key, which strict_reads forbids"
    )
    assert caught.value.hint == 'declare it in the manifest: reads: ["config.json"]'
    assert not (project / "build/m/export/export.json").exists()
    executor.close()


def test_strict_reads_refuse_what_was_built_without_them(project: Path) -> None:
    built(project, FILE)
    executor, _ = executor_for(project, FILE, strict=True)
    assert not executor.up_to_date_status(EXPORT)
    assert format_reasons(executor.examine(EXPORT).reasons) == [
        "net.py:12 reads config.json outside the key"
    ]
    with pytest.raises(StageError, match="strict_reads forbids"):
        executor.run(EXPORT)
    executor.close()


def test_a_declared_read_is_in_the_key(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = (CONFIG, "data/", "$SCALE")
    (project / "data" / "a.npy").write_text("1")
    reads = (FILE, ("file", "data/a.npy"), ("listing", "data"), ("variable", "SCALE"))
    options = {"declared": declared, "strict": True}
    assert built(project, *reads, **options) == [EXPORT]
    for change in (
        lambda: (project / CONFIG).write_text("2"),
        lambda: (project / "data" / "a.npy").write_text("2"),
        lambda: monkeypatch.setenv("SCALE", "other"),
    ):
        assert built(project, *reads, **options) == []
        change()
        assert built(project, *reads, **options) == [EXPORT]


@pytest.mark.parametrize("name", ["config.json", "data/"])
def test_a_declared_file_that_changes_meanwhile_is_not_recorded(project: Path, name: str) -> None:
    executor, _ = executor_for(project, declared=(name,))

    def write() -> None:
        (project / CONFIG).write_text("2")
        (project / "data" / "a.npy").write_text("2")

    after_each_run(executor, write)
    with pytest.raises(StageError, match="changed while export:m ran; nothing was published"):
        executor.run(EXPORT)
    executor.close()


def test_too_many_reads_are_never_up_to_date(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_reads, "_MAX_PARTS", 10)
    many = [("file", f"data/{i}.npy") for i in range(11)]
    assert built(project, *many) == [EXPORT]
    assert reasons(project) == ["net.py:12 reads more files than can be followed outside the key"]
    assert built(project, *many) == [EXPORT]


def test_variables_of_libraries_are_followed_without_a_report(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, _ = executor_for(project, strict=True)
    names = ("CACHE_DIR", "TERM", "TORCH_LOGS")
    after_each_run(executor, lambda: [["variable", name, "", None, False] for name in names])
    executor.run(EXPORT)
    executor.close()
    monkeypatch.setenv("TERM", "other")
    monkeypatch.setenv("TORCH_LOGS", "dynamo")
    assert reasons(project) == []
    monkeypatch.setenv("CACHE_DIR", "other")
    assert reasons(project) == ["read $CACHE_DIR added"]


def shared_with(project: Path, tmp_path: Path, config: str) -> tuple[SharedCache, Path]:
    """Return a shared cache with a build of ``project``, and another project with ``config``."""
    caches = [SharedCache(str(tmp_path / "shared"), print, mode=READ_WRITE) for _ in "ab"]
    executor, _ = executor_for(project, FILE, remote=caches[0])
    executor.run(EXPORT)
    executor.close()
    other = tmp_path / "elsewhere" / "project"
    other.parent.mkdir()
    make_project(other)
    (other / CONFIG).write_text(config)
    return caches[1], other


def test_a_shared_record_is_restored_with_its_own_reads(project: Path, tmp_path: Path) -> None:
    remote, other = shared_with(project, tmp_path, "1")
    (other / "other.json").write_text("1")
    built(other, ("file", "other.json"))
    (other / "other.json").write_text("2")  # the local record no longer matches, the shared does
    executor, ran = executor_for(other, FILE, remote=remote)
    executor.run(EXPORT)
    assert ran == []
    key = executor.examine(EXPORT).key
    assert key is not None and list(key.reads) == ["read:config.json"]
    assert executor.up_to_date_status(EXPORT)
    executor.close()


@pytest.mark.parametrize("same", [True, False])
def test_a_shared_record_counts_only_with_the_same_reads(
    project: Path, tmp_path: Path, *, same: bool
) -> None:
    remote, other = shared_with(project, tmp_path, "1" if same else "2")
    executor, ran = executor_for(other, FILE, remote=remote)
    executor.run(EXPORT)
    assert ran == ([] if same else [EXPORT])
    assert executor.up_to_date_status(EXPORT)
    (other / CONFIG).write_text("3")
    assert not executor.up_to_date_status(EXPORT)
    executor.close()
