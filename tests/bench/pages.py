"""Time and size of the HTML pages of many models, each with many builds.

Limits: all pages and the index in 60 s, 150 kB for a page, 1 MB for the index; a run with nothing
to do imports none of the code. Results and history are made up; samples are drawn.
"""

import argparse
import json
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "unit" / "report")]

from tiny_results import PASSING, Results  # noqa: E402

from buildsys.cli.commands.pages import write_pages  # noqa: E402
from buildsys.cli.session import BuildSession  # noqa: E402
from buildsys.execution.run_records import Outcome  # noqa: E402
from buildsys.history.builds import Build  # noqa: E402
from buildsys.history.database import History, digest_of, history_file  # noqa: E402
from buildsys.plan.action import Action  # noqa: E402
from buildsys.report.assemble import assemble  # noqa: E402
from buildsys.report.report_types import as_json  # noqa: E402

LIMITS = {"seconds": 60.0, "page_bytes": 150_000, "index_bytes": 1_000_000}
_SAMPLES = 500
_MANIFEST = """\
model: {name}
source: {{python: net.py:make}}
inputs: {{image: {{shape: [batch, 3, 64, 64]}}}}
outputs: {{scores: {{shape: [batch, 10]}}}}
dims: {{batch: {{min: 1, opt: 8, max: 16}}}}
engines: [{{name: ort-cpu, backend: onnxruntime, precision: fp32}}]
"""
_NOOP = """
import sys
from buildsys.cli.main import main
sys.argv = ["doit", "list"]
try:
    main()
except SystemExit:
    pass
print(*sorted(name for name in sys.modules if name.startswith("buildsys.report.html")
              or name.split(".")[0] in ("jinja2", "markupsafe")), file=sys.stderr)
"""


def make_project(root: Path, models: int) -> None:
    """Write a project of equal models."""
    (root / "configs" / "models").mkdir(parents=True)
    (root / "net.py").write_text("def make():\n    pass\n")
    for file in ("dodo.py", "pyproject.toml"):
        (root / file).write_bytes((ROOT / file).read_bytes())
    for number in range(models):
        name = f"model{number:04d}"
        (root / "configs" / "models" / f"{name}.yaml").write_text(_MANIFEST.format(name=name))


