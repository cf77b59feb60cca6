"""doit on a simulated cluster: 10,000 models of 13 targets, with recorded times of their stages.

doit, its scheduler, the executor, the dispatcher, keys, state and store are the real ones
(``_cluster_run``); the machines are simulated (``_cluster_machines``). Their time passes
``--scale`` times as fast as outside, while doit needs as long as ever: its share of a processor is
related to the makespan in the time of the cluster, and every delay that it causes counts
``--scale`` times.

The lower bound of the makespan is the largest of the longest path through a model and, for each
kind of machine, the time of all its targets divided by the number of machines. Killed jobs and lost
machines are not part of it. At the end every output is compared with what its key stands for.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _scale_project as scale_project
from _cluster_machines import output_content
from _harness import environment, log, publish, workspace

from buildsys.cli.session import Session
from buildsys.manifest.project import load_project
from buildsys.plan.action import Action
from buildsys.store.ledger import Ledger
from buildsys.store.state_db import StateDb

DURATIONS = Path(__file__).with_name("cluster_durations.json")
HERE = Path(__file__).parent
_ENGINES = "ort-cpu, {use: ort-int8, needs: {gpu: H100}}"
_LOCAL = "here"
_LOCAL_JOBS = 4  # reports at a time
_MOST_RUNS = 4  # until everything is up to date
_PROJECT = """\
cache: {{remote: "{remote}", mode: read-write}}
executors:
  cpu: {{kind: process, command: [simulated], jobs: {cpu_jobs}, linger: 0}}
  h100: {{kind: process, command: [simulated], jobs: {gpu_jobs}, offers: {{gpu: H100}}}}
  here: {{kind: local}}
"""


@dataclass(frozen=True)
class Bound:
    """Lower bounds of the makespan, in seconds."""

    path_s: float
    work_s: Mapping[str, float]  # by pool, over all machines

    @property
    def seconds(self) -> float:
        return max(self.path_s, *self.work_s.values())


def write_project(folder: Path, given: argparse.Namespace) -> Path:
    """Write a project whose executors are pools of the cluster."""
    project = folder / "project"
    template = scale_project._MANIFEST
    scale_project._MANIFEST = template.replace("bench:", "calibration: {{batches: 4}}\nbench:")
    scale_project.write_manifests(project, given.models, engines=_ENGINES)
    shared = folder / "shared"
    shared.mkdir()
    text = _PROJECT.format(
        remote=f"slow://{shared}" if given.latency else shared,
        cpu_jobs=round(given.cpus * given.queued),
        gpu_jobs=round(given.gpus * given.queued),
    )
    (project / "configs/project.yaml").write_text(text, encoding="utf-8")
    return project


def read_durations() -> list[dict[str, float]]:
    """Return the recorded seconds of each model's targets by stage and variant."""
    return list(json.loads(DURATIONS.read_text(encoding="utf-8"))["seconds"].values())


def lower_bound(
    session: Session, durations: list[dict[str, float]], machines: Mapping[str, int]
) -> Bound:
    """Return the bound of a project; models of one family have equal times."""
    models = list(session.project.models)
    path_s, work_s = 0.0, Counter[str]()
    for number, seconds in enumerate(durations):
        count = len(range(number, len(models), len(durations)))
        if not count:
            continue
        ends: dict[str, float] = {}
        for action in session.actions.of(models[number]).values():
            taken = seconds[label_of(action)]
            before = (ends.get(name, 0.0) for name in (*action.after, *action.order))
            ends[action.target] = taken + max(before, default=0.0)
            work_s[action.executor or _LOCAL] += taken * count
        path_s = max(path_s, *ends.values())
    return Bound(path_s, {name: total / machines[name] for name, total in work_s.items()})


def label_of(action: Action) -> str:
    return ":".join(filter(None, (action.stage, action.variant)))


def run(project: Path, spec: dict[str, Any], folder: Path, number: int) -> dict[str, Any]:
    """Run doit once; return its cost with the figures of the cluster."""
    files = {name: str(folder / f"{name}{number}.json") for name in ("spec", "cost", "figures")}
    Path(files["spec"]).write_text(json.dumps({**spec, **files}), encoding="utf-8")
    command = [sys.executable, str(HERE / "_cluster_run.py"), files["spec"]]
    command += ["build", "--continue", "-n", str(_LOCAL_JOBS)]
    output = folder / f"output{number}.txt"
    path = f"{HERE}:{environment()['PYTHONPATH']}"
    with output.open("w") as stream:
        process = subprocess.Popen(
            command, cwd=project, env={**environment(), "PYTHONPATH": path},
            stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
        )  # fmt: skip
        while process.poll() is None:
            time.sleep(5.0)
    if not Path(files["cost"]).exists():
        raise SystemExit(f"doit ended with {process.returncode}:\n{output.read_text()[-4000:]}")
    cost = json.loads(Path(files["cost"]).read_text(encoding="utf-8"))
    figures = Path(files["figures"])
    cluster = json.loads(figures.read_text(encoding="utf-8")) if figures.exists() else {}
    log(f"run {number}: exit code {cost['code']}, {cost['wall_s']:.0f} s, {cluster}")
    return {**cost, **cluster, "output": str(output)}


