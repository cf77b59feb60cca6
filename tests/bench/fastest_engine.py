"""The fastest engine of this machine, against the fastest form of PyTorch.

``python tests/bench/fastest_engine.py --models convnext_tiny,vit_b_16 --out figures.json`` builds
and times engines of TensorRT and PyTorch in fp16 at batch 8. BUILDSYS_TEST_TOOLCHAIN names an
interpreter with TensorRT, as for the tests on a GPU; ``--engines`` does without. ``--cpu`` takes
ONNX Runtime, OpenVINO and AOTInductor in fp32 at batch 1 instead.

``torchvision/*`` and other patterns of LIBRARY/MODEL take models of ``breadth.py``, as proposed by
``buildsys new``, with synthetic photos or random inputs and their own batch. With ``--out`` a run
continues the last.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml
from breadth import MODELS, new_command

sys.path += [str(Path(__file__).parents[1] / name) for name in (".", "gpu", "scenarios")]
from model_project import PHOTOS, ModelProject, make_project, tensorrt_fields

_ON_GPU = {
    "trt-fp16": tensorrt_fields(),
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
_IMAGE_RANK, _COLORS = 4, 3
_BASELINES = ("torch", "torch_cuda_graph", "torch_compile")


def choose_engines(
    project: ModelProject, model: str, names: list[str], bench: dict[str, Any], *, on_cpu: bool
) -> None:
    """Give a model the engines of these names."""
    file = project.root / f"configs/models/{model}.yaml"
    manifest = yaml.safe_load(file.read_text(encoding="utf-8"))
    precision = "fp32" if on_cpu else "fp16"
    manifest["engines"] = [
        {"name": name, "precision": precision, **(_ON_CPU if on_cpu else _ON_GPU)[name]}
        for name in names
    ]
    for port in manifest["inputs"].values():
        if len(port["shape"]) == _IMAGE_RANK and port["shape"][1] == _COLORS:
            port.setdefault("data", PHOTOS)  # noise varies outputs too little
    # on a GPU its own clock is read
    manifest.setdefault("bench", bench if on_cpu else {**bench, "noise": None})
    if on_cpu and "batch" in manifest.get("dims", {}):
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


def best_ratio(rows: list[dict[str, Any]]) -> tuple[float, str] | None:
    """Find the verified engine that is fastest against PyTorch's best in one steady benchmark.

    Machines change their speed between benchmarks.
    """
    return min(
        (
            (times[name] / min(baselines), figures["engine"])
            for figures in rows
            if figures["status"][1:] == ["passed", "passed"]
            for times in [figures["p50_ms"]]
            for baselines in [[t for n, t in times.items() if n in _BASELINES and t]]
            for name in times
            if name.startswith("engine") and baselines
        ),
        default=None,
    )


def measure(project: ModelProject, model: str, names: list[str]) -> list[dict[str, Any]]:
    """Build and time the engines of a model."""
    targets = [f"{stage}:{model}:{name}" for stage in ("verify", "bench") for name in names]
    begun = time.monotonic()
    ran = project.doit("--continue", *targets)
    print(f"{model}: {time.monotonic() - begun:.0f} s, exit code {ran.returncode}", flush=True)
    if ran.returncode:
        print(ran.stdout[-3000:])
    rows = [row(project, model, name) for name in names]
    for figures in rows:
        print(json.dumps(figures), flush=True)
    return rows


def selected(patterns: list[str]) -> Iterator[str]:
    """Expand patterns with a slash to LIBRARY/MODEL of ``breadth.py``; keep other names."""
    for text in patterns:
        if "/" in text:
            yield from (model for model in MODELS if fnmatch(model, text))
        else:
            yield text


def name_of(model: str) -> str:
    """Name the manifest of LIBRARY/MODEL."""
    return model.replace("/", "-")


def prepare(
    project: ModelProject, model: str, names: list[str], bench: dict[str, Any], on_cpu: bool
) -> bool:
    """Write the manifest of a model; return False if ``buildsys new`` fails."""
    name = name_of(model)
    if not (project.root / f"configs/models/{name}.yaml").exists():
        command, _, *options = new_command(model, project.root)
        ran = project.buildsys(command, name, *options)
        if ran.returncode:
            print(f"{name}: {ran.stdout[-500:]}", flush=True)
            return False
    choose_engines(project, name, names, bench, on_cpu=on_cpu)
    return True


def summary(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the best engine of each model, and how many are as fast as PyTorch."""
    by_model: dict[str, list[dict[str, Any]]] = {}
    for figures in rows:
        by_model.setdefault(figures["model"], []).append(figures)
    best = {model: best_ratio(own) for model, own in by_model.items()}
    for model, found in best.items():
        if found:
            absent = [text for own in by_model[model] for text in (own["left_out"] or {}).items()]
            without = f", without {': '.join(absent[-1])[:200]}" if absent else ""
            yield f"{model}: {found[1]} takes {found[0]:.3f} of PyTorch's best{without}"
        else:
            reasons = [reason for own in by_model[model] for reason in own["reasons"] if reason]
            yield f"{model}: no engine was timed; {'; '.join(reasons[:1])[:300]}"
    within = [found for found in best.values() if found and found[0] <= _LIMIT]
    yield f"{len(within)} of {len(best)} models have an engine as fast as PyTorch's best"


def main() -> None:
    """Build, time, print a line per engine and the best engine against the best of PyTorch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="convnext_tiny,vit_b_16", help="separated by commas")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--engines", help="all but autotune, which takes minutes")
    parser.add_argument("--budget", default="30s", help="of a benchmark")
    parser.add_argument("--cold-starts", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="builds at a time, before all timing")
    parser.add_argument("--seconds", type=float, default=86_400, help="of all; the rest is not run")
    parser.add_argument("--out", type=Path, help="JSON lines, one per engine")
    parser.add_argument("--folder", type=Path, help="to keep what is built")
    asked = parser.parse_args()
    deadline = time.monotonic() + asked.seconds
    os.environ["HF_HUB_OFFLINE"] = "1"
    rows: list[dict[str, Any]] = []
    if asked.out and asked.out.exists():
        rows = [json.loads(line) for line in asked.out.read_text(encoding="utf-8").splitlines()]
    models = [*selected(asked.models.split(","))]
    bench: dict[str, Any] = {"duration": "1s", "cases": ["opt"], "budget": asked.budget}
    bench |= {"baselines": [*_BASELINES], "cold_start": asked.cold_starts}
    folder = asked.folder or Path(tempfile.mkdtemp())
    project = make_project(folder, [m for m in models if "/" not in m], ["fp16"], **bench)
    usual = [*_ON_CPU] if asked.cpu else ["trt-fp16", "pt-compile", "pt-graph"]
    names = asked.engines.split(",") if asked.engines else usual
    todo = {name_of(model): model for model in models}
    todo = {name: todo[name] for name in todo if name not in {figures["model"] for figures in rows}}
    if asked.jobs > 1:
        ready = [name for name in todo if prepare(project, todo[name], names, bench, asked.cpu)]
        verified = [f"verify:{name}:{engine}" for name in ready for engine in names]
        project.doit("-n", str(asked.jobs), "--continue", *verified)
    for name, model in todo.items():
        if time.monotonic() > deadline:
            break
        if prepare(project, model, names, bench, asked.cpu):
            own = measure(project, name, names)
        else:
            own = [{**row(project, name, ""), "reasons": ["buildsys new failed"]}]
        rows += own
        if asked.out:
            with asked.out.open("a", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(figures)}\n" for figures in own)
    print(*summary(rows), sep="\n")


if __name__ == "__main__":
    main()
