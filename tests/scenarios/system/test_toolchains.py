"""Engines of other interpreters with numpy, onnx and onnxruntime only."""

import json
from typing import Any

import numpy
import pytest
from python_environments import ONNX, Environment
from ready_project import ReadyProject, targets

PROJECT, MODEL = "configs/project.yaml", "configs/models/a.yaml"
OURS = {"engine:a:ort", "verify:a:ort", "bench:a:ort"}
THEIRS = {"engine:a:other", "verify:a:other", "bench:a:other"}


@pytest.fixture
def environment(ready: ReadyProject) -> Environment:
    """The environment of the toolchain ``other``, used by the engine ``other``."""
    made = Environment(ready.root / "envs/other", "numpy", "onnxruntime", *ONNX)
    add_engine(ready, "other")
    declare(ready, "other: {python: envs/other/bin/python}")
    return made


def add_engine(project: ReadyProject, toolchain: str, fields: str = "") -> None:
    """Add a toolchain's engine of the same name to the model."""
    engine = f"{{backend: onnxruntime, name: {toolchain}, toolchain: {toolchain}{fields}}}"
    project.edit(MODEL, "name: ort}", f"name: ort}}, {engine}")


def declare(project: ReadyProject, *toolchains: str) -> None:
    (project.root / PROJECT).write_text(
        "toolchains:\n" + "".join(f"  {line}\n" for line in toolchains)
    )


def result(project: ReadyProject, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((project.root / f"build/a/{name}.json").read_text())
    return found


def test_an_engine_is_built_verified_and_timed_in_its_toolchain(
    ready: ReadyProject, environment: Environment
) -> None:
    environment.relabel("onnxruntime", "1.18.1")
    first = ready.doit("-n", "2")
    assert first.code == 0
    assert first.passed == targets("a") | THEIRS
    built = result(ready, "engine/other/engine")
    assert built["toolchain"]["name"] == "other"
    libraries = {"numpy", "ml_dtypes", "onnx", "onnxruntime"}
    assert built["toolchain"].keys() == {"name", "python", *libraries}
    assert built["precision_shares"] == result(ready, "engine/ort/engine")["precision_shares"]
    page = (ready.root / "build/report/a.html").read_text()
    assert "<dt>toolchain</dt><dd>other</dd>" in page
    assert "onnxruntime (other)" in page
    with numpy.load(ready.root / "build/a/reference/opt.npz") as golden:
        numpy.savez(ready.root / "opt.npz", x=golden["in.x"])
    ran = ready.buildsys("run", "a:other", "--input", "opt.npz")
    assert (ran.code, ran.err, ran.out[:9]) == (0, "", "a:other: ")
    assert ready.buildsys("debug", "engine:a:other", "--keep", "kept").code == 0
    debugged = json.loads((ready.root / "kept/a/engine/other/engine.json").read_bytes())
    assert debugged["toolchain"] == built["toolchain"]
    # upgraded between two runs, and at another place
    environment.relabel("onnxruntime", "1.19.0")
    environment.folder.rename(ready.root / "envs/moved")
    ready.environment["BUILDSYS_TOOLCHAIN_OTHER"] = "envs/moved/bin/python"
    second = ready.doit("engine:a:other")
    assert second.ran == {"engine:a:other"}
    assert "onnxruntime 1.18.1 → 1.19.0" in second.out


def test_its_variables_change_keys_and_its_location_does_not(
    ready: ReadyProject, environment: Environment
) -> None:
    assert ready.doit("build:a").code == 0
    environment.folder.rename(ready.root / "envs/moved")
    ready.environment["BUILDSYS_TOOLCHAIN_OTHER"] = "envs/moved/bin/python"
    assert not ready.doit().ran
    del ready.environment["BUILDSYS_TOOLCHAIN_OTHER"]
    declare(ready, "other: {python: ./envs/moved/bin/python, env: {SETTING: '{prefix}/lib'}}")
    again = ready.doit()
    assert again.ran >= {"engine:a:other"}
    assert not again.ran & OURS
    assert "SETTING" in again.out
    assert "{prefix}/lib" in ready.buildsys("explain", "--json", "engine:a:other").out


def test_a_missing_toolchain_is_unavailable_until_installed(ready: ReadyProject) -> None:
    bare, without = (
        Environment(ready.root / "envs/bare"),
        Environment(ready.root / "envs/without", "numpy"),
    )
    without.write("sitecustomize.py", "print('rubbish at start')\n")
    broken = {
        "missing": (ready.root / "envs/missing/bin/python", "there is no {python}"),
        "bare": (bare.python, "the toolchain bare has no numpy"),
        "without": (without.python, "the library onnxruntime is not installed in the toolchain"),
    }
    declare(ready, *(f"{name}: {{python: {python}}}" for name, (python, _) in broken.items()))
    for name in broken:
        add_engine(ready, name)
    engines = [f"engine:a:{name}" for name in broken]
    asked = [*engines, "verify:a:missing", "bench:a:missing"]
    ran = ready.doit(*asked)
    assert ran.code == 0
    assert set(engines) <= ran.ran
    assert not {"verify:a:missing", "bench:a:missing"} & ran.ran  # the engine's lines say all
    for name, (python, expected) in broken.items():
        found = result(ready, f"engine/{name}/engine")
        assert found["status"] == "unavailable"
        assert expected.format(python=python) in found["reason"]
    assert "BUILDSYS_TOOLCHAIN_MISSING" in result(ready, "engine/missing/engine")["hint"]
    assert (
        result(ready, "verify/missing")["status"]
        == result(ready, "bench/missing")["status"]
        == "unavailable"
    )
    assert result(ready, "engine/bare/engine")["hint"] == f"{bare.python} -m pip install numpy"
    assert (
        result(ready, "engine/without/engine")["hint"]
        == f"{without.python} -m pip install onnxruntime onnx"
    )
    for package in ("numpy", "onnxruntime", *ONNX):
        bare.install(package)
    without.install("onnxruntime")
    half = ready.doit("engine:a:without")
    assert "built with onnx, which is not installed in this interpreter" in half.out
    for package in ONNX:
        without.install(package)
    repaired = ready.doit(*asked)
    assert repaired.ran == repaired.passed == {"engine:a:bare", "engine:a:without"}


def test_a_broken_or_required_toolchain_fails_only_its_targets(
    ready: ReadyProject, environment: Environment
) -> None:
    environment.uninstall("onnxruntime")
    environment.write(
        "onnxruntime/__init__.py", "import os\n__version__ = '1.0'\nos.kill(os.getpid(), 11)\n"
    )
    declare(ready, "other: {python: envs/other/bin/python}", "gone: {python: /nowhere/bin/python}")
    add_engine(ready, "gone", ", required: true")
    ran = ready.doit("--continue", "engine:a")
    assert ran.code == 2
    assert ran.passed >= {"engine:a:ort"}
    assert "the worker of engine:a:other crashed with a segmentation fault (SIGSEGV)" in ran.out
    assert "full log: build/a/engine/other/engine.log" in ran.out
    gone = "is required, but unavailable: the toolchain gone cannot be used:"
    gone += " there is no /nowhere/bin/python"
    assert gone in ran.out
    again = ready.doit("engine:a:gone")  # not restored as unavailable
    assert again.code == 2
    assert gone in again.out
