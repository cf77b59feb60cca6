"""GPUs visible to CUDA, on a simulated NVML."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from buildsys.system import nvml
from buildsys.system.nvml import GpuError, read_details, read_gpus

GPUS = {"GPU-aa11": "A", "GPU-bb22": "B", "MIG-cc33": "B MIG 1g.10gb"}


class SimulatedNvml:
    """An NVML with two GPUs and a MIG instance on the second."""

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return list(GPUS)[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid not in GPUS:
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetUUID(self, device: str) -> str:  # noqa: N802
        return device

    def nvmlDeviceGetName(self, device: str) -> str:  # noqa: N802
        return GPUS[device]

    def nvmlDeviceGetCudaComputeCapability(self, device: str) -> tuple[int, int]:  # noqa: N802
        return (9, 0)

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.95"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return 13010

    def nvmlDeviceGetMemoryInfo(self, device: str) -> Any:  # noqa: N802
        if device.startswith("MIG-"):
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(total=80, free=70)

    def nvmlDeviceGetMigMode(self, device: str) -> list[int]:  # noqa: N802
        if device == "GPU-aa11":
            raise self.NVMLError("Not Supported")
        return [int(device == "GPU-bb22"), 0]


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def session(*, fallback: bool = False) -> Iterator[SimulatedNvml]:
        yield SimulatedNvml()

    monkeypatch.setattr(nvml, "nvml_session", session)


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


def test_nvidia_ml_py_is_not_imported_without_a_driver() -> None:
    code = (
        "import sys\n"
        "from buildsys.system import nvml\n"
        "nvml._LIBRARY = 'libno-such-driver.so.1'\n"
        "try: nvml.read_gpus(None)\n"
        "except nvml.GpuError as error: print(error, 'pynvml' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("libno-such-driver.so.1: ")
    assert done.stdout.endswith(" False\n")


def test_an_nvml_error_is_a_gpu_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    pynvml = pytest.importorskip("pynvml")
    monkeypatch.setattr(nvml.ctypes, "CDLL", lambda name: None)

    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    with pytest.raises(GpuError, match="the NVIDIA driver does not answer: "):
        read_gpus(None)
