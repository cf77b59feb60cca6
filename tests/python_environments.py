"""Virtual environments with selected packages of the running interpreter."""

import contextlib
import shutil
import sys
from importlib import metadata
from pathlib import Path

import numpy

_LIBRARIES = Path(numpy.__file__).parents[1]
ONNX = ("onnx", "google", "ml_dtypes", "typing_extensions")  # onnx and what it imports
RELEASE = f"python{sys.version_info[0]}.{sys.version_info[1]}"


class Environment:
    """A virtual environment without pip; its packages are links to the running one's."""

    def __init__(self, folder: Path, *packages: str) -> None:
        self.folder = folder
        self.libraries = folder / "lib" / RELEASE / "site-packages"
        self.libraries.mkdir(parents=True)
        (folder / "bin").mkdir()
        base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
        self.python = folder / "bin" / "python"
        self.python.symlink_to(base)
        (folder / "pyvenv.cfg").write_text(
            f"home = {base.parent}\ninclude-system-site-packages = false\n"
        )
        for package in packages:
            self.install(package)

    def install(self, package: str) -> None:
        """Link a package of the running environment, with its metadata."""
        names = [package, f"{package}.py", f"{package}.libs"]
        with contextlib.suppress(metadata.PackageNotFoundError):  # part of another distribution
            names.append(f"{package}-{metadata.version(package)}.dist-info")
        for name in names:
            if (_LIBRARIES / name).exists():
                (self.libraries / name).symlink_to(_LIBRARIES / name)

    def uninstall(self, package: str) -> None:
        """Remove a package."""
        for found in (*self.libraries.glob(f"{package}-*.dist-info"), self.libraries / package):
            found.unlink() if found.is_symlink() else shutil.rmtree(found)

    def relabel(self, package: str, version: str) -> None:
        """Change the version in a package's metadata, as an upgrade would."""
        found = next(self.libraries.glob(f"{package}-*.dist-info"))
        found.rename(self.libraries / f"{package}-{version}.dist-info")

    def write(self, name: str, text: str) -> Path:
        """Write a file into site-packages."""
        file = self.libraries / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file


def program(file: Path, text: str) -> Path:
    """Write an executable shell script."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def old_python(file: Path, version: str = "3.9.18") -> Path:
    """Write a program with the probe result of an old Python."""
    answer = (
        f'{{"implementation": "CPython", "version": "{version}", "full_version": "{version}",'
        ' "standard": "/usr/lib/python3", "path": ["/usr/lib/python3"]}'
    )
    return program(file, f"echo '{answer}'")
