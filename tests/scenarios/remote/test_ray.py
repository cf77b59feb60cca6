"""Builds on a Ray cluster on this machine: a head, and two nodes of one CPU each."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from project_folder import wait_until
from ray_cluster import RayCluster
from remote_project import BUILDSYS, RemoteProject, compare_nights, places

pytestmark = pytest.mark.skipif(
    find_spec("ray") is None or sys.platform != "linux", reason="Ray is not installed"
)


@pytest.fixture
def cluster(project: RemoteProject) -> Iterator[RayCluster]:
    cluster = RayCluster(project.environment)
    try:
        cluster.start_head()
        for name in ("one", "two"):
            cluster.start_node(name, {name: 1})
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def on_ray(project: RemoteProject, cluster: RayCluster) -> RemoteProject:
    project.add_model("b")
    project.set_executor(f"{{kind: ray, address: '{cluster.address}'}}")
    return project


def test_a_night_on_two_nodes_equals_one_here(on_ray: RemoteProject, tmp_path: Path) -> None:
    assert "3 jobs for there" in compare_nights(on_ray, tmp_path / "here").out


def test_a_killed_node_loses_nothing(on_ray: RemoteProject, cluster: RayCluster) -> None:
    (on_ray.root / "hold").touch()
    process = subprocess.Popen(
        [*BUILDSYS, "build", "--on", "there"], cwd=on_ray.root, env=on_ray.environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    wait_until(lambda: len(places(on_ray, "held")) == 2, "a stage runs on each node")
    cluster.stop_node("two")

    def let_go() -> bool:
        for hold in places(on_ray, "hold"):
            hold.unlink()
        return process.poll() is not None

    wait_until(let_go, "both models are built on the other node")
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert out.count(" passed") == 2, out  # of two jobs
