"""Identity of installed packages: other files under the same version are another package."""

import base64
import hashlib
import os
import shutil
from pathlib import Path

import pytest
from texts import Texts

from buildsys.system import versions
from buildsys.system.versions import package_identities


def install(site: Path, modules: dict[str, str], *, script: str = "#!/one/python") -> None:
    """Install version 1.0 of a distribution with these modules."""
    lines = []
    for name, code in {**modules, "../../bin/tool": script}.items():
        if not name.startswith(".."):
            path = site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(code)
        digest = base64.urlsafe_b64encode(hashlib.sha256(code.encode()).digest()).decode()
        lines.append(f"{name},sha256={digest.rstrip('=')},{len(code)}")
    info = site / "tool-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "RECORD").write_text("\n".join([*lines, "tool-1.0.dist-info/RECORD,,"]))


def identity(site: Path, texts: Texts | None = None) -> str:
    versions.distribution_folders.cache_clear()
    texts = Texts() if texts is None else texts
    found = package_identities(["tool"], (str(site),), texts)
    return found.get("tool", "")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    install(folder, {"tool/__init__.py": "x = 1\n", "tool/deep/part.py": "y = 1\n"})
    return folder


def test_other_code_under_the_same_version_is_another_package(site: Path) -> None:
    before = identity(site)
    install(site, {"tool/__init__.py": "x = 2\n", "tool/deep/part.py": "y = 1\n"})
    assert before != identity(site) != ""


def test_the_same_wheel_is_equal_on_all_machines(site: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "site-packages"
    other.mkdir(parents=True)
    modules = {"tool/deep/part.py": "y = 1\n", "tool/__init__.py": "x = 1\n"}
    install(other, modules, script="#!/another/python")
    assert identity(other) == identity(site)


@pytest.mark.parametrize("name", ["tool/__init__.py", "tool/deep/part.py"])
@pytest.mark.parametrize("keep_times", [True, False])
def test_an_edit_in_site_packages_is_seen(site: Path, name: str, *, keep_times: bool) -> None:
    texts = Texts()
    before = identity(site, texts)
    times = (site / name).stat()
    (site / name).write_text("z = 9\n")  # of the same length
    if keep_times:
        os.utime(site / name, ns=(times.st_atime_ns, times.st_mtime_ns))
    edited = identity(site, texts)
    assert edited != before
    assert identity(site) == edited  # without a cache of earlier findings


def test_a_touch_or_a_copy_changes_nothing(site: Path, tmp_path: Path) -> None:
    before = identity(site)
    os.utime(site / "tool/__init__.py")
    assert identity(site) == before
    shutil.copytree(site, tmp_path / "copy" / "site-packages")
    assert identity(tmp_path / "copy" / "site-packages") == before


def test_an_edited_shared_library_is_seen(site: Path) -> None:
    install(site, {"tool/__init__.py": "x = 1\n", "tool/fast.cpython-311.so": "binary"})
    before = identity(site)
    (site / "tool/fast.cpython-311.so").write_text("BINARY")
    assert identity(site) != before


def test_a_distribution_without_record_has_no_identity(site: Path) -> None:
    (site / "tool-1.0.dist-info/RECORD").unlink()
    assert identity(site) == ""
