"""GPUs visible to CUDA, on a simulated NVML."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from buildsys.system import nvml
from buildsys.system.nvml import GpuError, read_details, read_gpus

GPUS = {"GPU-aa11": "A", "GPU-bb22": "B", "MIG-cc33": "B MIG 1g.10gb"}


class SimulatedNvml:
    """An NVML with two GPUs and a MIG instance on the second."""

    def text(self, function: str, device: str = "") -> str:
        return {
            "nvmlDeviceGetUUID": device,
            "nvmlDeviceGetName": GPUS.get(device, ""),
            "nvmlSystemGetDriverVersion": "580.95",
        }[function]

    def numbers(self, function: str, device: str = "", count: int = 1) -> list[int]:
        if (function, device) == ("nvmlDeviceGetMigMode", "GPU-aa11"):
            raise GpuError("Not Supported")
        return {
            "nvmlDeviceGetCount_v2": [2],
            "nvmlSystemGetCudaDriverVersion_v2": [13010],
            "nvmlDeviceGetCudaComputeCapability": [9, 0],
            "nvmlDeviceGetMigMode": [int(device == "GPU-bb22"), 0],
        }[function]

    def long_numbers(self, function: str, device: str, count: int = 1) -> list[int]:
        if device.startswith("MIG-"):
            raise GpuError("Not Supported")
        return {"nvmlDeviceGetMemoryInfo": [80, 70, 10]}[function]

    def device(self, function: str, identifier: int | str) -> str:
        if isinstance(identifier, int):
            return list(GPUS)[identifier]
        if identifier not in GPUS:
            raise GpuError("Not Found")
        return identifier


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "nvml_session", lambda: nullcontext(SimulatedNvml()))


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["GPU-aa11", "GPU-bb22"]),
        ("", []),
        ("1", ["GPU-bb22"]),
        ("1, 0", ["GPU-bb22", "GPU-aa11"]),
        ("0,7,1", ["GPU-aa11"]),  # CUDA ignores everything after an unknown name
        ("GPU-bb", ["GPU-bb22"]),
        ("MIG-cc33,MIG-dd44,0", ["MIG-cc33"]),
        ("none", []),
    ],
)
def test_visible_gpus_are_chosen_as_by_cuda(visible: str | None, expected: list[str]) -> None:
    found = [(gpu["uuid"], gpu["name"]) for gpu in read_gpus(visible)]
    assert found == [(uuid, GPUS[uuid]) for uuid in expected]


def test_a_gpu_is_described() -> None:
    described = {"compute_capability": "9.0", "driver": "580.95", "cuda_driver": "13.1"}
    assert read_gpus("0") == [{"uuid": "GPU-aa11", "name": "A", **described}]


def test_unsupported_queries_are_unknown() -> None:
    first, second, instance = (read_details(visible)[0] for visible in ("0", "1", "MIG-cc33"))
    assert (first.memory_bytes, first.free_bytes, first.mig) == (80, 70, "")
    assert second.mig == "on"
    assert (instance.memory_bytes, instance.free_bytes, instance.mig) == (None, None, "off")


class RefusingLibrary:
    """A driver that is not loaded."""

    nvmlInit_v2 = staticmethod(lambda: 9)  # noqa: N815


def test_a_refused_call_is_a_gpu_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(nvml.ctypes, "CDLL", lambda name: RefusingLibrary)
    with pytest.raises(GpuError, match="driver does not answer: nvmlInit_v2 failed with error 9"):
        read_gpus(None)
