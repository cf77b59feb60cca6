from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from buildsys.system import versions


class Texts(dict[str, str]):
    def set(self, digest: str, imports: str) -> None:
        self[digest] = imports


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


def found(module: str, texts: Texts | None = None) -> list[str]:
    return versions.distributions_of(
        module, Texts() if texts is None else texts, known=("torch", "numpy")
    )


def test_a_module_is_found_with_what_its_distribution_requires(site: Path) -> None:
    install(
        site, "kept_one", requires=("kept.two>=1", "not-there", "kept-three; extra == 'x'", "torch")
    )
    install(site, "kept_two", requires=("kept-one",))
    install(site, "kept_three")
    assert found("kept_one") == ["kept-one", "kept-two", "torch"]


@pytest.mark.parametrize("file", ["cv_like/__init__.py", "cv_like.py", '"cv_like/a,b.txt"'])
def test_a_distribution_of_another_name_is_found(site: Path, file: str) -> None:
    install(site, "opencv_like", files=(file,))
    assert found("cv_like") == ["opencv-like"]


def test_requirements_of_known_distributions_are_not_followed() -> None:
    assert found("torch") == ["torch"]


def test_an_unknown_module_is_looked_up_once(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = Texts()
    assert found("no_such_module", texts=texts) == []
    monkeypatch.setattr("importlib.metadata.distributions", lambda: pytest.fail("asked again"))
    assert found("no_such_module", texts=texts) == []


def test_another_environment_is_looked_up_separately(site: Path) -> None:
    texts = Texts()
    assert found("kept_late", texts=texts) == []
    install(site, "kept_late")
    versions.installed_versions.cache_clear()
    versions.distribution_folders.cache_clear()
    assert found("kept_late", texts=texts) == ["kept-late"]


def test_only_a_module_outside_of_library_folders_has_sources(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "kept_pack", files=("kept_pack/__init__.py",))
    for name in ("loose_pack/__init__.py", "loose.py"):
        (tmp_path / "lib" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lib" / name).write_text("")
    monkeypatch.syspath_prepend(tmp_path / "lib")
    assert versions.source_root("kept_pack") is None
    assert (
        versions.source_root("loose_pack") == versions.source_root("loose") == str(tmp_path / "lib")
    )
    assert versions.source_root("no_such_module") is versions.source_root("sys") is None
