"""Versions and distributions of installed libraries, and environment variables."""

import importlib
import importlib.metadata
import sys
from pathlib import Path

import pytest
from texts import Texts

from buildsys.system import versions


def test_versions_are_those_of_the_installed_distributions() -> None:
    names = ["numpy", "torch", "onnx", "doit", "pytest"]
    assert versions.tool_versions(names) == {
        name: importlib.metadata.version(name) for name in names
    }


def test_variables_for_paths_and_logging_do_not_count() -> None:
    environment = {
        "ATEN_CPU_CAPABILITY": "avx2", "TORCH_HOME": "/x", "TORCH_LOGS": "all", "HOME": "/x",
        "TORCHINDUCTOR_CACHE_DIR": "/x", "TORCH_CPP_LOG_LEVEL": "1", "OMP_NUM_THREADS": "1",
        "ONEDNN_DEFAULT_FPMATH_MODE": "BF16",
        "ORT_DISABLE_TELEMETRY": "1", "CUDA_VISIBLE_DEVICES": "0",
    }  # fmt: skip
    facts = versions.environment_facts(["torch", "onnxruntime", "gpu"], environment)
    assert set(facts) == {"ATEN_CPU_CAPABILITY", "ONEDNN_DEFAULT_FPMATH_MODE"}
    assert set(versions.environment_facts(["speed"], environment)) == {"OMP_NUM_THREADS"}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    importlib.invalidate_caches()
    return folder


def install(
    site: Path, name: str, *, requires: tuple[str, ...] = (), files: tuple[str, ...] = ()
) -> None:
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir()
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        "Version: 1.0",
        *(f"Requires-Dist: {line}" for line in requires),
    ]
    (folder / "METADATA").write_text("\n".join(lines))
    (folder / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    for file in (file.strip('"') for file in files):
        (site / file).parent.mkdir(exist_ok=True)
        (site / file).write_text("")


def distributions(module: str, texts: Texts | None = None) -> list[str]:
    texts = Texts() if texts is None else texts
    known, path = ("torch", "numpy"), tuple(sys.path)
    return versions.distributions_of(module, texts, known=known, path=path)


def test_a_module_is_found_with_what_its_distribution_requires(site: Path) -> None:
    install(
        site, "kept_one", requires=("kept.two>=1", "not-there", "kept-three; extra == 'x'", "torch")
    )
    install(site, "kept_two", requires=("kept-one",))
    install(site, "kept_three")
    assert distributions("kept_one") == ["kept-one", "kept-two", "torch"]


@pytest.mark.parametrize("file", ["cv_like/__init__.py", "cv_like.py", '"cv_like/a,b.txt"'])
def test_a_distribution_of_another_name_is_distributions(site: Path, file: str) -> None:
    install(site, "opencv_like", files=(file,))
    assert distributions("cv_like") == ["opencv-like"]


def test_requirements_of_known_distributions_are_not_followed() -> None:
    assert distributions("torch") == ["torch"]


def test_only_a_module_outside_of_library_folders_has_sources(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "kept_pack", files=("kept_pack/__init__.py",))
    for name in ("loose_pack/__init__.py", "loose.py", "loose_space/inner.py"):
        (tmp_path / "lib" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lib" / name).write_text("")
    monkeypatch.syspath_prepend(tmp_path / "lib")
    assert versions.source_root("kept_pack") is None
    for name in ("loose_pack", "loose", "loose_space"):
        assert versions.source_root(name) == str(tmp_path / "lib")
    assert versions.source_root("no_such_module") is versions.source_root("sys") is None
