"""Time of an export with the recorder of reads, compared with the same export without it.

Both sides run in forks of one process with torch imported, as in a worker server.
"""

from __future__ import annotations

import importlib
import os
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _harness import ROOT, parse_options, publish, workspace

from buildsys.manifest.project import load_project
from buildsys.plan.action import Action
from buildsys.plan.stage_table import plan_model
from buildsys.workers.job import Job
from buildsys.workers.server.read_recorder import ReadRecorder


def job_of(action: Action, folder: Path) -> Job:
    """Return the job of an action without inputs."""
    outputs = {role: folder / ref.path for role, ref in action.outputs.items()}
    for path in outputs.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    return Job(
        target=action.target,
        stage=action.stage,
        model=action.model,
        variant=action.variant,
        options=action.options,
        inputs={},
        outputs=outputs,
        project=ROOT,
    )


def seconds(job: Job, *, record: bool) -> float:
    """Return the time of a stage in a fork."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        begun = time.perf_counter()
        recorder = ReadRecorder(job.project) if record else None
        if recorder is not None:
            recorder.start()
        importlib.import_module(f"buildsys.stages.{job.stage}.stage").run(job)
        if recorder is not None:
            recorder.stop()
        os.write(writer, repr(time.perf_counter() - begun).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.wait()
    if not text:
        sys.exit(f"{job.target} failed")
    return float(text)


def measure(model: str, rounds: int, folder: Path) -> Mapping[str, Any]:
    """Return the times of both sides, taken in alternation."""
    spec = load_project(ROOT).models[model].data
    action = next(each for each in plan_model(spec) if each.stage == "export")
    job = job_of(action, folder)
    seconds(job, record=True)  # fills the caches of files
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for record in (False, True):
            times[record].append(seconds(job, record=record))
    ratios = [a / b for a, b in zip(times[True], times[False], strict=True)]
    return {
        "model": model,
        "without_s": round(statistics.median(times[False]), 3),
        "with_s": round(statistics.median(times[True]), 3),
        "ratio": round(statistics.median(ratios), 4),
    }


def main() -> None:
    options = parse_options(__doc__ or "", models=["resnet18"], rounds=15)
    for name in ("torch", "torchvision", "onnx", "onnxscript"):
        importlib.import_module(name)
    with workspace(keep=options.keep) as folder:
        rows = [measure(model, options.rounds, folder) for model in options.models]
    cells = [[str(value) for value in row.values()] for row in rows]
    headings = ["model", "without [s]", "with [s]", "ratio"]
    publish("recorded reads", headings, cells, rows, options.json)


if __name__ == "__main__":
    main()
