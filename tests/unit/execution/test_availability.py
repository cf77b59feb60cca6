"""What a query knows about engines that cannot run on this machine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buildsys.execution.local_runs import expected_obstacle
from buildsys.plan.action import Action, FileRef, ToolchainRef
from buildsys.system import programs
from buildsys.system.devices import GPU_FACTS, NONE

NO_GPU = {f"gpu.{fact}": NONE for fact in GPU_FACTS}
H100 = NO_GPU | {"gpu.name": "NVIDIA H100", "gpu.compute_capability": "9.0"}
RTX = {"backend": "tensorrt_rtx", "compute_capabilities": ["8.6", "12.0"]}
TRT = {"backend": "tensorrt"}
Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    def has(gpu: dict[str, str], version: str) -> None:
        monkeypatch.setattr(programs, "gpu_facts", lambda: gpu)
        monkeypatch.setattr(
            programs, "tool_versions", lambda names, _: dict.fromkeys(names, version)
        )

    return has


def action_of(engine: dict[str, Any], stage: str, python: str) -> Action:
    return Action(
        target=f"{stage}:m:e", stage=stage, model="m", variant="e", options={"engine": engine},
        inputs={}, outputs={"result": FileRef("r.json")},
        toolchain=ToolchainRef("old", python) if python else None,
    )  # fmt: skip


def obstacle(engine: dict[str, Any], stage: str = "bench", python: str = "") -> str:
    return expected_obstacle(action_of(engine, stage, python), Path("/project"))


def test_a_missing_library_names_the_command_that_installs_it(machine: Machine) -> None:
    machine(H100, "absent")
    assert obstacle(TRT, "engine") == "tensorrt is not installed; pip install 'buildsys[tensorrt]'"
    assert obstacle(RTX) == "tensorrt_rtx is not installed; pip install 'buildsys[rtx]'"
    assert obstacle(TRT, python="/bin/sh") == (
        "tensorrt is not installed in the toolchain old;"
        " /bin/sh -m pip install tensorrt cuda-bindings onnx"
    )
    gone = (
        "there is no /nowhere/python, the interpreter of the toolchain old; create it, or correct"
        " toolchains.old.python"
    )
    assert obstacle(TRT, python="/nowhere/python") == gone


def test_only_tensorrt_rtx_builds_without_a_gpu(machine: Machine) -> None:
    machine(NO_GPU, "10.0")
    for engine, stage, cannot in (
        (RTX, "engine", False),
        (RTX, "verify", True),
        (TRT, "engine", True),
        ({"backend": "onnxruntime", "provider": "cuda"}, "engine", True),
        ({"backend": "onnxruntime", "provider": "cpu"}, "bench", False),
    ):
        found = obstacle(engine, stage)
        assert found.startswith("there is no NVIDIA GPU") is cannot, (engine, stage)
        assert bool(found) is cannot


def test_stages_without_an_engine_can_run_anywhere(machine: Machine) -> None:
    machine(NO_GPU, "absent")
    named = {"target": "export:m", "stage": "export", "model": "m", "variant": ""}
    action = Action(**named, options={}, inputs={}, outputs={})  # type: ignore[arg-type]
    assert expected_obstacle(action, Path("/project")) == ""
