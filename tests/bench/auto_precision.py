"""Latency that ``precision: auto`` keeps, where one layer must stay in fp32.

A resnet whose first block of the second stage has values beyond the precision in the middle is
built with ``auto``. Its twin with small values is built in fp32 and in the precision alone, where
the first one would be wrong. The three engines are timed in turns by the bench stage, and the gain
from fp32 to the precision that ``auto`` keeps must be at least 80 %.

tests/gpu/model_project.py describes BUILDSYS_TEST_TOOLCHAIN and BUILDSYS_TEST_TACTIC_SOURCES, for
a TensorRT of another interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import yaml
from _harness import ROOT, log, publish, workspace

from buildsys.stages.bench.result import engine_contender

sys.path.insert(0, str(ROOT / "tests" / "gpu"))
from model_project import ModelProject

LIMIT = 0.8
COLUMNS = ("engine", "p50 (ms)>", "gain>", "nodes in fp32>", "error>")
NETWORK = '''\
import torch
import torchvision
from torch import nn
from torch.nn import functional as F


class Scaled(nn.Conv2d):
    """A convolution with weights times a factor."""

    factor = 1.0

    def forward(self, x):
        return self._conv_forward(x, self.weight * self.factor, self.bias)


class Shifted(nn.Module):
    """The positive part, at an offset that a pooling reads: fused nodes would not round."""

    def __init__(self, offset):
        super().__init__()
        self.offset = offset

    def forward(self, x):
        return F.max_pool2d(F.relu(x + self.offset), 3, 1, 1) - self.offset


def make(name="resnet50", factor=1.0, offset=0.0):
    net = getattr(torchvision.models, name)(weights=None)
    block = net.layer2[0]
    for conv, scale in ((block.conv1, factor), (block.conv2, 1 / factor)):
        conv.__class__, conv.factor = Scaled, scale
    # a batch norm would shrink the values again
    block.bn1 = Shifted(offset) if offset else nn.Identity()
    return net
'''


def main() -> None:
    """Print a line per engine; exit with 1 if less than the limit is kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="tensorrt", help="(default: %(default)s)")
    parser.add_argument("--precision", default="fp16", choices=("fp16", "bf16"))
    parser.add_argument("--network", default="resnet50", help="(default: %(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--duration", default="1s", help="of each round (default: %(default)s)")
    parser.add_argument("--project", type=Path, help="folder to work in; it is kept")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    asked = parser.parse_args()
    with workspace(keep=False) as folder:
        figures = measure(_project(asked.project or folder, asked), asked)
    rows = [
        (
            one["engine"], f"{one['p50_ms']:.3f}", f"{one['gain']:.1%}",
            str(one.get("nodes", "-")), "-" if one["error"] is None else f"{one['error']:.1e}",
        )
        for one in figures
    ]  # fmt: skip
    publish(
        f"{asked.backend}, {asked.network}, batch {asked.batch}", COLUMNS, rows, figures, asked.json
    )
    kept = figures[-1]["gain"]
    gain = f"the gain from fp32 to {asked.precision}"
    print(f"auto keeps {kept:.1%} of {gain}; the limit is {LIMIT:.0%}")
    sys.exit(kept < LIMIT)


def measure(project: ModelProject, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Build all engines, time them in turns, return the figures of each."""
    names = [("plain", "fp32"), ("plain", asked.precision), ("hard", "auto")]
    _doit(project, *(f"verify:{model}:{name}" for model, name in names))
    wrong = project.doit(f"verify:hard:{asked.precision}")
    if wrong.returncode == 0:
        sys.exit(f"the network is no test: all of it in {asked.precision} is within the limits")
    times: dict[str, list[float]] = {name: [] for _, name in names}
    for number in range(asked.rounds):
        for model, name in names if number % 2 else reversed(names):
            _doit(project, "-a", "-s", f"bench:{model}:{name}")
            times[name].append(_p50_ms(project.result("bench", model, name)))
            log(f"round {number + 1}: {name} {times[name][-1]:.3f} ms")
    medians = {name: statistics.median(found) for name, found in times.items()}
    span = medians["fp32"] - medians[asked.precision]
    search = next((project.root / "build/hard/search").glob("*/search.json"))
    nodes = json.loads(search.read_text(encoding="utf-8"))["nodes"]
    figures: list[dict[str, Any]] = []
    for model, name in names:
        gain = (medians["fp32"] - medians[name]) / span
        cases = project.result("verify", model, name)["cases"].values()
        errors = [one["relative"] for outputs in cases for one in outputs.values()]
        figures.append({
            "engine": f"{model}:{name}", "p50_ms": medians[name], "rounds_ms": times[name],
            "gain": gain, "error": max(errors),
        })  # fmt: skip
    figures[-1] |= {"nodes": len(nodes), "listed": nodes}
    return figures


def _p50_ms(result: dict[str, Any]) -> float:
    """Return the GPU's own time if there is one, else that of the host."""
    contenders = result["cases"]["opt"]["contenders"]
    own = contenders[engine_contender(contenders)]
    found: float = (own.get("gpu") or own)["p50_ms"]
    return found


def _doit(project: ModelProject, *arguments: str) -> None:
    done = project.doit(*arguments)
    if done.returncode:
        sys.exit(f"doit {' '.join(arguments)} failed:\n{done.stdout[-4000:]}")


def _project(root: Path, asked: argparse.Namespace) -> ModelProject:
    (root / "configs/models").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "dodo.py", root)
    (root / "pyproject.toml").touch()
    (root / "net.py").write_text(NETWORK, encoding="utf-8")
    python = os.environ.get("BUILDSYS_TEST_TOOLCHAIN", "")
    toolchains = {"toolchains": {"other": {"python": python}}} if python else {}
    (root / "configs/project.yaml").write_text(yaml.safe_dump(toolchains), encoding="utf-8")
    sources = os.environ.get("BUILDSYS_TEST_TACTIC_SOURCES", "")
    fields: dict[str, Any] = {"backend": asked.backend}
    if asked.backend == "tensorrt":
        fields |= {"toolchain": "other"} if python else {}
        fields |= {"tactic_sources": sources.split(",")} if sources else {}
    is_fp16 = asked.precision == "fp16"
    small, strange = ({}, {"factor": 1e5}) if is_fp16 else ({"offset": 1.0}, {"offset": 4096.0})
    for model, kwargs, precisions in (
        ("plain", small, {"fp32": "fp32", asked.precision: asked.precision}),
        ("hard", strange, {asked.precision: asked.precision, "auto": f"auto-{asked.precision}"}),
    ):
        kwargs = {"name": asked.network, **kwargs}
        manifest = {
            "model": model,
            "source": {"python": "net.py:make", "kwargs": kwargs, "seed": 0},
            "inputs": {"x": {"shape": [asked.batch, 3, 224, 224]}},
            "engines": [
                {"name": name, "precision": precision, **fields}
                for name, precision in precisions.items()
            ],
            "verify": {"fp32": {"rtol": 5e-3}},  # TF32 has 10 bits of mantissa
            "bench": {"duration": asked.duration, "baselines": [], "noise": None},
            "timeout": {"engine": "30min"},
        }
        file = root / f"configs/models/{model}.yaml"
        file.write_text(yaml.safe_dump(manifest, sort_keys=False), encoding="utf-8")
    return ModelProject(root)


if __name__ == "__main__":
    main()
