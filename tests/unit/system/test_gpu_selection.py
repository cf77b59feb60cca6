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
    ("every", "visible", "order", "expected", "equal"),
    [
        (["A", "A", "A"], "1,2", None, ("GPU-1",), ("GPU-1", "GPU-2")),
        # CUDA takes the fastest, whichever that is
        (["A", "B"], None, None, ("GPU-0", "GPU-1"), ()),
        (["A", "B"], None, "PCI_BUS_ID", ("GPU-0",), ()),
        (["A", "B"], "1", "PCI_BUS_ID", ("GPU-1",), ()),
        (["A"], "", None, (), ()),
    ],
)
@pytest.mark.usefixtures("fresh_caches")
def test_the_locked_gpu_is_the_one_cuda_selects(
    monkeypatch: pytest.MonkeyPatch,
    every: list[str],
    visible: str | None,
    order: str | None,
    expected: tuple[str, ...],
    equal: tuple[str, ...],
) -> None:
    gpus = [{"uuid": f"GPU-{number}", "name": name} for number, name in enumerate(every)]

    def read(chosen: str | None) -> list[dict[str, str]]:
        return (
            gpus
            if chosen is None
            else [gpus[int(number)] for number in chosen.split(",") if number]
        )

    monkeypatch.setattr(devices, "_DRIVER_FILES", ("/",))
    monkeypatch.setattr("buildsys.system.nvml.read_gpus", read)
    for name, value in {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert devices.gpu_uuids() == devices.gpu_uuids([("OTHER", "0")]) == expected
    elsewhere = [("CUDA_VISIBLE_DEVICES", "0"), ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")]
    assert set(devices.gpu_uuids(elsewhere)) == {*expected, "GPU-0"}
    assert devices.gpu_uuids(elsewhere, here=False) == ("GPU-0",)
    assert devices.equal_gpus([("OTHER", "0")]) == equal
    assert devices.equal_gpus(elsewhere) == ()


@pytest.mark.usefixtures("fresh_caches")
def test_several_kinds_of_gpu_are_all_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [
        {"name": name, "compute_capability": capability, "driver": "580.1", "cuda_driver": "13.0"}
        for name, capability in (("A", "8.9"), ("A", "8.9"), ("B", "12.0"))
    ]
    monkeypatch.setattr(devices, "_DRIVER_FILES", ("/",))
    monkeypatch.setattr(
        "buildsys.system.nvml.read_gpus",
        lambda visible: gpus if visible is None else gpus[:2],
    )
    everything = {
        "gpu.name": "A + B",
        "gpu.compute_capability": "8.9 + 12.0",
        "gpu.driver": "580.1",
        "gpu.cuda_driver": "13.0",
    }
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    # CUDA counts the fastest GPU first, so its 0 may be the driver's 2
    chosen_by = {"gpu.chosen_by": "CUDA_VISIBLE_DEVICES=0,1 CUDA_DEVICE_ORDER=None"}
    assert devices.gpu_facts() == {**everything, **chosen_by}
    devices.gpu_facts.cache_clear()
    devices._find_gpus.cache_clear()
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert devices.gpu_facts() == {**everything, "gpu.name": "A", "gpu.compute_capability": "8.9"}


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
