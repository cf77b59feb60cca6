"""Toolchains need the standard library, numpy and the engine's libraries."""

import json
import subprocess
from pathlib import Path

import pytest
from python_environments import Environment

import buildsys

PACKAGE = Path(buildsys.__file__).parent
MODULES = (
    "buildsys.workers.server",
    "buildsys.workers.child",
    "buildsys.workers.result_file",
    "buildsys.stages.engine.stage",
    "buildsys.stages.verify.stage",
    "buildsys.backends.interface",
    "buildsys.stages.common.remedies",
    "buildsys.stages.operators.implementation",
    "buildsys.stages.bench.timed_engine",
)
_LOAD = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def loaded(folder: Path, packages: tuple[str, ...], modules: tuple[str, ...]) -> set[str]:
    """Return the loaded modules of an interpreter with these packages."""
    environment = Environment(folder / "env", *packages)
    linked = folder / "linked"
    linked.mkdir()
    (linked / "buildsys").symlink_to(PACKAGE)
    done = subprocess.run(
        [str(environment.python), "-W", "error", "-c", _LOAD, *modules],
        env={"PYTHONPATH": str(linked), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_the_modules_need_numpy_at_most(tmp_path: Path) -> None:
    found = loaded(tmp_path, ("numpy",), MODULES)
    assert not found & {"pydantic", "blake3", "onnx", "ml_dtypes", "torch", "yaml", "rich", "doit"}


def test_the_backend_of_onnxruntime_needs_no_onnx(tmp_path: Path) -> None:
    found = loaded(
        tmp_path, ("numpy", "onnxruntime"), (*MODULES, "buildsys.backends.onnxruntime.backend")
    )
    assert "onnxruntime" in found


def test_the_backend_of_tensorrt_rtx_needs_its_library_and_cuda_bindings(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    packages = ("numpy", "cuda", "tensorrt_rtx", "tensorrt_rtx_bindings", "tensorrt_rtx_libs")
    assert "tensorrt_rtx" in loaded(
        tmp_path, packages, (*MODULES, "buildsys.backends.tensorrt_rtx.backend")
    )


def test_the_common_tensorrt_modules_need_no_tensorrt(tmp_path: Path) -> None:
    modules = tuple(
        f"buildsys.backends.tensorrt.{file.stem}"
        for file in (PACKAGE / "backends/tensorrt").glob("[a-z]*.py")
        if file.stem not in ("backend", "options")  # these need pydantic
    )
    assert len(modules) > 5
    assert not loaded(tmp_path, ("numpy", "cuda"), modules) & {"tensorrt", "tensorrt_rtx", "onnx"}
