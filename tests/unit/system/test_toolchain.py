from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from buildsys.system import cpu, devices, versions
from buildsys.system.gpus import selection
from buildsys.system.gpus.devices import GpuError, read_gpus


@pytest.fixture
def fresh_caches() -> None:
    for function in (
        versions.distribution_version,
        versions._installed,
        selection.gpu_facts,
        selection._first_gpus,
    ):
        function.cache_clear()


def install(folder: Path, name: str, version: str) -> None:
    (folder / f"{name}-{version}.dist-info").mkdir(parents=True)


def test_versions_are_those_of_the_installed_distributions() -> None:
    names = ["numpy", "torch", "onnx", "doit", "pytest"]
    assert versions.tool_versions(names) == {
        name: importlib.metadata.version(name) for name in names
    }


@pytest.mark.parametrize("name", ["pytest-timeout", "pytest_timeout", "PyTest.Timeout"])
def test_spellings_of_a_name_are_alike(name: str) -> None:
    assert versions.distribution_version(name) == importlib.metadata.version("pytest-timeout")


def test_what_is_not_installed_is_absent() -> None:
    assert versions.tool_versions(["no-such-distribution"]) == {"no-such-distribution": "absent"}


@pytest.mark.usefixtures("fresh_caches")
def test_the_first_on_the_path_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "a", "some_tool", "1.2+local")
    install(tmp_path / "b", "some_tool", "3")
    monkeypatch.setattr(
        sys, "path", [str(tmp_path / "missing"), str(tmp_path / "a"), str(tmp_path / "b")]
    )
    assert versions.distribution_version("some-tool") == "1.2+local"


@pytest.mark.usefixtures("fresh_caches")
def test_onnxruntime_has_several_distributions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "onnxruntime_gpu", "1.22.0")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert versions.distribution_version("onnxruntime") == "1.22.0 (onnxruntime-gpu)"


def test_python_is_named_with_its_version() -> None:
    release = ".".join(platform.python_version_tuple()[:2])
    assert versions.tool_versions(["python"]) == {"python": f"CPython {release}"}


def test_the_cpu_is_described() -> None:
    facts = devices.device_facts(["cpu", "cores"])
    assert set(facts) == {"cpu.model", "cpu.instructions", "cpu.cores"}
    assert platform.machine() in facts["cpu.model"]
    assert int(facts["cpu.cores"]) >= 1


def test_only_instruction_sets_that_matter_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {
        "model name": "Some CPU",
        "flags": "fpu sse sse4_2 avx avx2 avx512f amx_int8 rdtscp arch_capabilities",
    }
    monkeypatch.setattr(cpu, "read_cpuinfo", lambda: lines)
    assert cpu.cpu_facts.__wrapped__()["cpu.instructions"] == "amx_int8 avx avx2 avx512f sse4_2"


def test_without_proc_the_platform_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "read_cpuinfo", dict)
    assert platform.machine() in cpu.cpu_facts.__wrapped__()["cpu.model"]


@pytest.mark.usefixtures("fresh_caches")
def test_no_driver_means_no_gpu_and_no_ctypes(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys; from buildsys.system import devices; from buildsys.system.gpus import selection\n"
        "selection._DRIVER_FILES = ('/nowhere',)\n"
        "print(set(devices.device_facts(['gpu']).values()), 'ctypes' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{'none'} False\n"


@pytest.mark.usefixtures("fresh_caches")
def test_a_driver_that_does_not_answer_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_DRIVER_FILES", ("/",))
    monkeypatch.setattr("buildsys.system.gpus.devices._LIBRARY", "libno-such-driver.so.1")
    with pytest.raises(GpuError):
        read_gpus(None)
    assert set(selection.gpu_facts().values()) == {"none"}
    assert selection.gpu_uuids() == ()


@pytest.mark.parametrize(
    ("every", "visible", "order", "expected"),
    [
        (["A", "A", "A"], "1,2", None, ("GPU-1",)),
        (["A", "B"], None, None, ("GPU-0", "GPU-1")),  # CUDA takes the fastest, whichever that is
        (["A", "B"], "1", "PCI_BUS_ID", ("GPU-1",)),
        (["A"], "", None, ()),
    ],
)
@pytest.mark.usefixtures("fresh_caches")
def test_the_gpu_that_is_locked_is_the_one_that_cuda_takes(
    monkeypatch: pytest.MonkeyPatch,
    every: list[str],
    visible: str | None,
    order: str | None,
    expected: tuple[str, ...],
) -> None:
    gpus = [(f"GPU-{number}", name) for number, name in enumerate(every)]

    def read(chosen: str | None) -> list[tuple[str, str]]:
        return (
            gpus
            if chosen is None
            else [gpus[int(number)] for number in chosen.split(",") if number]
        )

    monkeypatch.setattr(selection, "_DRIVER_FILES", ("/",))
    monkeypatch.setattr("buildsys.system.gpus.devices.read_uuids", read)
    for name, value in {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert selection.gpu_uuids() == selection.gpu_uuids([("OTHER", "0")]) == expected
    elsewhere = [("CUDA_VISIBLE_DEVICES", "0"), ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")]
    assert set(selection.gpu_uuids(elsewhere)) == {*expected, "GPU-0"}


@pytest.mark.usefixtures("fresh_caches")
def test_several_kinds_of_gpu_are_all_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [
        {"name": name, "compute_capability": capability, "driver": "580.1", "cuda_driver": "13.0"}
        for name, capability in (("A", "8.9"), ("A", "8.9"), ("B", "12.0"))
    ]
    monkeypatch.setattr(selection, "_DRIVER_FILES", ("/",))
    monkeypatch.setattr(
        "buildsys.system.gpus.devices.read_gpus",
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
    assert selection.gpu_facts() == {**everything, **chosen_by}
    selection.gpu_facts.cache_clear()
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert selection.gpu_facts() == {**everything, "gpu.name": "A", "gpu.compute_capability": "8.9"}


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


def test_variables_that_only_place_or_log_something_do_not_count() -> None:
    environment = {
        "ATEN_CPU_CAPABILITY": "avx2", "TORCH_HOME": "/x", "TORCH_LOGS": "all", "TORCHINDUCTOR_CACHE_DIR": "/x",
        "TORCH_CPP_LOG_LEVEL": "1", "ONEDNN_DEFAULT_FPMATH_MODE": "BF16", "OMP_NUM_THREADS": "1", "HOME": "/x",
        "ORT_DISABLE_TELEMETRY": "1", "CUDA_VISIBLE_DEVICES": "0",
    }  # fmt: skip
    found = versions.environment_facts(["torch", "onnxruntime", "gpu"], environment)
    assert set(found) == {"ATEN_CPU_CAPABILITY", "ONEDNN_DEFAULT_FPMATH_MODE"}
    assert set(versions.environment_facts(["speed"], environment)) == {"OMP_NUM_THREADS"}