def contender(draw: random.Random, p50_ms: float) -> dict[str, Any]:
    """Return drawn latencies with a tail."""
    samples = [p50_ms * (1 + abs(draw.gauss(0, 0.02))) for _ in range(_SAMPLES)]
    ordered = sorted(samples)
    found = {f"p{n}_ms": ordered[_SAMPLES * n // 100] for n in (50, 90, 95, 99)}
    return {
        **found, "samples_ms": samples, "count": _SAMPLES, "mean_ms": statistics.fmean(samples),
        "min_ms": ordered[0], "max_ms": ordered[-1], "throughput_per_s": 8000 / p50_ms,
        "p50_interval_ms": [ordered[_SAMPLES * 47 // 100], ordered[_SAMPLES * 53 // 100]],
    }  # fmt: skip


def write_results(build: Path, actions: dict[str, Action], draw: random.Random) -> None:
    """Write the results of one model, its report and two pictures."""
    model = next(iter(actions.values())).model
    results = Results(build / ".made")
    results.inputs = {
        target: build / action.outputs["result"].path
        for target, action in actions.items()
        if action.stage != "report"
    }
    kept = {"tiny": model}
    cases = {}
    for case, batch in (("min", 1), ("opt", 8), ("max", 16)):
        names = {"engine": 0.3, "torch": 0.6, "torch_compile": 0.4}
        timed = {name: contender(draw, time * batch) for name, time in names.items()}
        cases[case] = {"dims": {"batch": batch}, "batch": batch, "contenders": timed, "speedup": 2}
    for target, path in results.inputs.items():
        stage, _, *variant = target.split(":")
        source = ":".join((stage, *kept, *variant))
        figures = PASSING.get(source, {})
        if stage == "bench":
            figures = {**figures, "cases": cases}
        results.write(target, {"status": "passed", **figures})
        path.with_suffix(".log").write_text("log\n")
    report = actions[f"report:{model}"]
    content = assemble(model, report.options["manifest"], results.inputs, {})
    header = {"target": report.target, "status": "passed", "model": model}
    path = build / report.outputs["result"].path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**header, **as_json(content)}))
    for role, ref in report.outputs.items():
        if role.startswith("picture."):
            box = '<rect x="{0}" y="{0}" width="90" height="40" fill="#e3edf7"/>'
            boxes = "".join(box.format(n) for n in range(400))
            (build / ref.path).write_text(f"<svg width='900' height='900'>{boxes}</svg>")


def write_history(history: History, model: str, builds: int, draw: random.Random) -> None:
    """Record past builds of engine, verify and bench."""
    environment = digest_of("{}")
    for number in range(builds):
        day = f"2026-{1 + number // 28 % 12:02d}-{1 + number % 28:02d}T02:00:00Z"
        p50_ms = 2.4 * (1 + draw.gauss(0, 0.01))
        figures = {
            "engine": {"bytes": 118_000 + number, "build_seconds": 1.5},
            "verify": {"relative": 3e-6, "relative_at": "max scores"},
            "bench": {
                "case": "opt", "latency_p50_ms": p50_ms,
                "latency_interval_ms": [p50_ms * 0.99, p50_ms * 1.01], "throughput_per_s": 3000.0,
            },
        }  # fmt: skip
        for stage, known in figures.items():
            build = Build(
                id=uuid.UUID(int=draw.getrandbits(128)).hex, run="r", project="",
                target=f"{stage}:{model}:ort-cpu", model=model, stage=stage, variant="ort-cpu",
                key="k", how="ran", status="passed", started=day, position=float(number),
                seconds=1.0, reason="", why="", revision="a" * 40, dirty=False, machine="m",
                machine_id="m", environment=environment, manifest=environment, outputs={},
                figures=known,
            )  # fmt: skip
            history.add(build)


def copy_history(file: Path, models: list[str]) -> None:
    """Copy the builds of the first model for all others, much faster than recording them."""
    first, *others = models
    with closing(sqlite3.connect(file)) as db, db:
        columns = [row[1] for row in db.execute("PRAGMA table_info(builds)")]
        changed = {
            "id": "'m' || substr(:model, -4) || substr(id, 6)",
            "model": ":model",
            "target": "replace(target, :first, :model)",
        }
        values = ", ".join(changed.get(name, name) for name in columns)
        query = f"INSERT INTO builds ({', '.join(columns)}) SELECT {values} FROM builds"
        for model in others:
            db.execute(f"{query} WHERE model = :first", {"model": model, "first": first})


def main() -> int:
    """Print the figures and their limits; return 1 if one is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--builds", type=int, default=100)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--out", type=Path, help="keep the project here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="buildsys-bench-") as folder:
        root = options.out or Path(folder) / "project"
        root.mkdir(parents=True, exist_ok=True)
        make_project(root, options.models)
        os.chdir(root)
        session, draw = BuildSession.read_only(root), random.Random(0)
        session.project.state.mkdir(parents=True, exist_ok=True)
        history = History(history_file(session.project.state))
        models = list(session.project.models)
        for model in models:
            write_results(session.project.build, dict(session.actions.of(model)), draw)
        write_history(history, models[0], options.builds, draw)
        history.close()
        copy_history(history.path, models)
        session = BuildSession.read_only(root)
        for model in session.project.models:
            target = f"report:{model}"
            session.finished[target] = Outcome(target, "passed", 0.1)
        began, cpu = time.monotonic(), sum(os.times()[:4])
        index = write_pages(session, session.project.models)
        figures = {
            "seconds": time.monotonic() - began,
            "cpu_seconds": sum(os.times()[:4]) - cpu,
            "page_bytes": max(p.stat().st_size for p in index.parent.glob("model*.html")),
            "index_bytes": index.stat().st_size,
        }
        began = time.monotonic()
        write_pages(session, list(session.project.models)[:1])
        figures["one_page_seconds"] = time.monotonic() - began
        noop = subprocess.run(
            [sys.executable, "-c", _NOOP], cwd=root, capture_output=True, text=True, check=True
        )
    loaded = noop.stderr.split()
    for name, value in figures.items():
        limit = f"  limit {LIMITS[name]:,.0f}" if name in LIMITS else ""
        print(f"{name:18}{value:14,.3f}{limit}")
    print(f"modules of pages loaded by a run with nothing to do: {', '.join(loaded) or 'none'}")
    if options.json:
        options.json.write_text(json.dumps({**figures, "sqlite": sqlite3.sqlite_version}))
    return int(bool(loaded) or any(figures[name] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