def check_outputs(session: Session) -> tuple[int, int]:
    """Return the number of targets with a record, and of wrong or missing outputs."""
    db = StateDb(session.project.state / "state.db")
    ledger, build = Ledger(db), session.project.build
    recorded = wrong = 0
    for action in session.actions.values():
        record = ledger.lookup(action.target)
        if record is None:
            continue
        recorded += 1
        if not action.executor:  # its outputs are not a function of its key
            continue
        for ref in action.outputs.values():
            path, listing = build / ref.path, bool(ref.folder)
            expected = output_content(record.key, ref.path, is_listing=listing)
            if not ref.optional and (not path.exists() or path.read_bytes() != expected):
                wrong += 1
    db.close()
    return recorded, wrong


def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Build everything on the simulated cluster; return all figures."""
    project, durations = write_project(folder, given), read_durations()
    pools = {"cpu": given.cpus, "h100": given.gpus}
    session = Session(load_project(project))
    bound = lower_bound(session, durations, {**pools, _LOCAL: _LOCAL_JOBS})
    targets = len(session.actions.of(next(iter(session.project.models)))) * given.models
    log(f"{targets} targets; lower bound {bound.seconds:.0f} s: {bound}")
    spec = {
        "scale": given.scale,
        "durations": durations,
        "pools": pools,
        "killed_share": given.killed,
        "loss_pause_s": given.loss_pause,
        "latency_s": given.latency,
        "store": str(folder / "shared"),
        "seed": 1,
    }
    runs = []
    for number in range(1, _MOST_RUNS + 1):
        runs.append(run(project, {**spec, "seed": number}, folder, number))
        if runs[-1]["code"] == 0:
            break
    final = runs[-1] if len(runs) > 1 else None
    nothing = run(project, spec, folder, len(runs) + 1)
    session = Session(load_project(project))
    recorded, wrong = check_outputs(session)
    first = runs[0]
    taken = ("useful_s", "wasted_s", "away_s")
    needed_s = [sum(first[one][name] for one in taken) / pools[name] for name in pools]
    with_losses_s = max(bound.path_s, *needed_s)
    return {
        "models": given.models,
        "targets": targets,
        "bound_s": bound.seconds,
        "bounds": {"path": bound.path_s, **bound.work_s},
        "makespan_s": first["makespan_s"],
        "ratio": first["makespan_s"] / bound.seconds,
        "with_losses_s": with_losses_s,
        "cpu_share": first["cpu_s"] / first["makespan_s"],
        "ms_per_target": 1000 * (first["cpu_s"] - first["before_s"] - first["after_s"]) / targets,
        "built_twice": sum(each.get("built_twice", 0) for each in runs),
        "runs": runs,
        "left_to_later_runs": targets - first["built"] - given.models if final else 0,
        "recorded": recorded,
        "wrong_outputs": wrong,
        "nothing_to_do": "everything is up to date" in Path(nothing["output"]).read_text(),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=10_000, help="default: %(default)s")
    parser.add_argument("--cpus", type=int, default=128, help="machines with a CPU (%(default)s)")
    parser.add_argument("--gpus", type=int, default=48, help="machines with a GPU (%(default)s)")
    parser.add_argument(
        "--queued", type=float, default=1.25, help="jobs per machine, queued ones included"
    )
    parser.add_argument("--scale", type=float, default=8.0, help="seconds per second (%(default)s)")
    parser.add_argument("--killed", type=float, default=0.05, help="share of jobs (%(default)s)")
    parser.add_argument(
        "--loss-pause", type=float, default=300.0, help="seconds between losses of a machine"
    )
    parser.add_argument(
        "--latency", type=float, default=0.05, help="seconds of an operation of the store"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder")
    return parser.parse_args()


def main() -> None:
    given = parse()
    with workspace(keep=given.keep) as folder:
        found = measure(given, folder)
    first = found["runs"][0]
    rows = [
        ("lower bound of the makespan", f"{found['bound_s']:.0f} s", ""),
        ("makespan", f"{found['makespan_s']:.0f} s, {found['ratio']:.3f} times", "≤ 1.10"),
        (
            "bound with killed jobs and lost machines",
            f"{found['with_losses_s']:.0f} s, {found['makespan_s'] / found['with_losses_s']:.3f}",
            "",
        ),
        ("CPU time of doit in all", f"{first['cpu_s']:.0f} s", ""),
        ("before the first job", f"{first['before_s']:.0f} s", ""),
        ("for each target", f"{found['ms_per_target']:.1f} ms", ""),
        ("after the last job", f"{first['after_s']:.0f} s", ""),
        ("share of a core", f"{100 * found['cpu_share']:.1f} %", "≤ 30 %"),
        ("peak memory of doit", f"{first['peak_mb']:.0f} MB", "≤ 300 MB"),
        ("attempts", f"{first['attempts']}, {sum(first['losses'].values())} killed or lost", ""),
        ("targets built twice", str(found["built_twice"]), "0"),
        ("left to a second run", str(found["left_to_later_runs"]), ""),
        ("recorded targets", f"{found['recorded']} of {found['targets']}", "all"),
        ("wrong outputs", str(found["wrong_outputs"]), "0"),
        ("then nothing to do", "yes" if found["nothing_to_do"] else "no", "yes"),
    ]
    columns = ("figure", "measured", "limit")
    publish(f"Cluster, {found['targets']} targets", columns, rows, found, given.json)


if __name__ == "__main__":
    main()
