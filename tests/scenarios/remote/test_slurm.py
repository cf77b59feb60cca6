"""Builds on a Slurm cluster on this machine: two nodes, one of them with (pretended) GPUs."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from project_folder import wait_until
from remote_project import BUILDSYS, RemoteProject, builds, compare_nights, places
from slurm_cluster import Cluster, missing_programs, running_cluster

pytestmark = pytest.mark.skipif(
    bool(missing_programs()), reason=f"Slurm is not installed: {missing_programs()}"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # addresses of sockets are short
    with running_cluster(folder) as cluster:
        yield cluster
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def on_slurm(project: RemoteProject, cluster: Cluster) -> RemoteProject:
    """A project whose executor is the cluster; the engines of ``b`` need a GPU."""
    project.environment |= {"SLURM_CONF": cluster.environment["SLURM_CONF"]}
    logs = project.root.parent / "logs"
    logs.mkdir()
    command = ", ".join(BUILDSYS)
    variables = f"TMPDIR: {project.environment['TMPDIR']}, BUILDSYS_LABELS: here"
    project.set_executor(
        f"{{kind: slurm, command: [{command}], logs: {logs}, env: {{{variables}}}}}"
    )
    manifest = project.root / "configs/models/b.yaml"
    text = manifest.read_text().replace("name: ort}", "name: ort, needs: {labels: [here]}}")
    manifest.write_text(text)
    return project


def test_a_night_on_two_nodes_equals_one_here(on_slurm: RemoteProject, tmp_path: Path) -> None:
    on_slurm.environment["BUILDSYS_LABELS"] = "here"
    assert "3 jobs for there" in compare_nights(on_slurm, tmp_path / "here").out


def test_stages_for_the_gpu_follow_and_restore_the_others(on_slurm: RemoteProject) -> None:
    manifest = on_slurm.root / "configs/models/b.yaml"
    text = manifest.read_text().replace("needs: {labels: [here]}", "needs: {gpu: H100}")
    manifest.write_text(text)
    ran = on_slurm.run("build", "--on", "there", "b", "--fetch", "--results", "r.json")
    assert ran.code == 0, ran.out  # unavailable: Slurm's GPU is none for the driver of NVIDIA
    assert "1-b-1: 4 passed" in ran.out
    assert "1-b-2: 1 passed, 4 restored, 3 unavailable" in ran.out
    assert "export:b" in (on_slurm.root / "r.json").read_text()
    assert [how for _, _, how, *_ in builds(on_slurm.root)] == ["ran"] * 8


def test_a_driver_that_was_killed_is_followed_by_the_next(on_slurm: RemoteProject) -> None:
    (on_slurm.root / "hold").touch()
    process = subprocess.Popen(
        [*BUILDSYS, "build", "--on", "there", "a"], cwd=on_slurm.root, env=on_slurm.environment
    )
    try:
        wait_until(lambda: places(on_slurm, "held"), "a stage runs")
    finally:
        process.kill()
        process.wait()
    for hold in places(on_slurm, "hold"):
        hold.unlink()  # the job goes on
    ran = on_slurm.run("build", "--on", "there", "a")
    assert ran.code == 0, ran.out
    assert "goes on" in ran.out
    assert "8 passed" in ran.out


def test_a_preempted_job_starts_again(on_slurm: RemoteProject, cluster: Cluster) -> None:
    (on_slurm.root / "hold").touch()
    process = subprocess.Popen(
        [*BUILDSYS, "build", "--on", "there", "a"], cwd=on_slurm.root, env=on_slurm.environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    wait_until(lambda: places(on_slurm, "held"), "a stage runs")
    job = cluster.call("squeue", "--noheader", "--me", "--format=%i").split()[0]
    cluster.call("scontrol", "requeue", job)
    wait_until(lambda: not places(on_slurm, "held"), "it was ended")
    time.sleep(3)  # a start while the node still cleans up would fail

    def let_go() -> bool:
        # else Slurm waits for two minutes
        subprocess.run(
            ["scontrol", "update", f"jobid={job}", "starttime=now"],
            env=cluster.environment, capture_output=True,
        )  # fmt: skip
        for hold in places(on_slurm, "hold"):
            hold.unlink()
        return process.poll() is not None

    wait_until(let_go, "the job runs again")
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert "7 passed, 1 restored" in out  # the first attempt had exported the network


def test_a_refused_job_is_one_sentence(on_slurm: RemoteProject) -> None:
    settings = on_slurm.root / "configs/project.yaml"
    settings.write_text(settings.read_text().replace("logs:", "partition: nope, logs:"))
    ran = on_slurm.run("build", "--on", "there", "a")
    assert ran.code == 2
    assert "ERROR: sbatch: " in ran.out
    assert "invalid partition specified: nope" in ran.out
