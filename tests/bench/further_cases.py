"""CPU time of the further cases of validate, relative to a build with one engine.

The stages up to verify run in turns, each in a fork like that of a worker server: libraries and the
stage are imported, their objects are left out of garbage collections, and freed memory is kept. The
progress that a stage reports separates its further cases from the rest, so one process gives both
times: processes of 2 s differ from each other by more than the further cases take. Other load slows
both down, so their ratio counts, as the median of all rounds. It runs on one thread: with two, the
one that waits for the other spins, and for longer if other processes have the cores.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from _harness import ROOT, environment, parse_options, publish, workspace

from buildsys.manifest.project import load_project
from buildsys.plan.action import Action
from buildsys.plan.stage_table import plan_model
from buildsys.workers.client.environment import server_environment
from buildsys.workers.job import Job
from buildsys.workers.server.child import run_stage
from buildsys.workers.server_kinds import TORCH, late_preload

STAGES = ("export", "reference", "simplify", "validate", "engine", "verify")
FURTHER = re.compile(r"further cases|case (drawn|seed|extremes|nan|inf)-")  # of the progress
SETTINGS = "MALLOC_TRIM_THRESHOLD_"  # of a worker; glibc reads it when a process starts


def cpu_seconds(action: Action, folder: Path) -> tuple[float, float]:
    """Run a stage in a fork, as a worker does.

    Return the CPU seconds of its further cases, and those of everything else.
    """
    outputs = {role: folder / file.path for role, file in action.outputs.items()}
    for path in outputs.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    inputs = {role: folder / file.path for role, file in action.inputs.items()}
    job = Job(
        target=action.target,
        stage=action.stage,
        model=action.model,
        variant=action.variant,
        options=action.options,
        inputs={role: path for role, path in inputs.items() if path.exists()},
        outputs=outputs,
        project=ROOT,
        threads=1,
    )
    for name in late_preload(job):
        importlib.import_module(name)
    gc.freeze()
    answer, sent = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.write(sent, struct.pack("d", further_seconds(job)))
        os._exit(0)
    _, status, used = os.wait4(pid, 0)
    if status:
        sys.exit(f"{job.target} failed")
    (further,) = struct.unpack("d", os.read(answer, 8))
    os.close(answer)
    os.close(sent)
    if (further > 0) != ("further" in job.options):
        sys.exit(f"the progress of {job.target} does not show its further cases")
    return further, used.ru_utime + used.ru_stime - further


def further_seconds(job: Job) -> float:
    """Run a stage in this process; return the CPU seconds of its further cases."""
    steps: list[tuple[str, float]] = []

    def note(message: str = "") -> None:
        steps.append((message, time.process_time()))

    if run_stage(replace(job, progress=note)).status != "passed":
        os._exit(1)
    note()
    return sum(end - start for (step, start), (_, end) in pairwise(steps) if FURTHER.search(step))


def measure(model: str, rounds: int, folder: Path) -> Mapping[str, Any]:
    """Return the CPU seconds of each stage, and the share of the further cases, by round."""
    spec = json.loads(load_project(ROOT).models[model].text)
    engine = next(engine for engine in spec["engines"] if engine["backend"] == "onnxruntime")
    spec["engines"] = [{**engine, "intra_op_threads": 1}]
    actions = [action for action in plan_model(spec) if action.stage in STAGES]
    for action in actions:
        cpu_seconds(action, folder)  # fills the caches of files
    taken = [{a.stage: cpu_seconds(a, folder) for a in actions} for _ in range(rounds)]
    stages = {stage: [found[stage] for found in taken] for stage in taken[0]}
    stages["all"] = [tuple(map(sum, zip(*found.values(), strict=True))) for found in taken]
    return {
        "model": model,
        "stages": {
            stage: {"cost_s": [cost for cost, _ in times], "rest_s": [rest for _, rest in times]}
            for stage, times in stages.items()
        },
        "shares": [cost / rest for cost, rest in stages["all"]],
    }


def main() -> None:
    options = parse_options(__doc__ or "", models=("resnet18", "token_scorer"), rounds=5)
    if SETTINGS not in os.environ:
        with workspace(keep=False) as folder:
            variables = server_environment(folder, environment())
            sys.exit(subprocess.run([sys.executable, *sys.argv], env=variables).returncode)
    for name in (*TORCH.preload, "onnxruntime", "onnxsim"):
        importlib.import_module(name)
    with workspace(keep=options.keep) as folder:
        figures = [measure(model, options.rounds, folder) for model in options.models]
    rows = []
    for one in figures:
        shares = [100 * share for share in one["shares"]]
        range_ = f"{min(shares):.1f} to {max(shares):.1f} %"
        shown = {"all": (f"{statistics.median(shares):+.2f} %", range_)}
        for stage, times in one["stages"].items():
            rest, cost = (statistics.median(times[part]) for part in ("rest_s", "cost_s"))
            if cost:
                figure = shown.get(stage, ("", ""))
                rows.append((one["model"], stage, f"{rest:.2f}", f"{cost:+.3f}", *figure))
    columns = ("model", "stage", "without (CPU s)>", "cost (CPU s)>", "share>", "range>")
    publish("Further cases of validate", columns, rows, {"models": figures}, options.json)


if __name__ == "__main__":
    main()
