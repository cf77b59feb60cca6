"""GPUs selected by CUDA, in action keys and locks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from buildsys.system import devices
from buildsys.system.nvml import GpuError, read_gpus


@pytest.fixture
def fresh_caches() -> None:
    for function in (devices.gpu_facts, devices._find_gpus):
        function.cache_clear()


@pytest.mark.usefixtures("fresh_caches")
def test_no_driver_means_no_gpu_and_no_ctypes(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys\nfrom buildsys.system import devices\n"
        "devices._DRIVER_FILES = ('/nowhere',)\n"
        "print(set(devices.device_facts(['gpu']).values()), 'ctypes' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{'none'} False\n"


@pytest.mark.usefixtures("fresh_caches")
def test_a_broken_driver_means_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_DRIVER_FILES", ("/",))
    monkeypatch.setattr("buildsys.system.nvml._LIBRARY", "libno-such-driver.so.1")
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
@pytest.mark.usefixtures("fresh_caches")
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

    monkeypatch.setattr(devices, "_DRIVER_FILES", ("/",))
    monkeypatch.setattr("buildsys.system.nvml.read_gpus", read)
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
    assert read_gpus("0") == gpus[:1]
    assert read_gpus("99,0") == []
    assert all(
        float(gpu["compute_capability"]) >= 5 and gpu["driver"] and gpu["name"] for gpu in gpus
    )
