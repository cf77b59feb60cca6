"""The fastest engine of this machine, against the fastest form of PyTorch.

``python tests/bench/fastest_engine.py --models convnext_tiny,vit_b_16 --out figures.json`` builds
and times engines of TensorRT and PyTorch in fp16 at batch 8. BUILDSYS_TEST_TOOLCHAIN names an
interpreter with TensorRT, as for the tests on a GPU; ``--engines`` does without. ``--cpu`` takes
ONNX Runtime, OpenVINO and AOTInductor in fp32 at batch 1 instead.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

sys.path += [str(Path(__file__).parents[1] / name) for name in (".", "gpu", "scenarios")]
from model_project import ModelProject, make_project

_ON_GPU = {
    "trt-fp16": {},
    "pt-compile": {"backend": "torch", "mode": "compile"},
    "pt-autotune": {"backend": "torch", "mode": "compile", "autotune": True},
    "pt-graph": {"backend": "torch", "mode": "cuda_graph"},
}
_ON_CPU = {
    "ort-cpu": {"backend": "onnxruntime"},
    "ov-fp32": {"backend": "openvino"},
    "pt-aot": {"backend": "torch"},
}
_LIMIT = 1.03
_BASELINES = ("torch", "torch_cuda_graph", "torch_compile")


def choose_engines(project: ModelProject, model: str, names: list[str], *, on_cpu: bool) -> None:
    """Give a model the engines of these names."""
    file = project.root / f"configs/models/{model}.yaml"
    manifest = yaml.safe_load(file.read_text(encoding="utf-8"))
    tensorrt, precision = manifest["engines"][0], "fp32" if on_cpu else "fp16"
    manifest["engines"] = [
        {"name": name, "precision": precision, **fields} if fields else tensorrt
        for name in names
        for fields in [(_ON_CPU if on_cpu else _ON_GPU)[name]]
    ]
    if on_cpu:
        manifest["dims"]["batch"] = {"min": 1, "opt": 1, "max": 4}
    file.write_text(yaml.safe_dump(manifest, sort_keys=False), encoding="utf-8")


def row(project: ModelProject, model: str, engine: str) -> dict[str, Any]:
    """Collect the figures of an engine; ``p50_ms`` by the GPU's clock, if there is one."""
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
        "p50_ms": {
            name: figures.get("gpu", figures).get("p50_ms") for name, figures in timed.items()
        },
        "wall_p50_ms": {name: figures.get("p50_ms") for name, figures in timed.items()},
        "noisy": bench.get("noisy"),
        "left_out": bench.get("left_out"),
        "bench_s": bench.get("seconds"),
    }


def main() -> None:
    """Build, time, print a line per engine and the best engine against the best of PyTorch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="convnext_tiny,vit_b_16")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--engines", help="all but autotune, which takes minutes")
    parser.add_argument("--budget", default="30s", help="of a benchmark")
    parser.add_argument("--cold-starts", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="builds at a time, before all timing")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--folder", type=Path, help="to keep what is built")
    asked = parser.parse_args()
    models, rows, best = asked.models.split(","), [], {}
    folder = asked.folder or Path(tempfile.mkdtemp())
    bench: dict[str, Any] = {"duration": "1s", "cases": ["opt"], "budget": asked.budget}
    bench |= {"baselines": [*_BASELINES], "cold_start": asked.cold_starts}
    project = make_project(folder, models, ["fp16"], **bench)
    usual = [*_ON_CPU] if asked.cpu else ["trt-fp16", "pt-compile", "pt-graph"]
    names = asked.engines.split(",") if asked.engines else usual
    for model in models:
        choose_engines(project, model, names, on_cpu=asked.cpu)
    if asked.jobs > 1:
        verified = [f"verify:{model}:{name}" for model in models for name in names]
        project.doit("-n", str(asked.jobs), "--continue", *verified)
    for model in models:
        targets = [f"{stage}:{model}:{name}" for stage in ("verify", "bench") for name in names]
        begun = time.monotonic()
        ran = project.doit("--continue", *targets)
        print(f"{model}: {time.monotonic() - begun:.0f} s, exit code {ran.returncode}", flush=True)
        if ran.returncode:
            print(ran.stdout[-3000:])
        own = [row(project, model, name) for name in names]
        rows += own
        for figures in own:
            print(json.dumps(figures), flush=True)
        ratios = [  # within one benchmark, which takes turns: machines change their speed
            (times[name] / min(baselines), figures["engine"])
            for figures in own
            for times in [figures["p50_ms"]]
            for baselines in [[t for n, t in times.items() if n in _BASELINES and t]]
            for name in times
            if name.startswith("engine") and baselines
        ]
        if ratios:
            ratio, engine = best[model] = min(ratios)
            print(f"{model}: {engine} takes {ratio:.3f} of PyTorch's best", flush=True)
    within = [model for model, (ratio, _) in best.items() if ratio <= _LIMIT]
    print(f"{len(within)} of {len(models)} models have an engine as fast as PyTorch's best")
    if asked.out:
        asked.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
