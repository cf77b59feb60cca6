"""Small networks on two nodes of Ray, compared with one: ``python tests/bench/remote_nodes.py``.

Both nodes are on this machine, with one CPU, a processor and temporary files of their own, so an
idle machine with three processors shows the ratio of two machines.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "scenarios"))
sys.path.insert(0, str(Path(__file__).parents[1] / "scenarios/remote"))

from ray_cluster import RayCluster
from remote_project import RemoteProject


def seconds_on(nodes: int, models: int, cpus: list[int]) -> float:
    """Build ``models`` networks on some nodes."""
    folder = Path(tempfile.mkdtemp(prefix="bs-"))
    project = RemoteProject(folder)
    for number in range(models - 2):
        project.add_model(f"m{number:03d}")
    del project.environment["BUILDSYS_MACHINE_LOCK"]  # each node has its own, in its TMPDIR
    cluster = RayCluster(project.environment)
    try:
        cluster.start_head()
        for number in range(nodes):
            cluster.start_node(f"n{number}", {}, cpu=cpus[number])
        project.set_executor(f"{{kind: ray, address: '{cluster.address}'}}")
        began = time.monotonic()
        ran = project.run("build", "--on", "there")
        taken = time.monotonic() - began
        assert ran.code == 0, ran.out
        return taken
    finally:
        cluster.close()
        project.end()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    usable = sorted(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--cpus", type=int, nargs=2, default=usable[-2:])
    options = parser.parse_args()
    os.environ.setdefault("BUILDSYS_MACHINE_LOCK", tempfile.gettempdir())
    one, two = (seconds_on(nodes, options.models, options.cpus) for nodes in (1, 2))
    ratio, each = one / two, one / options.models
    print(f"{options.models} models: one node {one:.1f} s ({each:.2f} s each), two {two:.1f} s")
    print(f"two nodes are {ratio:.2f} times as fast (limit 1.6)")


if __name__ == "__main__":
    main()
