"""The direction of imports: who may know whom, read from the source without importing it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import buildsys

PACKAGE = Path(buildsys.__file__).parent
ROOT = PACKAGE.parent

# what each part of the package may import from the others; those of workers may import all but orchestration
ALLOWED = {
    "errors": set(),
    "store": {"errors"},
    "nvml": {"errors"},
    "digest": set(),
    "interpreter": set(),
    "inquiry": {"errors", "interpreter"},
    "libraries": {"toolchain"},
    "compiler": set(),
    "toolchain": {"compiler", "errors", "inquiry", "interpreter", "nvml"},
    "manifest": {"errors", "interpreter"},
    "graph": {"errors", "manifest", "wire_format"},
    "wire_format": set(),
    "worker": {"errors", "inquiry", "interpreter"},
    "snapshot": {"digest", "errors", "graph", "interpreter", "libraries", "store", "toolchain"},
    "cache": {"errors", "graph", "store", "snapshot"},
    "judge": {"errors", "cache", "graph", "snapshot", "store"},
    "settled": {"graph", "snapshot", "store"},
    "outcome": set(),
    "executor": {"errors", "cache", "graph", "interpreter", "judge", "settled", "store", "toolchain", "snapshot"}
    | {"outcome", "worker"},
    "repro": {"errors", "graph", "manifest", "store"},
    "front": {"errors", "executor", "cache", "judge", "snapshot", "graph", "manifest", "report"}
    | {"repro", "settled", "worker", "store", "toolchain", "inquiry", "interpreter", "nvml"}
    | {"outcome", "timing_caches"},
}
# the same for parts that work in workers and on which others build
IN_WORKERS = {
    "compare": {"tensors"},
    "conversion": {"errors", "onnx_graph", "tensors"},
    "golden": {"compare", "tensors"},
    "inspection": {"errors", "onnx_graph"},
    "onnx_difference": {"errors", "onnx_graph"},
    "onnx_graph": {"errors", "writeback"},
    "operators": {"backends", "compiler", "errors", "graph", "ladder", "network", "onnx_graph", "worker"},
    "tensors": {"errors"},
    "timing_caches": {"errors"},
    "engine_host": {"nvml"},
    "doctor": {"engine_host"},
}
ORCHESTRATION = {"store", "settled", "snapshot", "cache", "judge", "executor", "front", "toolchain"}
HEAVY = {"torch", "torchvision", "onnx", "onnxruntime", "onnxscript", "numpy", "tensorrt", "tensorrt_rtx", "onnxsim"}
SLOW_TO_IMPORT = {"pydantic", "yaml", "rich", "doit"}


def modules() -> list[str]:
    return sorted(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in PACKAGE.rglob("*.py"))


@cache
def imported_names(module: str) -> frozenset[str]:
    return frozenset(_imported_names(module))


def _imported_names(module: str) -> Iterator[str]:
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def own_imports(module: str) -> set[str]:
    """Return the parts of the package that a module imports from."""
    names = (name for name in imported_names(module) if name.split(".")[0] == "buildsys")
    return {part_of(name) for name in names} - {"", "__version__", part_of(module)}


@pytest.mark.parametrize("module", modules())
def test_imports_point_one_way(module: str) -> None:
    part = part_of(module)
    allowed = {**ALLOWED, **IN_WORKERS}
    if part in allowed:
        assert own_imports(module) <= allowed[part]
    else:
        assert not own_imports(module) & ORCHESTRATION


@pytest.mark.parametrize("module", modules())
def test_only_the_front_imports_doit(module: str) -> None:
    if part_of(module) != "front":
        assert "doit" not in {name.split(".")[0] for name in imported_names(module)}


@pytest.mark.parametrize("module", modules())
def test_packages_are_not_reached_around(module: str) -> None:
    """Only the worker's child knows stages, by the name in its job."""
    if part_of(module) != "stages":
        assert "stages" not in own_imports(module)


def loaded_by(*names: str) -> set[str]:
    code = f"import sys\nfor name in {names!r}: __import__(name)\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_the_orchestrator_loads_no_heavy_library() -> None:
    orchestrator = [name for name in modules() if part_of(name) in {*ALLOWED} and not name.endswith("__init__")]
    assert "buildsys.executor" in orchestrator
    assert not loaded_by(*(name for name in orchestrator if not name.startswith("buildsys.worker."))) & HEAVY
    assert not loaded_by("buildsys.worker.pool") & HEAVY


def test_judging_what_is_fresh_loads_no_slow_library() -> None:
    loaded = loaded_by("buildsys.executor", "buildsys.graph.plan", "buildsys.worker.pool")
    assert not loaded & (HEAVY | SLOW_TO_IMPORT)


@pytest.mark.parametrize("library", ["numpy", "pydantic"])
def test_the_probe_would_see_a_library(library: str) -> None:
    assert library in loaded_by(library)


@pytest.mark.parametrize("stage", ["engine", "verify", "bench"])
def test_stages_of_other_toolchains_need_no_torch_and_no_onnx(stage: str) -> None:
    if (PACKAGE / "stages" / f"{stage}.py").exists():
        assert not loaded_by(f"buildsys.stages.{stage}") & {"torch", "onnx", "pydantic", "yaml", "rich"}
