"""doit on a generated project of a thousand manifests, compared with plain doit, DVC, Snakemake.

Queries are measured on a second project, with two engines per model, that was never built. All
sides alternate; the table has wall time, CPU time (user and system) and peak memory of each.
doit on an empty dodo file is one of them, as a measure of the machine's present speed.
``--project`` reuses a project that an earlier run kept with ``--keep``.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import _scale_other_tools as other_tools
from _harness import doit_command, environment, log, publish, workspace
from _scale_project import fill, model_name, write_manifests

TARGETS_PER_MODEL = 8
SMALL = 10  # manifests of the small project
STAGES = 1000  # for DVC and Snakemake
COLUMNS = ("side", "runs>", "wall (s)>", "range (s)>", "CPU (s)>", "peak (MB)>", "limit")


@dataclass(frozen=True)
class Cost:
    """Time and memory of one process."""

    wall_s: float
    cpu_s: float
    peak_mb: float = 0.0


Side = Callable[[], Cost]


# A process inherits the peak memory of its parent, so it is started by a small one, which prints
# wall and CPU seconds, the peak in KiB and the exit code.
_SMALL_PARENT = """
import os, resource, sys, time
begun = time.perf_counter()
_, status = os.waitpid(os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ), 0)
wall_s = time.perf_counter() - begun
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
cpu_s = usage.ru_utime + usage.ru_stime
figures = wall_s, cpu_s, usage.ru_maxrss, os.waitstatus_to_exitcode(status)
os.write(int(os.environ["FIGURES_FD"]), repr(figures).encode())
"""


def cost(command: Sequence[str], folder: Path) -> Cost:
    """Run a command and return its cost."""
    read, write = os.pipe()
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", _SMALL_PARENT, *command],
        cwd=folder,
        env={**environment(), "FIGURES_FD": str(write)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(write,),
        check=True,
    )
    os.close(write)
    wall_s, cpu_s, peak_kib, code = ast.literal_eval(os.read(read, 1000).decode())
    os.close(read)
    if code:
        raise SystemExit(f"{' '.join(command)} ended with {code} in {folder}")
    return Cost(wall_s, cpu_s, peak_kib * 1024 / 1e6)


def first_stage(project: Path) -> Cost:
    """Return the time from an edit of one manifest to its first stage; undo the edit."""
    file = project / "configs" / "models" / f"{model_name(1)}.yaml"
    before = file.read_text(encoding="utf-8")
    file.write_text(before.replace("min_samples: 1", "min_samples: 2"), encoding="utf-8")
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-u", *doit_command()[1:]],
        cwd=project, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in process.stdout or ():
        if line.startswith("run "):
            break
    taken = time.perf_counter() - begun
    process.send_signal(signal.SIGINT)
    process.communicate()
    file.write_text(before, encoding="utf-8")
    time.sleep(0.1)  # digests of files modified just now are not cached
    for _ in range(2):  # it builds; it checks the edited model in full
        cost(doit_command(), project)
    return Cost(taken, 0.0)


def first_query(project: Path, *arguments: str) -> Cost:
    """Return the cost of a query on a project without a state folder."""
    shutil.rmtree(project / ".buildsys", ignore_errors=True)
    taken = cost(doit_command(*arguments), project)
    cost(doit_command("list"), project)  # a run, or a list, leaves the resolved manifests
    return taken


def alternate(sides: Mapping[str, Side], rounds: int) -> dict[str, list[Cost]]:
    """Measure all sides alternately, reversing the order every round."""
    taken: dict[str, list[Cost]] = {name: [] for name in sides}
    order = list(sides)
    for number in range(rounds):
        for name in order:
            taken[name].append(sides[name]())
            wall_s, cpu_s = taken[name][-1].wall_s, taken[name][-1].cpu_s
            log(f"round {number + 1} of {rounds}: {name} {wall_s:.3f} s, CPU {cpu_s:.3f} s")
        order.reverse()
    return taken


def row_of(name: str, taken: Sequence[Cost], limit: str) -> tuple[str, ...]:
    """Return one side's row of medians."""
    wall = [run.wall_s for run in taken]
    cpu, peak = (
        statistics.median(getattr(run, field) for run in taken) for field in ("cpu_s", "peak_mb")
    )
    spread = f"{min(wall):.3f} to {max(wall):.3f}"
    shown = (f"{value:.2f}" if value else "" for value in (cpu, peak))
    return name, str(len(taken)), f"{statistics.median(wall):.3f}", spread, *shown, limit


