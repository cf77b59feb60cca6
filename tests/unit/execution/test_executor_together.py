"""Executors with concurrent edits, threads, processes, kills and GPU locks."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_project
from tiny_project import (
    BENCH,
    ENGINE,
    EXPORT,
    MODEL,
    actions,
    build,
    make_executor,
    order,
    published,
    stale,
)

import buildsys
from buildsys.errors import StageError
from buildsys.execution import action_key, local_runs
from buildsys.execution.executor import Executor
from buildsys.plan.action import Action
from buildsys.store.locks import InterruptedWaitError, Locks
from buildsys.workers.job import Job


def run_together(executor: Executor, targets: Iterable[str]) -> None:
    """Run each target in its own thread."""
    threads = [threading.Thread(target=executor.run, args=(name,)) for name in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def test_a_source_edited_while_the_stage_runs_is_a_failure_that_names_it(root: Path) -> None:
    executor, pool = make_executor(root)
    pool.meanwhile = lambda job: (root / "blocks.py").write_text("width = 7\n") and None
    with pytest.raises(StageError, match=r"^blocks\.py changed while export:m ran"):
        executor.run(EXPORT)
    assert published(root) == {}
    assert not executor.up_to_date_status(EXPORT)


@pytest.mark.parametrize("name", [MODEL, f"{MODEL}.data"])  # the second one appears
def test_an_input_written_while_the_stage_runs_is_a_failure_that_names_it(
    root: Path, name: str
) -> None:
    executor, pool = make_executor(root)
    executor.run(EXPORT)
    pool.meanwhile = lambda job: (root / "build" / name).write_text("other") and None
    with pytest.raises(StageError, match=rf"{name} changed while engine:m:e ran"):
        executor.run(ENGINE)


def test_own_code_edited_while_the_stage_runs_is_a_failure_that_names_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "code" / "buildsys" / "errors.py"
    module.parent.mkdir(parents=True)
    module.write_text("# as loaded by the worker\n")
    monkeypatch.setattr(action_key, "_CODE_ROOT", str(tmp_path / "code"))
    executor, pool = make_executor(root)
    pool.meanwhile = lambda job: module.write_text("# edited\n") and None
    with pytest.raises(StageError, match=r"^buildsys\.errors changed while export:m ran"):
        executor.run(EXPORT)
    assert published(root) == {}


def test_an_edit_reverted_while_the_stage_runs_causes_a_second_run(root: Path) -> None:
    """Run again after a branch switch and back during the stage."""
    executor, pool = make_executor(root)
    time.sleep(0.06)

    def there_and_back(job: Job) -> None:
        if len(pool.ran) == 1:
            (root / "blocks.py").write_text("width = 8\n")
            there = (root / "blocks.py").read_text()
            (root / "build-was-made-of").write_text(there)
            (root / "blocks.py").write_text("width = 1\n")

    pool.meanwhile = there_and_back
    executor.run(EXPORT)
    assert pool.ran == [EXPORT, EXPORT]
    assert executor.up_to_date_status(EXPORT)


def test_a_file_written_during_every_run_is_a_failure(root: Path) -> None:
    executor, pool = make_executor(root)
    pool.meanwhile = lambda job: os.utime(root / "net.py")
    with pytest.raises(StageError, match="written repeatedly"):
        executor.run(EXPORT)
    assert published(root) == {}


def test_two_threads_build_a_target_once(root: Path) -> None:
    executor, pool = make_executor(root)
    order(root, EXPORT, "slow")
    outcomes = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(executor.run(EXPORT))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.ran == [EXPORT]
    assert sorted(outcome.waited for outcome in outcomes) == [False, True]


def run_process(root: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, tiny_project.__file__, str(root), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(buildsys.__file__).parent.parent)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_a_kill_between_two_renames_leaves_the_target_stale(root: Path) -> None:
    order(root, EXPORT, "external")
    build(root)
    killed = run_process(root, "18", "kill")
    killed.communicate(timeout=60)
    assert killed.returncode == -9
    assert "opset 18" in published(root)[MODEL]  # in place, while its result file is the old one
    assert stale(root, actions(18))[0] == EXPORT
    assert (
        stale(root, actions(17))[0] == EXPORT
    )  # reverting the manifest does not make the half believed
    assert build(root, actions(17)) == []  # restored
    assert "opset 17" in published(root)[MODEL]
    assert stale(root, actions(17)) == []


def test_a_stage_receives_only_declared_files(root: Path) -> None:
    jobs: list[Job] = []
    executor, pool = make_executor(root)
    pool.meanwhile = jobs.append
    executor.run(EXPORT)
    executor.run(ENGINE)
    assert set(jobs[1].inputs) == {"model"}  # the optional input that was not produced is not there
    assert jobs[1].options == {"engine": {}}
    assert all(
        path.is_absolute() for job in jobs for path in (*job.inputs.values(), *job.outputs.values())
    )


# --- GPUs ---


def of_model(name: str) -> Action:
    """Return the export of another model with the same sources."""
    export = actions()[EXPORT]
    outputs = {
        role: replace(file, path=file.path.replace("m/", f"{name}/", 1))
        for role, file in export.outputs.items()
    }
    return replace(export, target=f"export:{name}", model=name, outputs=outputs)


def test_a_target_that_waits_for_a_gpu_is_not_one_of_n(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = {**actions(), "export:a": of_model("a")}
    graph[ENGINE] = replace(graph[ENGINE], alone_on_gpu=True)
    monkeypatch.setattr(local_runs, "gpu_uuids", lambda variables=(), here=True: ("GPU-1",))
    waiting = threading.Event()

    def notice(target: str, event: dict[str, object]) -> None:
        if (target, event["event"]) == (ENGINE, "waiting"):
            waiting.set()

    executor, pool = make_executor(root, graph, jobs=1, on_event=notice)
    executor.run(EXPORT)
    with Locks(root / "other").devices(["GPU-1"], "bench:other", lambda holder: None):
        thread = threading.Thread(target=executor.run, args=(ENGINE,))
        thread.start()
        assert waiting.wait(60)
        executor.run("export:a")  # it would hang
        assert thread.is_alive()
    thread.join(60)
    assert pool.ran == [EXPORT, "export:a", ENGINE]


@pytest.mark.parametrize("device", ["GPU-1", "cpu"])
def test_a_benchmark_without_an_engine_waits_for_no_device(
    root: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(local_runs, "gpu_uuids", lambda variables=(), here=True: ("GPU-1",))
    monkeypatch.setenv("BUILDSYS_MACHINE_LOCK", str(root / "machine"))
    graph, on_gpu = actions(), device != "cpu"
    graph[BENCH] = replace(graph[BENCH], alone_on_gpu=on_gpu, exclusive=not on_gpu)

    def stop(target: str, event: dict[str, object]) -> None:
        if event["event"] == "waiting":
            executor.stop()

    executor, pool = make_executor(root, graph, on_event=stop)
    others = Locks(root / ".buildsys/locks")
    order(root, ENGINE, "unavailable")
    order(root, BENCH, "unavailable")
    executor.run(EXPORT)
    assert executor.run(ENGINE).status == "unavailable"
    shared = others.project("export:other", exclusive=False, on_wait=lambda holder: None)
    with others.devices([device], "bench:other", lambda holder: None), shared:
        assert executor.run(BENCH).status == "unavailable"
    order(root, ENGINE)
    executor.run(ENGINE, force=True)
    with (
        others.devices([device], "bench:other", lambda holder: None),
        pytest.raises(InterruptedWaitError),
    ):
        executor.run(BENCH)
    assert pool.ran == [EXPORT, ENGINE, BENCH, ENGINE]


def test_equal_gpus_are_used_at_the_same_time_each_by_one_target(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_runs, "equal_gpus", lambda variables=(): ("GPU-1", "GPU-2"))
    monkeypatch.setenv("BUILDSYS_MACHINE_LOCK", str(root / "machine"))
    graph = {f"export:{name}": replace(of_model(name), alone_on_gpu=True) for name in "abc"}
    waiting = threading.Event()

    def notice(target: str, event: dict[str, object]) -> None:
        if event["event"] == "waiting":
            waiting.set()

    executor, pool = make_executor(root, graph, on_event=notice)
    used: list[str] = []
    both = threading.Barrier(2)

    def enter(job: Job) -> None:
        used.append(job.environment["CUDA_VISIBLE_DEVICES"])
        if len(used) <= 2:
            both.wait(60)  # on two GPUs
            assert waiting.wait(60)  # the third target, for one of them
            assert len(used) == 2
            both.wait(60)

    pool.meanwhile = enter
    run_together(executor, graph)
    assert sorted(pool.ran) == list(graph)
    assert sorted(used[:2]) == ["GPU-1", "GPU-2"]


def test_no_more_than_n_stages_run_at_a_time(root: Path) -> None:
    graph = {f"export:{name}": of_model(name) for name in ("a", "b", "c")}
    executor, pool = make_executor(root, graph, jobs=2)
    running: list[str] = []
    most: list[int] = []
    both = threading.Barrier(2)

    def enter(job: Job) -> None:
        running.append(job.target)
        most.append(len(running))
        if job.target != "export:c":
            both.wait(60)  # two do run at a time
        running.remove(job.target)

    pool.meanwhile = enter
    run_together(executor, graph)
    assert sorted(pool.ran) == list(graph)
    assert max(most) == 2
