"""TensorRT engines on a GPU: build time cold and with the timing cache, latency, error.

doit builds each model in each precision with dynamic batch 1 to 16 without timings, builds it again
with the timing cache of the first build, verifies it and times it together with PyTorch.
tests/gpu/model_project.py describes the environment variables that select another interpreter.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from _harness import ROOT, publish, workspace

sys.path.insert(0, str(ROOT / "tests" / "gpu"))
from model_project import BATCHES, MODELS, PRECISIONS, ModelProject, make_project

COLUMNS = (
    "engine", "cold build (s)>", "with timing cache (s)>", "size (MB)>", "error>", "batch>",
    "p50 (ms)>", "p99 (ms)>", "graph p50 (ms)>", "graph p99 (ms)>", "torch (ms)>",
    "torch graph (ms)>", "torch.compile (ms)>",
)  # fmt: skip
_CONTENDERS = ("engine", "engine_cuda_graph", "torch", "torch_cuda_graph", "torch_compile")
Figures = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="(default: %(default)s)")
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="(default: %(default)s)")
    parser.add_argument(
        "--baselines", default="torch,torch_cuda_graph,torch_compile", help="(default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    models = options.models.split(",")
    with workspace(keep=False) as folder:
        project = make_project(folder, models, baselines=options.baselines.split(","))
        figures = [
            measure(project, model, precision)
            for model in models
            for precision in options.precisions.split(",")
        ]
    publish("TensorRT engines", COLUMNS, list(rows(figures)), figures, options.json)


def measure(project: ModelProject, model: str, precision: str) -> Figures:
    """Build one engine twice, verify and time it."""
    name = f"trt-{precision}"
    target = f"{model}:{name}"
    figures: Figures = {"model": model, "engine": name}
    # the builds of other precisions have left timings that this one would use
    shutil.rmtree(project.root / ".buildsys" / "timing_caches", ignore_errors=True)
    steps: dict[str, tuple[tuple[str, ...], Callable[[], Figures]]] = {
        "cold": ((f"engine:{target}",), lambda: _engine_facts(project, model, name)),
        "warm": (("-a", "-s", f"engine:{target}"), lambda: _engine_facts(project, model, name)),
        "verify": ((f"verify:{target}",), lambda: _worst(project.result("verify", model, name))),
        "bench": ((f"bench:{target}",), lambda: _timings(project.result("bench", model, name))),
    }
    for step, (arguments, read) in steps.items():
        print(f"{step} {target}", file=sys.stderr, flush=True)
        ran = project.doit(*arguments)
        figures[step] = read()
        if ran.returncode:  # the next step needs this one
            print(ran.stdout[-2000:], file=sys.stderr, flush=True)
            break
    return figures


def _engine_facts(project: ModelProject, model: str, name: str) -> Figures:
    result = project.result("engine", model, name)
    keys = ("status", "build_seconds", "phases", "engine_bytes", "built_with", "precision_shares")
    return {key: result.get(key) for key in keys}


def _worst(result: Figures) -> Figures:
    """Return status and largest relative error of all outputs, cases and profiles."""
    return {
        "status": result.get("status", "failed"),
        "relative": max(_relatives(result.get("cases")), default=None),
    }


def _relatives(node: Any) -> Iterator[float]:
    if isinstance(node, Mapping):
        if isinstance(node.get("relative"), (int, float)):
            yield float(node["relative"])
        for value in node.values():
            yield from _relatives(value)
    elif isinstance(node, list):
        for value in node:
            yield from _relatives(value)


def _timings(result: Figures) -> Figures:
    """Return the percentiles; the raw samples stay in the result file."""
    cases = {}
    for case, figures in result.get("cases", {}).items():
        contenders = {
            name: _without_samples(taken) for name, taken in figures["contenders"].items()
        }
        cases[case] = {**figures, "contenders": contenders}
    return {
        "status": result.get("status", "failed"),
        "cases": cases,
        "noisy": result.get("noisy", []),
    }


def _without_samples(node: Any) -> Any:
    if not isinstance(node, Mapping):
        return node
    return {
        name: _without_samples(value)
        for name, value in node.items()
        if not name.startswith("samples")
    }


def rows(figures: Sequence[Figures]) -> Iterator[tuple[str, ...]]:
    """Yield one row per engine and batch, with GPU time if it was measured."""
    for found in figures:
        cold, warm = found.get("cold", {}), found.get("warm", {})
        about = (
            f"{found['model']} {found['engine'].removeprefix('trt-')}",
            _number(cold.get("build_seconds"), ".1f"),
            _number(warm.get("build_seconds"), ".1f"),
            _number((cold.get("engine_bytes") or 0) / 1e6, ".1f"),
            _number(found.get("verify", {}).get("relative"), ".1e"),
        )
        for index, (case, batch) in enumerate(BATCHES.items()):
            taken = found.get("bench", {}).get("cases", {}).get(case, {}).get("contenders", {})
            times = [taken.get(name, {}).get("gpu", taken.get(name, {})) for name in _CONTENDERS]
            own = [
                _number(times[at].get(f"p{percent}_ms"), ".3f")
                for at in (0, 1)
                for percent in (50, 99)
            ]
            others = [_number(entry.get("p50_ms"), ".3f") for entry in times[2:]]
            yield (*(about if index == 0 else ("",) * len(about)), str(batch), *own, *others)


def _number(value: float | None, form: str) -> str:
    return "—" if value is None else format(value, form)


if __name__ == "__main__":
    main()
