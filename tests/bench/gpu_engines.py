"""TensorRT engines on a GPU: build time cold and with the timing cache, latency, error.

doit builds each model in each precision with dynamic batch 1 to 16 without timings, builds it again
with the timing cache of the first build, verifies it and times it together with PyTorch.
tests/gpu/model_project.py describes the environment variables that select another interpreter. To
use several GPUs, start one process per GPU with a part of the models; ``--merge`` prints one table
of their figures.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
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
    parser.add_argument(
        "--models", default=",".join(MODELS), help="separated by commas (default: %(default)s)"
    )
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="(default: %(default)s)")
    parser.add_argument(
        "--steps", default="build,rebuild,verify,bench", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--baselines", default="torch,torch_cuda_graph,torch_compile", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--project",
        type=Path,
        help="folder to work in; it is kept, with the figures of earlier calls",
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument(
        "--merge", type=Path, nargs="+", help="only print one table of these files of figures"
    )
    given = parser.parse_args()
    if given.merge:
        figures = [
            entry for file in given.merge for entry in json.loads(file.read_text())["figures"]
        ]
        publish("TensorRT engines", COLUMNS, list(rows(figures)), figures, given.json)
        return
    wanted = given.models.split(","), given.precisions.split(",")
    with workspace(keep=False) as folder:
        project = make_project(
            given.project or folder, wanted[0], baselines=given.baselines.split(",")
        )
        figures = [
            measure(project, model, precision, given.steps.split(","))
            for model in wanted[0]
            for precision in wanted[1]
        ]
    publish("TensorRT engines", COLUMNS, list(rows(figures)), figures, given.json)


def measure(project: ModelProject, model: str, precision: str, steps: Sequence[str]) -> Figures:
    """Run the steps for one engine, adding to the figures of an earlier call."""
    name = f"trt-{precision}"
    kept = project.root / "figures" / f"{model}-{name}.json"
    found: Figures = (
        json.loads(kept.read_text()) if kept.is_file() else {"model": model, "engine": name}
    )
    target = f"{model}:{name}"
    for step in steps:
        print(f"{step} {target}", file=sys.stderr, flush=True)
        passed = True
        if step == "build":
            # the builds of other precisions have left timings that this one would use
            shutil.rmtree(project.root / ".buildsys" / "timing_caches", ignore_errors=True)
            passed = _run(project, found, f"engine:{target}")
            found["cold"] = _engine_facts(project, passed, model, name)
        elif step == "rebuild":  # this target only, even if up to date
            passed = _run(project, found, "-a", "-s", f"engine:{target}")
            found["warm"] = _engine_facts(project, passed, model, name)
        elif step == "verify":
            passed = _run(project, found, f"verify:{target}")
            found["verify"] = _worst(project.result("verify", model, name))
        elif step == "bench":
            passed = _run(project, found, f"bench:{target}")
            found["bench"] = _timings(project.result("bench", model, name))
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(found, indent=1), encoding="utf-8")
        if not passed:  # the next step needs this one
            break
    return found


def _run(project: ModelProject, found: Figures, *arguments: str) -> bool:
    ran = project.doit(*arguments)
    if ran.returncode:
        found.setdefault("failures", []).append(ran.stdout[-2000:])
        print(ran.stdout[-2000:], file=sys.stderr, flush=True)
    return ran.returncode == 0


def _engine_facts(project: ModelProject, passed: bool, model: str, name: str) -> Figures:
    result = project.result("engine", model, name)
    kept = (
        "build_seconds",
        "phases",
        "engine_bytes",
        "built_with",
        "precision_shares",
        "timing_cache",
    )
    return {
        "status": result.get("status", "failed"),
        "passed": passed,
        **{key: result.get(key) for key in kept},
    }


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
