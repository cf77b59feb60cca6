"""Builds on a Slurm cluster on this machine: two nodes, one of them with (pretended) GPUs."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from project_folder import wait_until
from remote_project import BUILDSYS, RemoteProject, compare_nights, places
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
    """A project whose executor is the cluster; its engine needs a label of the node."""
    project.environment |= {"SLURM_CONF": cluster.environment["SLURM_CONF"]}
    logs = project.root.parent / "logs"
    logs.mkdir()
    command = ", ".join(BUILDSYS)
    variables = f"TMPDIR: {project.environment['TMPDIR']}, BUILDSYS_LABELS: here"
    project.set_executor(
        f"{{kind: slurm, command: [{command}], logs: {logs}, env: {{{variables}}}}}"
    )
    manifest = project.root / "configs/models/a.yaml"
    text = manifest.read_text().replace("name: ort}", "name: ort, needs: {labels: [here]}}")
    manifest.write_text(text)
    return project


def test_a_night_on_two_nodes_equals_one_here(on_slurm: RemoteProject, tmp_path: Path) -> None:
    """The engine needs a GPU, and Slurm's is none for the driver of NVIDIA."""
    on_slurm.environment["BUILDSYS_LABELS"] = "here"
    manifest = on_slurm.root / "configs/models/a.yaml"
    manifest.write_text(manifest.read_text().replace("labels: [here]", "gpu: H100"))
    ran = compare_nights(on_slurm, tmp_path / "here")
    assert "3 jobs for there" in ran.out
    assert "1-a-1: 4 passed" in ran.out
    assert "1-a-2: 1 passed, 4 restored, 3 unavailable" in ran.out


def test_a_preempted_job_whose_driver_was_killed_goes_on(
    on_slurm: RemoteProject, cluster: Cluster
) -> None:
    (on_slurm.root / "hold").touch()
    command = [*BUILDSYS, "build", "--on", "there", "a"]
    process = subprocess.Popen(command, cwd=on_slurm.root, env=on_slurm.environment)
    try:
        wait_until(lambda: places(on_slurm, "held"), "a stage runs")
    finally:
        process.kill()
        process.wait()
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
        holds = places(on_slurm, "hold")
        for hold in holds:
            hold.unlink()
        return bool(holds)

    wait_until(let_go, "the job runs again")
    ran = on_slurm.run("build", "--on", "there", "a")
    assert ran.code == 0, ran.out
    assert "goes on" in ran.out
    assert "7 passed, 1 restored" in ran.out  # the first attempt had exported the network


def test_a_refused_job_is_one_sentence(on_slurm: RemoteProject) -> None:
    settings = on_slurm.root / "configs/project.yaml"
    settings.write_text(settings.read_text().replace("logs:", "partition: nope, logs:"))
    ran = on_slurm.run("build", "--on", "there", "a")
    assert ran.code == 2
    assert "ERROR: sbatch: " in ran.out
    assert "invalid partition specified: nope" in ran.out
