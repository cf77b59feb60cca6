"""Engines of TensorRT and of PyTorch itself on a GPU, against the three forms of PyTorch.

``python tests/bench/gpu_engines.py --models convnext_tiny,vit_b_16 --out figures.json`` builds and
times each model in fp16 at batch 8. BUILDSYS_TEST_TOOLCHAIN names an interpreter with TensorRT, as
for the tests on a GPU; ``--backends torch`` does without.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

sys.path.append(str(Path(__file__).parents[1] / "gpu"))
sys.path.append(str(Path(__file__).parents[1] / "scenarios"))
from model_project import ModelProject, make_project

_BASELINES = ("torch", "torch_cuda_graph", "torch_compile")
_TORCH = {
    "pt-compile": {"mode": "compile"},
    "pt-autotune": {"mode": "compile", "autotune": True},
    "pt-graph": {"mode": "cuda_graph"},
}


def add_engines(project: ModelProject, model: str, backends: list[str], engines: list[str]) -> None:
    """Give a model engines of PyTorch, and take TensorRT's away if it is not asked for."""
    file = project.root / f"configs/models/{model}.yaml"
    manifest = yaml.safe_load(file.read_text(encoding="utf-8"))
    if "tensorrt" not in backends:
        manifest["engines"] = []
    if "torch" in backends:
        manifest["engines"] += [
            {"name": name, "backend": "torch", "precision": "fp16", **_TORCH[name]}
            for name in engines
        ]
    file.write_text(yaml.safe_dump(manifest, sort_keys=False), encoding="utf-8")


def row(project: ModelProject, model: str, engine: str) -> dict[str, Any]:
    """Collect the figures of an engine; GPU times in ms."""
    built, verified, bench = (
        project.result(stage, model, engine) for stage in ("engine", "verify", "bench")
    )
    timed = bench.get("cases", {}).get("opt", {}).get("contenders", {})
    return {
        "model": model,
        "engine": engine,
        "status": [result.get("status") for result in (built, verified, bench)],
        "reasons": [result.get("reason") for result in (built, verified, bench)],
        "build_s": built.get("build_seconds"),
        "cold_start": bench.get("cold_start"),
        "gpu_p50_ms": {
            name: figures.get("gpu", figures).get("p50_ms") for name, figures in timed.items()
        },
        "p50_ms": {name: figures.get("p50_ms") for name, figures in timed.items()},
        "left_out": bench.get("left_out"),
        "bench_s": bench.get("seconds"),
    }


def main() -> None:
    """Build, time, print a line per engine and the best engine against the best of PyTorch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="convnext_tiny,vit_b_16")
    parser.add_argument("--backends", default="torch,tensorrt")
    parser.add_argument("--engines", default="pt-compile,pt-graph")
    parser.add_argument("--budget", default="30s", help="of a benchmark")
    parser.add_argument("--cold-starts", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--folder", type=Path, help="to keep what is built")
    asked = parser.parse_args()
    models, rows = asked.models.split(","), []
    folder = asked.folder or Path(tempfile.mkdtemp())
    bench: dict[str, Any] = {"duration": "1s", "cases": ["opt"], "budget": asked.budget}
    bench |= {"baselines": [*_BASELINES], "cold_start": asked.cold_starts}
    project = make_project(folder, models, ["fp16"], **bench)
    for model in models:
        add_engines(project, model, asked.backends.split(","), asked.engines.split(","))
        manifest = yaml.safe_load((folder / f"configs/models/{model}.yaml").read_text())
        names = [engine["name"] for engine in manifest["engines"]]
        targets = [f"{stage}:{model}:{name}" for stage in ("verify", "bench") for name in names]
        begun = time.monotonic()
        ran = project.doit(*targets)
        print(f"{model}: {time.monotonic() - begun:.0f} s, exit code {ran.returncode}", flush=True)
        if ran.returncode:
            print(ran.stdout[-3000:])
        own = [row(project, model, name) for name in names]
        rows += own
        for figures in own:
            print(json.dumps(figures), flush=True)
        times = [figures["gpu_p50_ms"] for figures in own if figures["gpu_p50_ms"]]
        engines = [t[name] for t in times for name in t if name.startswith("engine")]
        baselines = [t[name] for t in times for name in t if name in _BASELINES and t[name]]
        if engines and baselines:
            best, torch = min(engines), min(baselines)
            print(f"{model}: best engine {best:.3f} ms, best of PyTorch {torch:.3f} ms,"
                  f" {best / torch:.3f}", flush=True)  # fmt: skip
    if asked.out:
        asked.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
