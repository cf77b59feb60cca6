"""CPU time of the further cases of validate, relative to a build with one engine.

Export, reference, simplify, validate and engine run with and without ``validate: {drawn_sizes: 0,
other_values: false}``, in turns, each stage in a fork of one process with the
libraries imported. CPU time of the forks and their threads counts, so other load matters little.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _harness import ROOT, parse_options, publish, workspace

from buildsys.manifest.project import load_project
from buildsys.plan.stage_table import plan_model
from buildsys.workers.job import Job

STAGES = ("export", "reference", "simplify", "validate", "engine")
OFF = {"drawn_sizes": 0, "other_values": False}


def build(spec: Mapping[str, Any], folder: Path) -> float:
    """Run the stages of a model; return their CPU seconds."""
    for action in plan_model(spec):
        if action.stage not in STAGES:
            continue
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
        )
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            found = importlib.import_module(f"buildsys.stages.{job.stage}.stage").run(job)
            os._exit(0 if found.status == "passed" else 1)
        if os.waitpid(pid, 0)[1]:
            sys.exit(f"{job.target} failed")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(model: str, rounds: int, folder: Path) -> Mapping[str, Any]:
    """Return the CPU times of both sides, taken in turns."""
    on = json.loads(load_project(ROOT).models[model].text)
    on["engines"] = [engine for engine in on["engines"] if engine["backend"] == "onnxruntime"][:1]
    off = {**on, "validate": {**on["validate"], **OFF}}
    times: dict[str, list[float]] = {"off": [], "on": []}
    before = build(on, folder)  # fills the caches of files
    for number in range(rounds):
        sides = [("off", off), ("on", on)]
        for name, spec in sides if number % 2 else reversed(sides):
            after = build(spec, folder)
            times[name].append(after - before)
            before = after
    off_s, on_s = (statistics.median(times[name]) for name in ("off", "on"))
    return {"model": model, "off_s": off_s, "on_s": on_s, "share": on_s / off_s - 1}


def main() -> None:
    options = parse_options(__doc__ or "", models=("resnet18", "token_scorer"), rounds=3)
    for name in ("torch", "torchvision", "onnx", "onnxscript", "onnxruntime"):
        importlib.import_module(name)
    with workspace(keep=options.keep) as folder:
        figures = [measure(name, options.rounds, folder) for name in options.models]
    rows = [
        (one["model"], f"{one['off_s']:.2f}", f"{one['on_s']:.2f}", f"{100 * one['share']:+.1f} %")
        for one in figures
    ]
    columns = ("model", "without (CPU s)>", "with (CPU s)>", "cost>")
    publish("Further cases of validate", columns, rows, {"models": figures}, options.json)


if __name__ == "__main__":
    main()
