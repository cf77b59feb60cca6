"""The needs of actions, compared with a machine."""

from __future__ import annotations

import pytest

from buildsys.execution import machine_needs
from buildsys.execution.machine_needs import LABELS, lacking, obstacle
from buildsys.plan.action import NO_NEEDS, Needs

H100 = {"uuid": "GPU-1", "name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0"}
L4 = {"uuid": "GPU-2", "name": "NVIDIA L4", "compute_capability": "8.9"}


@pytest.mark.parametrize(
    ("gpus", "needs", "lacks"),
    [
        ([], NO_NEEDS, ""),
        ([H100], Needs(gpu="H100", gpu_count=1), ""),
        ([H100], Needs(gpu="h100 hbm3", gpu_count=1), ""),
        ([H100], Needs(compute_capability="9.0", gpu_count=1), ""),
        ([H100, H100], Needs(gpu="H100", gpu_count=2), ""),
        ([L4], Needs(gpu_count=1), ""),
        ([], Needs(gpu="H100", gpu_count=1), "a GPU named H100 (none here)"),
        ([L4], Needs(gpu="L40", gpu_count=1), "a GPU named L40 (NVIDIA L4 (8.9) here)"),
        (
            [H100],
            Needs(gpu="H10", gpu_count=1),
            "a GPU named H10 (NVIDIA H100 80GB HBM3 (9.0) here)",
        ),
        (
            [L4],
            Needs(compute_capability="9.0", gpu_count=1),
            "a GPU of compute capability 9.0 (NVIDIA L4 (8.9) here)",
        ),
        (
            [H100],
            Needs(gpu="H100", compute_capability="9.0", gpu_count=2),
            "2 GPUs named H100 of compute capability 9.0 (NVIDIA H100 80GB HBM3 (9.0) here)",
        ),
        (
            [H100, L4],
            Needs(gpu="L4", gpu_count=1),
            "a GPU named L4 alone in CUDA_VISIBLE_DEVICES (other GPUs are visible here)",
        ),
    ],
)
def test_gpus(
    monkeypatch: pytest.MonkeyPatch, gpus: list[dict[str, str]], needs: Needs, lacks: str
) -> None:
    monkeypatch.setattr(machine_needs, "visible_gpus", lambda: tuple(gpus))
    assert lacking(needs) == lacks


def test_memory_and_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_needs, "_memory_bytes", lambda: 24 << 30)
    monkeypatch.setenv(LABELS, "lab, trt86")
    assert lacking(Needs(memory=24 << 30, labels=("trt86", "lab"))) == ""
    lacks = lacking(Needs(memory=64 << 30, labels=("lab", "trt10")))
    assert lacks == "64 GiB of memory (24 GiB here) and the label trt10"
    assert obstacle(lacks) == (
        f"it needs {lacks}",
        "run it on a machine that has it, or list the label in BUILDSYS_LABELS if it applies",
    )
    monkeypatch.setattr(machine_needs, "_memory_bytes", lambda: 0)  # not known
    assert lacking(Needs(memory=64 << 30)) == ""


def test_the_memory_of_this_machine_is_known() -> None:
    assert 1 << 30 <= machine_needs._memory_bytes() < 1 << 50
