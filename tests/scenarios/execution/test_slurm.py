"""Jobs in a real Slurm cluster."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cluster_jobs import connected, wait, wait_for
from ready_project import ReadyProject
from slurm_cluster import Cluster, missing_programs, running_cluster

from buildsys.errors import StageError, TemporaryError
from buildsys.execution.executors import slurm
from buildsys.execution.executors.interface import (
    ENDED,
    LOST,
    QUEUED,
    RUNNING,
    JobState,
    RemoteJob,
)
from buildsys.execution.executors.slurm import SlurmExecutor
from buildsys.plan.action import NO_NEEDS, Needs

pytestmark = pytest.mark.skipif(
    bool(missing_programs()), reason=f"apt-get install slurm-wlm munge ({missing_programs()})"
)
SCRIPT = (
    'echo "$2 $VARIABLE"; [ "$1" = kill ] && kill -9 $$; [ "$1" = wait ] && exec sleep 60; exit $1'
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with (
        running_cluster(tmp_path_factory.mktemp("slurm")) as started,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SLURM_CONF", started.environment["SLURM_CONF"])
        patch.setattr(slurm, "_POLL_S", 0.02)
        yield started


@pytest.fixture
def executor(cluster: Cluster, tmp_path: Path) -> Iterator[SlurmExecutor]:
    started = make(tmp_path)
    yield started
    started.close()
    wait_for(lambda: not cluster.call("squeue", "-h"))


def make(project: Path, **settings: Any) -> SlurmExecutor:
    command = ["bash", "-c", SCRIPT, "job"]
    return connected(SlurmExecutor, project, kind="slurm", **{"command": command, **settings})


def job(*arguments: str, needs: Needs = NO_NEEDS, exclusive: bool = False) -> RemoteJob:
    return RemoteJob("engine-net-ort", arguments, needs, exclusive)


def submit(executor: SlurmExecutor, jobs: Sequence[RemoteJob]) -> list[str]:
    with ThreadPoolExecutor(len(jobs)) as threads:
        return list(threads.map(executor.submit, jobs))


def test_jobs_submitted_together_are_arrays_with_results_of_their_own(
    cluster: Cluster, tmp_path: Path
) -> None:
    executor = make(tmp_path, setup=["export VARIABLE=set"], env={"WORDS": "a 'b'"})
    codes = ["0", "3", "kill", "0", "75", "0", "0"]
    handles = submit(executor, [job(code, f"text {n}") for n, code in enumerate(codes)])
    assert len({handle.partition("_")[0] for handle in handles}) == 2  # of at most 5 jobs
    states = [wait(executor, handle) for handle in handles]
    assert [state.exit_code for state in states] == [0, 3, 137, 0, 75, 0, 0]
    assert {(state.phase, state.machine) for state in states} <= {(ENDED, "n1"), (ENDED, "n2")}
    for number, handle in enumerate(handles):
        first, second = executor.log(handle).splitlines()
        assert re.fullmatch(r"engine-net-ort on n[12]", first)
        assert second == f"text {number} set"
    assert len(list((tmp_path / ".buildsys/jobs/lab").glob("engine-net-ort-and-*.log"))) == 7


def test_doit_may_run_in_a_job_itself(
    cluster: Cluster, executor: SlurmExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_ARRAY_TASK_ID", "SBATCH_ARRAY_INX", "SQUEUE_PARTITION"):
        monkeypatch.setenv(name, "7")
    handle = executor.submit(job("3", "inner"))
    assert wait(executor, handle).exit_code == 3
    assert "inner" in executor.log(handle)


def test_needs_are_options_of_slurm(cluster: Cluster, executor: SlurmExecutor) -> None:
    needs = Needs(gpu="H100", gpu_count=2, memory=300 << 20, time_s=150)
    with_gpu, alone = submit(executor, [job("wait", needs=needs), job("wait", exclusive=True)])
    wait(executor, alone, RUNNING)
    shown = cluster.call("scontrol", "show", "job", with_gpu)
    for part in ("JobName=engine-net-ort", "Requeue=1", "gpu:h100:2", "TimeLimit=00:03:00",
                 "MinMemoryNode=300M", "OverSubscribe=OK"):  # fmt: skip
        assert part in shown
    assert "OverSubscribe=NO" in cluster.call("scontrol", "show", "job", alone)


def test_what_slurm_refuses_fails_with_its_words(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(StageError, match="sbatch: invalid partition specified: none; Batch job"):
        make(tmp_path, partition="none").submit(job("0"))
    with pytest.raises(StageError, match="Requested node configuration is not available") as found:
        make(tmp_path).submit(job("0", needs=Needs(gpu="L4", gpu_count=1)))
    assert not isinstance(found.value, TemporaryError)
    with pytest.raises(StageError, match="unrecognized option '--wrong'"):
        make(tmp_path, options=["--wrong"]).submit(job("0"))
    with pytest.raises(StageError, match="for the logs of lab"):
        make(tmp_path, logs="/proc/none")


def test_a_job_that_can_never_start_is_ended(cluster: Cluster, executor: SlurmExecutor) -> None:
    handle = executor.submit(job("0", needs=Needs(time_s=7200)))
    state = wait(executor, handle)
    assert state == JobState(ENDED, reason="Slurm cannot start it: PartitionTimeLimit")
    assert "CANCELLED" in cluster.call("scontrol", "show", "job", handle)


def test_cancelled_jobs_are_not_retried(cluster: Cluster, executor: SlurmExecutor) -> None:
    ours, theirs, ended = submit(executor, [job("wait"), job("wait"), job("0")])
    wait(executor, ours, RUNNING)
    wait(executor, theirs, RUNNING)
    wait(executor, ended)
    executor.cancel(ours)
    cluster.call("scancel", theirs)
    for handle in (ours, theirs):
        assert wait(executor, handle).reason == "it was cancelled in Slurm"
        assert wait(executor, handle).exit_code is None
    executor.cancel(ended)
    assert executor.poll([ended])[ended].exit_code == 0
    assert executor.poll(["99999", "1_77"])["1_77"].phase == LOST


def test_slurm_moves_the_job_of_a_failed_node(cluster: Cluster, executor: SlurmExecutor) -> None:
    handle = executor.submit(job("wait"))
    first = wait(executor, handle, RUNNING).machine
    cluster.take_down(first)
    try:
        wait(executor, handle, QUEUED)
        cluster.call("scontrol", "update", f"jobid={handle}", "starttime=now")
        assert wait(executor, handle, RUNNING).machine != first
    finally:
        executor.close()
        cluster.restore()


def test_a_preempted_job_is_lost(cluster: Cluster, tmp_path: Path) -> None:
    executor = make(tmp_path, partition="cancelled")
    low = submit(executor, [job("wait", exclusive=True), job("wait", exclusive=True)])
    for handle in low:
        wait(executor, handle, RUNNING)
    urgent = make(tmp_path, partition="urgent")
    assert wait(urgent, urgent.submit(job("0"))).exit_code == 0
    states = executor.poll(low)
    assert JobState(LOST, machine="n1", reason="it was preempted") in states.values() or (
        JobState(LOST, machine="n2", reason="it was preempted") in states.values()
    )
    executor.close()


def test_a_job_that_a_node_cannot_launch(cluster: Cluster, tmp_path: Path) -> None:
    executor = make(tmp_path, logs="logs")
    shutil.rmtree(tmp_path / "logs")
    state = wait(executor, executor.submit(job("0")))
    assert state.exit_code is None
    assert "Slurm could not start it on n" in state.reason
    (tmp_path / "logs").mkdir()
    (cluster.root / "broken").touch()  # the prolog fails
    try:
        state = wait(executor, executor.submit(job("0")))
        assert (state.phase, "launch failed" in state.reason) == (LOST, True)
    finally:
        (cluster.root / "broken").unlink()
        cluster.restore()


def test_jobs_outlive_the_controller(cluster: Cluster, executor: SlurmExecutor) -> None:
    handle = executor.submit(job("wait"))
    wait(executor, handle, RUNNING)
    cluster.stop("slurmctld")
    try:
        with pytest.raises(TemporaryError, match=r"squeue: .*Unable to contact slurm controller"):
            executor.poll([handle])
        with pytest.raises(TemporaryError):
            executor.submit(job("0"))
    finally:
        cluster.start("slurmctld")
    wait_for(cluster.is_up)
    assert executor.poll([handle])[handle].phase == RUNNING


def test_doit_builds_targets_in_the_cluster(
    cluster: Cluster, ready: ReadyProject, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    ready.edit("configs/models/a.yaml", "name: ort}]", "name: ort}, {backend: onnxruntime, "
               "name: lab, needs: {labels: [lab-1], memory: 500MiB}}]")  # fmt: skip
    command = json.dumps(["env", "BUILDSYS_LABELS=lab-1", sys.executable, "-m", "buildsys"])
    settings = "kind: slurm, partition: main, offers: {labels: [lab-1]}, env: {LC_ALL: C}"
    (ready.root / "configs/project.yaml").write_text(
        f"cache: {{remote: {store}, mode: read-write}}\n"
        f"executors:\n  cluster: {{{settings}, command: {command}}}\n"
    )
    ready.environment["SLURM_CONF"] = cluster.environment["SLURM_CONF"]
    built = ready.doit("engine:a:lab")
    assert built.code == 0, built.out + built.err
    assert "engine:a:lab" in built.passed
    logs = {path.stem: path for path in ready.root.glob(".buildsys/jobs/cluster/*.log")}
    described, engine = sorted(logs)
    assert re.fullmatch(r"describe-cluster-\d+", described)
    assert re.fullmatch(r"engine-a-lab-\d+", engine)
    assert re.match(r"engine-a-lab on n[12]\n", logs[engine].read_text())
    assert "everything is up to date" in ready.doit("engine:a:lab").out


def test_close_ends_all_jobs(cluster: Cluster, tmp_path: Path) -> None:
    executor = make(tmp_path)
    handles = submit(executor, [job("wait") for _ in range(6)])
    executor.close()
    assert {wait(executor, handle).reason for handle in handles} == {"it was cancelled in Slurm"}
