"""Time of a rebuild after an opset change on top of the stages' own time, model by model.

doit on an empty dodo file is timed after every rebuild as a measure of the machine's present speed.
"""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _harness import (
    copy_project,
    doit_command,
    edit_manifest,
    log,
    manifests,
    parse_options,
    publish,
    shorten_benchmarks,
    timed,
    workspace,
)

LIMIT_S = 0.8
OPSETS = (18, 19, 20, 16, 15)  # all new to the model, so the store has no results
Runs = dict[str, tuple[str, float]]  # target -> (start, seconds of the stage)


def stage_runs(project: Path) -> Runs:
    """Return start and duration of the last run of every target."""
    found: Runs = {}
    for file in (project / "build").rglob("*.json"):
        content: Any = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(content, dict) and "target" in content and "seconds" in content:
            found[content["target"]] = (content["started"], content["seconds"])
    return found


def rebuild(project: Path, file: Path, model: str, opset: int) -> tuple[float, float, list[str]]:
    """Return wall time, total time of the stages, and the rebuilt targets."""
    before = stage_runs(project)
    edit_manifest(file, lambda content: content.setdefault("export", {}).update(opset=opset))
    wall_s = timed(doit_command(f"build:{model}"), project)
    after = stage_runs(project)
    ran = [target for target in after if before.get(target) != after[target]]
    if f"export:{model}" not in ran:
        raise SystemExit(f"export:{model} did not run after its opset changed to {opset}")
    return wall_s, sum(after[target][1] for target in ran), ran


def measure(model: str, rounds: int, folder: Path) -> list[dict[str, Any]]:
    """Return the figures of one model, round by round."""
    empty = folder / "empty"
    empty.mkdir(parents=True)
    (empty / "dodo.py").touch()
    timed(doit_command(), empty)
    project = copy_project(folder, (model,))
    shorten_benchmarks(project)
    file = manifests(project)[0]
    timed(doit_command(f"build:{model}"), project)
    taken = []
    for opset in OPSETS[:rounds]:
        wall_s, stages_s, ran = rebuild(project, file, model, opset)
        log(f"{model}, opset {opset}: {wall_s:.2f} s, stages {stages_s:.2f} s")
        empty_s = min(timed(doit_command(), empty) for _ in range(3))
        taken.append(
            {"opset": opset, "wall_s": wall_s, "stages_s": stages_s, "empty_s": empty_s, "ran": ran}
        )
    return taken


def row_of(model: str, taken: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Return one model's row of medians."""
    wall, stages, over, ratio = (
        statistics.median(values)
        for values in (
            [run["wall_s"] for run in taken],
            [run["stages_s"] for run in taken],
            [run["wall_s"] - run["stages_s"] for run in taken],
            [(run["wall_s"] - run["stages_s"]) / run["empty_s"] for run in taken],
        )
    )
    return (
        model,
        str(len(taken)),
        str(len(taken[0]["ran"])),
        f"{wall:.2f}",
        f"{stages:.2f}",
        f"{over:+.2f}",
        f"{ratio:.1f}",
    )


def main() -> None:
    options = parse_options(__doc__ or "", models=("resnet18",), rounds=3)
    figures = {}
    with workspace() as folder:
        for model in options.models:
            figures[model] = measure(model, min(options.rounds, len(OPSETS)), folder / model)
    columns = (
        "model",
        "runs>",
        "targets rerun>",
        "wall (s)>",
        "stages (s)>",
        f"on top of the stages (s), limit {LIMIT_S}>",
        "in runs of an empty dodo file>",
    )
    rows = [row_of(model, taken) for model, taken in figures.items()]
    publish("Rebuild after an opset change", columns, rows, figures, options.json)


if __name__ == "__main__":
    main()
