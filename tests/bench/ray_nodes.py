"""Small models on two nodes of Ray with one CPU each, compared with one node, in turns.

Every model has a network in PyTorch and an engine of ONNX Runtime: eight targets from `reference`
to `report`. The nodes are on this machine, each bound to one processor; doit, the driver of Ray and
the head may use all of them. With a processor for them alone (``--cpus``, three or more), the
ratio is that of two machines. The overhead of a target is the time in which a node was not
running its stage.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _scale_project as scale_project
from _harness import ROOT, doit_command, log, publish, timed, workspace

sys.path.insert(0, str(ROOT / "tests/scenarios"))

from ray_cluster import RayCluster

_PROJECT = """\
cache: {{remote: {store}, mode: read-write}}
executors:
  cluster: {{kind: ray, address: "{address}", jobs: {jobs}}}
  here: {{kind: local}}
"""
_JOBS_PER_NODE = 2  # the second waits, so that no node does


def build(
    project: Path, store: Path, cluster: RayCluster, nodes: int, models: int
) -> dict[str, float]:
    """Build models from scratch; return the seconds in all and those of the stages."""
    for folder in (project, store):
        shutil.rmtree(folder, ignore_errors=True)
    store.mkdir()
    scale_project.write_manifests(project, models + nodes)
    text = _PROJECT.format(store=store, address=cluster.address, jobs=_JOBS_PER_NODE * nodes)
    (project / "configs/project.yaml").write_text(text, encoding="utf-8")
    first = [scale_project.model_name(number) for number in range(nodes)]
    # each node builds one, loads torch and looks at its libraries
    timed(doit_command(*(f"build:{model}" for model in first)), project)
    wall_s = timed(doit_command("build"), project)
    stages_s = [seconds for model, seconds in stage_seconds(project) if model not in first]
    return {"wall_s": wall_s, "stages_s": sum(stages_s), "targets": len(stages_s)}


def stage_seconds(project: Path) -> list[tuple[str, float]]:
    """Return the model of every result, with the seconds of its stage."""
    found = []
    for file in (project / "build").rglob("*.json"):
        content: Any = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(content, dict) and {"target", "seconds"} <= content.keys():
            found.append((content["target"].split(":")[1], content["seconds"]))
    return found


def measure(given: argparse.Namespace, folder: Path) -> dict[int, list[dict[str, float]]]:
    """Return the figures of each run by the number of nodes."""
    project, store = folder / "project", folder / "store"
    runs: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    order = [1, 2]
    for number in range(given.rounds):
        for nodes in order:
            cluster = RayCluster()
            try:
                cluster.start_head()
                for node in range(nodes):
                    cluster.start_node(f"node{node}", {"buildsys": 1}, cpu=given.cpus[node])
                runs[nodes].append(build(project, store, cluster, nodes, given.models))
            finally:
                cluster.close()
            log(f"round {number + 1} of {given.rounds}: {nodes} nodes, {runs[nodes][-1]}")
        order.reverse()
    return runs


def two_processors(usable: Sequence[int]) -> list[int]:
    """Return the last usable processors of two cores, else the last two."""
    by_core = {}
    for number in usable:
        siblings = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        by_core[siblings.read_text() if siblings.exists() else str(number)] = number
    return sorted(by_core.values())[-2:] if len(by_core) > 1 else [*usable[-2:]]


def parse() -> argparse.Namespace:
    usable = sorted(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=1, help="default: %(default)s")
    parser.add_argument(
        "--cpus",
        type=int,
        nargs=2,
        default=two_processors(usable),
        help="processors of the nodes (the last of two cores)",
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder")
    given = parser.parse_args()
    if len(set(given.cpus) & set(usable)) < 2:
        parser.error("two processors are needed")
    return given


def median(runs: Sequence[dict[str, float]], name: str) -> float:
    return statistics.median(run[name] for run in runs)


def main() -> None:
    given = parse()
    begun = time.strftime("%Y-%m-%d")
    with workspace(keep=given.keep) as folder:
        runs = measure(given, folder)
    ratio = median(runs[1], "wall_s") / median(runs[2], "wall_s")
    rows = []
    for nodes, taken in runs.items():
        overhead = [
            1000 * (nodes * run["wall_s"] - run["stages_s"]) / run["targets"] for run in taken
        ]
        rows.append((
            str(nodes),
            f"{median(taken, 'wall_s'):.1f}",
            f"{median(taken, 'stages_s'):.1f}",
            f"{statistics.median(overhead):.0f}",
        ))  # fmt: skip
    title = f"{given.models} models on nodes of Ray, {begun}: {ratio:.2f} times as fast on two"
    columns = ("nodes>", "build (s)>", "stages (s)>", "overhead of a target (ms)>")
    publish(title, columns, rows, {str(nodes): taken for nodes, taken in runs.items()}, given.json)


if __name__ == "__main__":
    main()
