"""CPU time of the further cases of validate, relative to a build with one engine.

The stages up to verify run with and without ``validate: {drawn_sizes: 0, other_values: false}``, in
turns, each in a fork like that of a worker server: libraries and the stage are imported, their
objects are left out of garbage collections, and freed memory is kept. A stage with the same job on
both sides runs once a round and counts on both, as its noise is as large as what is measured. The
least CPU time of the forks counts, as other load only adds to it, on one thread: with two, the one
that waits for the other spins, and for longer if other processes have the cores.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
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
OFF = {"drawn_sizes": 0, "other_values": False}
SETTINGS = "MALLOC_TRIM_THRESHOLD_"  # of a worker; glibc reads it when a process starts


def cpu_seconds(action: Action, folder: Path) -> float:
    """Run a stage in a fork, as a worker does; return its CPU seconds."""
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
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        found = run_stage(job)
        os._exit(0 if found.status == "passed" else 1)
    _, status, used = os.wait4(pid, 0)
    if status:
        sys.exit(f"{job.target} failed")
    return used.ru_utime + used.ru_stime


def measure(model: str, rounds: int, folder: Path) -> Mapping[str, Any]:
    """Return the least CPU seconds of each stage without further cases, and what they add."""
    on = json.loads(load_project(ROOT).models[model].text)
    engine = next(engine for engine in on["engines"] if engine["backend"] == "onnxruntime")
    on["engines"] = [{**engine, "intra_op_threads": 1}]
    off = {**on, "validate": {**on["validate"], **OFF}}
    pairs = [
        (without, action)
        for without, action in zip(plan_model(off), plan_model(on), strict=True)
        if action.stage in STAGES
    ]
    least = {action.stage: (math.inf, math.inf) for _, action in pairs}
    for _, action in pairs:
        cpu_seconds(action, folder)  # fills the caches of files
    for number in range(rounds):
        for without, action in pairs:
            if (without.options, without.inputs) == (action.options, action.inputs):
                off_s = on_s = cpu_seconds(action, folder)
            elif number % 2:
                off_s, on_s = cpu_seconds(without, folder), cpu_seconds(action, folder)
            else:
                on_s, off_s = cpu_seconds(action, folder), cpu_seconds(without, folder)
            known = least[action.stage]
            least[action.stage] = min(off_s, known[0]), min(on_s, known[1])
    stages = {
        stage: {"off_s": off_s, "cost_s": on_s - off_s} for stage, (off_s, on_s) in least.items()
    }
    total = {name: sum(stage[name] for stage in stages.values()) for name in ("off_s", "cost_s")}
    return {"model": model, "stages": stages, **total, "share": total["cost_s"] / total["off_s"]}


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
        parts = {name: stage for name, stage in one["stages"].items() if stage["cost_s"]}
        rows += [
            (one["model"], name, f"{part['off_s']:.2f}", f"{part['cost_s']:+.3f}", "")
            for name, part in parts.items()
        ]
        share = f"{100 * one['share']:+.1f} %"
        rows.append((one["model"], "all", f"{one['off_s']:.2f}", f"{one['cost_s']:+.3f}", share))
    columns = ("model", "stage", "without (CPU s)>", "cost (CPU s)>", "share>")
    publish("Further cases of validate", columns, rows, {"models": figures}, options.json)


if __name__ == "__main__":
    main()
