"""GPUs that CUDA selects, in action keys and locks, on a simulated NVML."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from buildsys.system import devices
from buildsys.system.devices import GpuError, find_gpus, read_gpus

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
def simulated(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    find_gpus.cache_clear()
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr(devices, "nvml_session", lambda: nullcontext(SimulatedNvml()))


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


def test_a_gpu_is_described_without_what_it_does_not_support() -> None:
    first, second, instance = (read_gpus(visible)[0] for visible in ("0", "1", "MIG-cc33"))
    assert first == {
        "uuid": "GPU-aa11",
        "name": "A",
        "compute_capability": "9.0",
        "driver": "580.95",
        "cuda_driver": "13.1",
        "memory_bytes": 80,
        "free_bytes": 70,
        "mig": "",
    }
    assert second["mig"] == "on"
    assert (instance["memory_bytes"], instance["free_bytes"]) == (None, None)


class RefusingLibrary:
    """A driver that is not loaded."""

    nvmlInit_v2 = staticmethod(lambda: 9)  # noqa: N815


def test_a_refused_call_is_a_gpu_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("ctypes.CDLL", lambda name: RefusingLibrary)
    with pytest.raises(GpuError, match="driver does not answer: nvmlInit_v2 failed with error 9"):
        read_gpus(None)


def test_no_driver_means_no_gpu_and_no_ctypes() -> None:
    code = (
        "import sys\nfrom buildsys.system import devices\n"
        "devices.DRIVER_FILES = ('/nowhere',)\n"
        "print(set(devices.device_facts(['gpu']).values()), 'ctypes' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{'none'} False\n"


def test_a_broken_driver_means_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(devices, "DRIVER_FILES", ("/",))
    monkeypatch.setattr(devices, "_LIBRARY", "libno-such-driver.so.1")
    with pytest.raises(GpuError):
        read_gpus(None)
    assert set(devices.gpu_facts().values()) == {"none"}
    assert devices.gpu_uuids() == ()


@pytest.mark.parametrize(
    ("names", "visible", "expected", "equal"),
    [
        ("AAA", "1,2", ("GPU-1",), ("GPU-1", "GPU-2")),
        ("AB", None, ("GPU-0",), ()),
        ("AB", "1", ("GPU-1",), ()),
        ("A", "", (), ()),
    ],
)
def test_the_locked_gpu_is_the_one_cuda_selects(
    monkeypatch: pytest.MonkeyPatch,
    names: str,
    visible: str | None,
    expected: tuple[str, ...],
    equal: tuple[str, ...],
) -> None:
    facts = {"compute_capability": "8.9", "driver": "580.1", "cuda_driver": "13.0"}
    gpus = [{"uuid": f"GPU-{n}", "name": name, **facts} for n, name in enumerate(names)]

    def read(chosen: str | None) -> list[dict[str, str]]:
        numbers = range(len(gpus)) if chosen is None else filter(None, chosen.split(","))
        return [gpus[int(number)] for number in numbers]

    monkeypatch.setattr(devices, "DRIVER_FILES", ("/",))
    monkeypatch.setattr(devices, "read_gpus", read)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices.gpu_uuids() == devices.gpu_uuids([("OTHER", "0")]) == expected
    elsewhere = [("CUDA_VISIBLE_DEVICES", "0")]
    assert set(devices.gpu_uuids(elsewhere)) == {*expected, "GPU-0"}
    assert devices.gpu_uuids(elsewhere, here=False) == ("GPU-0",)
    assert devices.equal_gpus([("OTHER", "0")]) == equal
    assert devices.equal_gpus(elsewhere) == ()
    kinds = " + ".join(dict.fromkeys(gpu["name"] for gpu in read(visible))) or "none"
    assert devices.gpu_facts()["gpu.name"] == kinds


@pytest.mark.gpu
@pytest.mark.skipif(not Path("/proc/driver/nvidia/version").exists(), reason="no NVIDIA driver")
def test_a_real_gpu_is_described() -> None:
    gpus = read_gpus(None)
    assert gpus
    assert read_gpus("") == []
    assert [gpu["uuid"] for gpu in read_gpus("0")] == [gpu["uuid"] for gpu in gpus[:1]]
    assert read_gpus("99,0") == []
    assert all(
        float(gpu["compute_capability"]) >= 5 and gpu["driver"] and gpu["name"] for gpu in gpus
    )