def make_project(folder: Path, count: int) -> Path:
    """Return a project of ``count`` manifests with nothing to do."""
    project = folder / f"project-{count}"
    write_manifests(project, count)
    log(f"filling {project}")
    fill(project)
    return project


def queries(project: Path, count: int) -> Iterator[tuple[str, Side, str]]:
    """Yield the queries on a project of ``count`` manifests that was never built."""
    one = f"build:{model_name(count // 2)}"
    write_manifests(project, count, engines="ort-cpu, ort-fp16")
    for name, arguments, limit in (
        ("list", ["list"], "1.0 s"),
        ("plan of one model", ["plan", one], "0.6 s"),
        ("plan", ["plan"], "4 s"),
    ):
        side = partial(cost, doit_command(*arguments), project)
        yield f"never built, {count} manifests: {name}", side, limit
    for name, arguments, limit in (
        ("list", ["list"], "1.0 s"),
        ("plan of one model", ["plan", one], "0.6 s"),
    ):
        side = partial(first_query, project, *arguments)
        yield f"the same without resolved manifests: {name}", side, limit


def sides_of(
    project: Path, count: int, folder: Path, given: argparse.Namespace
) -> Iterator[tuple[str, Side, str]]:
    """Yield name, measurement and limit of every side."""
    empty = folder / "empty"
    empty.mkdir()
    (empty / "dodo.py").touch()
    small = make_project(folder, SMALL)
    targets = TARGETS_PER_MODEL * count
    plain = other_tools.plain_doit(folder / "plain", targets)
    yield "empty dodo file", lambda: cost(doit_command(), empty), ""
    yield (
        f"nothing to do, {targets} targets",
        lambda: cost(doit_command(), project),
        "1.0 s",
    )
    yield (
        f"plain doit, {targets} tasks",
        lambda: cost(plain, folder / "plain"),
        "at least ours",
    )
    yield (
        f"build:one of {count}",
        lambda: cost(doit_command(f"build:{model_name(1)}"), project),
        "",
    )
    yield f"list, {SMALL} manifests", lambda: cost(doit_command("list"), small), ""
    yield (
        "one manifest edited, until its first stage",
        lambda: first_stage(project),
        "",
    )
    yield from queries(folder / "unbuilt", count)
    if given.dvc or given.snakemake:
        equal = make_project(folder, STAGES // TARGETS_PER_MODEL)
        yield f"nothing to do, {STAGES} targets", lambda: cost(doit_command(), equal), ""
    if given.dvc:
        command = other_tools.dvc(folder / "dvc", STAGES, given.dvc)
        yield f"dvc repro, {STAGES} stages", lambda: cost(command, folder / "dvc"), ""
    if given.snakemake:
        jobs = other_tools.snakemake(folder / "snakemake", STAGES, given.snakemake)
        yield f"snakemake, {STAGES} jobs", lambda: cost(jobs, folder / "snakemake"), ""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--manifests",
        type=int,
        default=1000,
        help="manifests of the generated project (default: %(default)s)",
    )
    parser.add_argument("--project", type=Path, help="reuse this generated project")
    parser.add_argument(
        "--rounds", type=int, default=7, help="measurements of each side (default: %(default)s)"
    )
    parser.add_argument("--dvc", type=Path, help="path of dvc, to include it")
    parser.add_argument("--snakemake", type=Path, help="path of snakemake, to include it")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument(
        "--keep", action="store_true", help="keep the temporary folder and print its path"
    )
    return parser.parse_args()


def main() -> None:
    given = parse()
    with workspace(keep=given.keep) as folder:
        project = (
            given.project.resolve() if given.project else make_project(folder, given.manifests)
        )
        count = len(list((project / "configs" / "models").iterdir()))
        measured = list(sides_of(project, count, folder, given))
        for _, side, _ in measured:  # fill the caches of the disk and the tools
            side()
        taken = alternate({name: side for name, side, _ in measured}, given.rounds)
    limits = {name: limit for name, _, limit in measured}
    rows = [row_of(name, runs, limits[name]) for name, runs in taken.items()]
    ours, theirs = (
        statistics.median(
            run.cpu_s for name, runs in taken.items() if name.startswith(start) for run in runs
        )
        for start in (f"nothing to do, {TARGETS_PER_MODEL * count}", "plain doit")
    )
    figures: dict[str, Any] = {name: [asdict(run) for run in runs] for name, runs in taken.items()}
    publish(
        f"Scale, {count} manifests",
        COLUMNS,
        rows,
        {"sides": figures, "cpu_ratio": ours / theirs},
        given.json,
    )
    print(f"\nCPU time of nothing to do, relative to plain doit: {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
