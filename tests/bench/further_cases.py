"""CPU time of a model's build that the further cases of values and sizes take.

Each model is built with and without them in turns, for the CPU and without benchmarks. Stages run
in processes of a server, which this script adopts when the build has ended.
"""

import ctypes
import os
import resource
import statistics
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from _harness import copy_project, edit_manifest, log, parse_options, publish, workspace

LIMIT = 0.10  # of the CPU time without them
MODELS = ("resnet18", "mobilenet_v3_small", "token_scorer")
_ADOPT = 36  # PR_SET_CHILD_SUBREAPER


def cpu_seconds(project: Path, model: str) -> float:
    """Build a model and return the CPU time of all processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = ["buildsys", "build", model, "--no-bench", "-j", "1"]
    environment = {**os.environ, "BUILDSYS_WORKER_IDLE": "0"}
    subprocess.run(command, cwd=project, check=True, stdout=subprocess.DEVNULL, env=environment)
    with suppress(ChildProcessError):
        while True:
            os.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(model: str, rounds: int, folder: Path) -> dict[str, Any]:
    """Build a model in new projects, with and without further cases."""
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    for number in range(rounds):
        for kind, values in seconds.items():
            parent = folder / f"{kind}{number}"
            parent.mkdir(parents=True)
            project = copy_project(parent, (model,))

            def change(content: dict[str, Any], kind: str = kind) -> None:
                content["engines"] = ["ort-cpu"]
                if kind == "without":
                    content["validate"] = {"drawn_sizes": 0, "other_values": False}

            edit_manifest(project / f"configs/models/{model}.yaml", change)
            values.append(cpu_seconds(project, model))
            log(f"{model} {kind}: {values[-1]:.1f} s")
    usual, all_cases = (statistics.median(values) for values in seconds.values())
    return {"model": model, **seconds, "share": (all_cases - usual) / usual}


def main() -> None:
    options = parse_options(__doc__ or "", models=MODELS, rounds=3)
    ctypes.CDLL(None).prctl(_ADOPT, 1, 0, 0, 0)
    with workspace(keep=options.keep) as folder:
        figures = [measure(model, options.rounds, folder / model) for model in options.models]
    rows = [
        (
            entry["model"],
            f"{statistics.median(entry['without']):.1f}",
            f"{statistics.median(entry['with']):.1f}",
            f"{entry['share']:.1%}",
        )
        for entry in figures
    ]
    columns = ("model", "without (s)>", "with (s)>", f"added, limit {LIMIT:.0%}>")
    publish("CPU time of further cases", columns, rows, figures, options.json)


if __name__ == "__main__":
    main()
