"""Latency of engines by ``load_engine``, compared with the bare runtime on the same file.

Both sides take turns in one process with the same session; a call takes numpy arrays and returns
new ones. Only ONNX Runtime: on a GPU, tests/gpu/run_engine.py compares with TensorRT.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from _harness import copy_project, doit_command, environment, log, publish, workspace

from buildsys import load_engine
from buildsys.backends.measurement import LocalCall, Pace, Samples, measure
from buildsys.history.statistics import median, median_interval

MODELS = ("resnet18", "mobilenet_v3_small")
ENGINE = "ort-cpu"
LIMIT = 1.1
COLUMNS = (
    "engine", "batch>", "bare p50 (ms)>", "load_engine p50 (ms)>", "overhead (µs)>", "ratio>",
    "95 % interval>",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "engines", nargs="*", type=Path, help=f"(default: {', '.join(MODELS)}, built before)"
    )
    parser.add_argument("--batches", default="1", help="separated by commas (default: 1)")
    parser.add_argument("--duration", type=float, default=10, help="seconds of each side")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    with workspace() as folder:
        engines = given.engines or build(folder)
        batches = [int(batch) for batch in given.batches.split(",")]
        figures = [compare(e, batch, given.duration) for e in engines for batch in batches]
    rows = [
        (
            figure["engine"],
            str(figure["batch"]),
            f"{figure['bare_ms']:.4f}",
            f"{figure['engine_ms']:.4f}",
            f"{figure['overhead_us']:.1f}",
            f"{figure['ratio']:.4f}",
            " to ".join(f"{end:.4f}" for end in figure["interval"]),
        )
        for figure in figures
    ]
    title = f"load_engine and onnxruntime {ort.__version__}"
    publish(title, COLUMNS, rows, figures, given.json)
    if slow := [figure["engine"] for figure in figures if figure["ratio"] > LIMIT]:
        raise SystemExit(f"above the limit of {LIMIT}: {', '.join(slow)}")


def build(folder: Path) -> list[Path]:
    """Return the engines of the default models, built in a copy of the project."""
    project = copy_project(folder, MODELS)
    targets = [f"engine:{name}:{ENGINE}" for name in MODELS]
    log(f"building {', '.join(targets)}")
    command = doit_command(*targets)
    subprocess.run(command, cwd=project, env=environment(), check=True, stdout=sys.stderr)
    return [project / "build" / name / "engine" / ENGINE for name in MODELS]


def compare(folder: Path, batch: int, duration_s: float) -> dict[str, Any]:
    """Return the medians of both sides, and of the ratios of consecutive turns."""
    with load_engine(folder) as engine:
        settings: dict[str, Any] = engine.record["settings"]
        # one session: the threads of two would spin against each other
        session: Any = engine._pool._first
        session = session.session
        inputs = {
            port.name: np.random.default_rng(0)
            .standard_normal([size if isinstance(size, int) else batch for size in port.shape])
            .astype(port.dtype)
            for port in engine.inputs
        }
        names = [port.name for port in engine.outputs]
        expected = session.run(names, inputs)
        for name, values in zip(names, expected, strict=True):
            np.testing.assert_array_equal(engine.run(inputs)[name], values)
        contenders = {
            "bare": LocalCall(lambda: session.run(names, inputs)),
            "engine": LocalCall(lambda: engine.run(inputs)),
        }
        blocks = measure(contenders, Pace(duration_s, warmup_s=1, min_samples=100))
    medians = {name: [median(block.wall_ns) for block in taken] for name, taken in blocks.items()}
    ratios = [own / bare for own, bare in zip(medians["engine"], medians["bare"], strict=True)]
    interval = median_interval(ratios)
    whole = {name: median(Samples.joined(taken).wall_ns) for name, taken in blocks.items()}
    differences = [own - bare for own, bare in zip(medians["engine"], medians["bare"], strict=True)]
    return {
        "engine": engine.name,
        "batch": batch,
        "bare_ms": whole["bare"] / 1e6,
        "engine_ms": whole["engine"] / 1e6,
        "overhead_us": median(differences) / 1e3,
        "ratio": median(ratios),
        "interval": [interval.low, interval.high] if interval else [min(ratios), max(ratios)],
        "turns": len(ratios),
        "settings": json.loads(json.dumps(settings, default=str)),
    }


if __name__ == "__main__":
    main()
