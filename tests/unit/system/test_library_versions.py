"""Versions of installed libraries, and environment variables."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from pathlib import Path

import pytest

from buildsys.system import versions


@pytest.fixture
def fresh_caches() -> None:
    for function in (
        versions.distribution_version,
        versions.installed_versions,
        versions.distribution_folders,
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
def test_spellings_of_a_name_are_equivalent(name: str) -> None:
    assert versions.distribution_version(name) == importlib.metadata.version("pytest-timeout")


def test_a_missing_distribution_is_absent() -> None:
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


def test_variables_for_paths_and_logging_do_not_count() -> None:
    environment = {
        "ATEN_CPU_CAPABILITY": "avx2", "TORCH_HOME": "/x", "TORCH_LOGS": "all", "HOME": "/x",
        "TORCHINDUCTOR_CACHE_DIR": "/x", "TORCH_CPP_LOG_LEVEL": "1", "OMP_NUM_THREADS": "1",
        "ONEDNN_DEFAULT_FPMATH_MODE": "BF16",
        "ORT_DISABLE_TELEMETRY": "1", "CUDA_VISIBLE_DEVICES": "0",
    }  # fmt: skip
    found = versions.environment_facts(["torch", "onnxruntime", "gpu"], environment)
    assert set(found) == {"ATEN_CPU_CAPABILITY", "ONEDNN_DEFAULT_FPMATH_MODE"}
    assert set(versions.environment_facts(["speed"], environment)) == {"OMP_NUM_THREADS"}
