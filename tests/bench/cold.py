"""Eight torchvision models from scratch: doit and doit -n 2 compared with a plain script.

Each side builds the exported and the simplified graph, compares them with PyTorch and with each
other, and builds a TensorRT-RTX engine in fp32.
"""

import json
import shutil
import statistics
import sys
from pathlib import Path

from _harness import (
    EIGHT_MODELS,
    TIME_COLUMNS,
    alternate,
    copy_project,
    doit_command,
    edit_manifest,
    forget_everything,
    manifests,
    parse_options,
    publish,
    time_row,
    timed,
    workspace,
)

from buildsys.project.load import load_project
from buildsys.project.plan import plan_model

ENGINE = "rtx-fp32"
LIMITS = {"doit": 1.0, "doit -n 2": 0.7}
PLAIN_SCRIPT = Path(__file__).with_name("plain_script.py")


def write_plan(project: Path, file: Path) -> list[str]:
    """Write the stages' options of all models for the plain script; return doit's targets."""
    for manifest in manifests(project):
        engine = {"name": ENGINE, "backend": "tensorrt_rtx"}
        edit_manifest(manifest, lambda content, engine=engine: content.update(engines=[engine]))
    models = load_project(project).models
    plan = {
        name: {action.stage: action.options for action in plan_model(model.data)}
        for name, model in models.items()
    }
    file.write_text(json.dumps(plan, default=dict), encoding="utf-8")
    return [target for name in models for target in (f"validate:{name}", f"engine:{name}:{ENGINE}")]


def main() -> None:
    options = parse_options(__doc__ or "", models=EIGHT_MODELS, rounds=2)
    with workspace() as folder:
        project, out = copy_project(folder, options.models), folder / "plain"
        targets = write_plan(project, folder / "plan.json")

        def doit(*arguments: str) -> float:
            forget_everything(project)
            return timed(doit_command(*arguments, *targets), project)

        def plain() -> float:
            shutil.rmtree(out, ignore_errors=True)
            return timed(
                [sys.executable, str(PLAIN_SCRIPT), str(folder / "plan.json"), str(out)], folder
            )

        sides = {"plain script": plain, "doit": doit, "doit -n 2": lambda: doit("-n", "2")}
        taken = alternate(sides, options.rounds)
    base = statistics.median(taken["plain script"])
    ratios = {name: statistics.median(taken[name]) / base for name in LIMITS}
    rows = [time_row("plain script", taken["plain script"])]
    rows += [
        time_row(name, taken[name], f"{ratios[name]:.2f} (limit {LIMITS[name]})") for name in LIMITS
    ]
    figures = {"seconds": taken, "ratios": ratios, "limits": LIMITS, "models": list(options.models)}
    publish(f"{len(targets) // 2} models from scratch", TIME_COLUMNS, rows, figures, options.json)


if __name__ == "__main__":
    main()
