"""A project of torchvision models with TensorRT engines of several precisions.

The interpreter that has TensorRT is this one, or that of BUILDSYS_TEST_TOOLCHAIN=/path/to/python.
BUILDSYS_TEST_TACTIC_SOURCES=NAME,NAME restricts where tactics may come from, for a TensorRT that
has only some of its libraries.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from project_folder import ProjectFolder

ROOT = Path(__file__).resolve().parents[2]
MODELS = ("resnet18", "resnet50", "mobilenet_v3_small", "efficientnet_b0", "swin_t")
PRECISIONS = ("fp32", "fp16", "int8")
# cuBLAS and cuDNN need not be there
ENGINE: dict[str, Any] = {
    "backend": "tensorrt",
    "tactic_sources": ["edge_mask_convolutions", "jit_convolutions"],
}
BATCHES = {"min": 1, "opt": 8, "max": 16}
# entropy cuts off too much of what SiLU, squeeze-and-excitation and attention give
# (docs/precision.md)
_ALGORITHMS = {"resnet18": "entropy", "resnet50": "entropy", "efficientnet_b0": "percentile"}
# with the projections at the ends of its blocks in int8, efficientnet_b0 is off by a quarter of its
# outputs
_EXCLUDED = {"efficientnet_b0": ["*/block.3/*"]}
# TensorRT cuts float32 to TF32's 10 bits of mantissa instead of rounding it: errors of 4 and 1 % of
# the outputs of such networks
_WITHOUT_TF32 = ("efficientnet_b0", "mobilenet_v3_small", "regnet_y_400mf")
# TensorRT 8.6 fuses a transformer as a whole and uses no calibrated ranges there; its calibrators
# know no percentiles
_EXPLICIT = ("efficientnet_b0", "swin_t")
# with random weights, outputs for plain noise vary too little to judge low precision
PHOTOS = {"python": "plugins/data/photos.py:photos"}
_TOOLCHAIN = "other"
_BASELINES = ("torch", "torch_cuda_graph", "torch_compile")


def gpu_project(root: Path) -> ProjectFolder:
    """Make an empty project, with the toolchain ``gpu`` if another interpreter has TensorRT."""
    folder = ProjectFolder(root)
    folder.root.mkdir()
    folder.create()
    if other := os.environ.get("BUILDSYS_TEST_TOOLCHAIN"):
        toolchains = f"toolchains: {{gpu: {{python: {other}}}}}\n"
        (folder.root / "configs/project.yaml").write_text(toolchains)
    return folder


@dataclass(frozen=True)
class ModelProject:
    """The folder of a project."""

    root: Path

    def doit(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run doit, its output as one text."""
        return self._run("doit", *arguments)

    def buildsys(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run buildsys, its output as one text."""
        return self._run("buildsys", *arguments)

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
        }
        return subprocess.run(
            [sys.executable, "-m", *command], cwd=self.root, env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3600,
        )  # fmt: skip

    def result(self, stage: str, model: str, engine: str) -> dict[str, Any]:
        """Return the result of an engine's stage, {} without one."""
        names = {"engine": f"engine/{engine}/engine.json", "verify": f"verify/{engine}.json"}
        file = self.root / "build" / model / names.get(stage, f"{stage}/{engine}.json")
        found: dict[str, Any] = (
            json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        )
        return found


def make_project(
    root: Path,
    models: Sequence[str] = MODELS,
    precisions: Sequence[str] = PRECISIONS,
    export: Mapping[str, Any] | None = None,
    **bench: Any,
) -> ModelProject:
    """Write a project with an engine ``trt-PRECISION`` per model and precision."""
    (root / "configs" / "models").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "dodo.py", root)
    (root / "plugins/data").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "plugins/data/photos.py", root / "plugins/data")
    shutil.copy(ROOT / "buildsys/cli/templates/doit.cfg", root)
    python = os.environ.get("BUILDSYS_TEST_TOOLCHAIN", "")
    _write(
        root / "configs/project.yaml",
        {"toolchains": {_TOOLCHAIN: {"python": python}}} if python else {},
    )
    for model in models:
        manifest = _manifest(model, precisions, bench)
        _write(root / f"configs/models/{model}.yaml", {**manifest, "export": dict(export or {})})
    return ModelProject(root)


def tensorrt_fields() -> dict[str, Any]:
    """Return the fields that an engine of TensorRT needs here."""
    sources = os.environ.get("BUILDSYS_TEST_TACTIC_SOURCES", "").lower()
    return {
        "backend": "tensorrt",
        **({"toolchain": _TOOLCHAIN} if os.environ.get("BUILDSYS_TEST_TOOLCHAIN") else {}),
        **({"tactic_sources": sources.split(",")} if sources else {}),
    }


def _manifest(model: str, precisions: Sequence[str], bench: Mapping[str, Any]) -> dict[str, Any]:
    algorithm = _ALGORITHMS.get(model, "minmax")
    calibration = {"data": {"input0": PHOTOS}, "algorithm": algorithm, "batches": 8}
    return {
        "model": model,
        "source": {"torchvision": model, "weights": None, "seed": 0},
        "inputs": {"input0": {"shape": ["batch", 3, 224, 224], "data": PHOTOS}},
        "outputs": {"output0": {"shape": ["batch", 1000]}},
        "dims": {"batch": dict(BATCHES)},
        # products in TF32, TensorRT's default, have 10 bits of mantissa
        "verify": {"fp32": {"rtol": 5e-3}},
        **({"calibration": calibration} if "int8" in precisions else {}),
        **({"quantize": {"exclude": _EXCLUDED[model]}}
           if "int8" in precisions and model in _EXCLUDED else {}),
        "engines": [
            {"name": f"trt-{precision}", "precision": precision, **_own_fields(model, precision),
             **tensorrt_fields()}
            for precision in precisions
        ],
        "bench": {
            "duration": "500ms", "cases": list(BATCHES), "cuda_graph": [False, True],
            "baselines": list(_BASELINES), "noise": None,
            **bench,
        },
        "timeout": {"engine": "30min", "bench": "30min"},
    }  # fmt: skip


def _own_fields(model: str, precision: str) -> dict[str, Any]:
    if precision == "int8" and model in _EXPLICIT:
        return {"quantization": "explicit"}
    return {"tf32": False} if precision == "fp32" and model in _WITHOUT_TF32 else {}


def _write(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(yaml.safe_dump(dict(content), sort_keys=False), encoding="utf-8")
