"""A shadow of an environment: its packages, below others that hide theirs.

A virtual environment with the changed packages alone, in front of the folders of the original one,
which stays as it is. Later builds in an upgraded environment have the same keys.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from buildsys.errors import StageError, UsageError
from buildsys.system.files import in_library
from buildsys.system.toolchains import Toolchain, find_interpreter, own_interpreter
from buildsys.system.versions import installed_versions, normalized

_EXACT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?\s*(?:===?|@)\s*\S")
_WHEEL = ".whl"
_CONFLICT = "which is incompatible."  # ends pip's sentences about what others require
_LAST_LINES = 5


class Shadow(NamedTuple):
    """An interpreter with changed packages."""

    python: Path
    changes: Mapping[str, tuple[str, str]]  # distribution -> old and new version, "" for neither
    conflicts: tuple[str, ...]  # requirements of other packages that the change breaks


def is_package(name: str) -> bool:
    """Check if a name is a package with an exact version, ``NAME @ FILE`` or a wheel."""
    return bool(_EXACT.match(name)) or name.endswith(_WHEEL)


def distribution_of(package: str) -> str:
    """Read the distribution's name in a requirement or in the name of a wheel."""
    if match := _EXACT.match(package):
        return normalized(match[1])
    return normalized(package.rpartition("/")[2].partition("-")[0])


def make_shadow(
    folder: Path, original: Toolchain | None, packages: Sequence[str], links: Sequence[str]
) -> Shadow:
    """Install packages into a shadow of this environment or of a toolchain's.

    ``links`` are folders or pages with further wheels.
    Raises: StageError: pip cannot. UsageError: the environment has these versions already.
    """
    interpreter, base = own_interpreter(), sys.executable
    if original is not None:
        interpreter, base = find_interpreter(original), str(original.python)
    python = folder / "bin" / "python"
    shadow = Toolchain("shadow", python, original.env if original else {})
    environment = {**shadow.environment(os.environ), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    _run([base, "-m", "venv", "--without-pip", str(folder)], environment, "cannot make a shadow")
    site = next(folder.glob("lib/python*/site-packages"))
    entries = [entry for entry in interpreter.path if in_library(f"{entry}/")]
    lines = (f"import site; site.addsitedir({entry!r})\n" for entry in entries)
    (site / "original.pth").write_text("".join(lines), encoding="utf-8")
    pip = [str(python), "-m", "pip", "install", *(f"--find-links={link}" for link in links)]
    problem = f"pip cannot install {' '.join(packages)}"
    output = _run([*pip, *packages], environment, problem)
    paths = interpreter.path, find_interpreter(shadow).path
    old, new = map(installed_versions, paths)
    changes = {
        name: (old.get(name, ""), version)
        for name, version in sorted(new.items())
        if version != old.get(name)
    }
    for name in map(distribution_of, packages):
        if name not in changes:
            text = f"{name} is {old.get(name, 'not installed')} already"
            raise UsageError(text, "name another version, or a wheel with another one")
    conflicts = [line.strip() for line in output.splitlines() if line.endswith(_CONFLICT)]
    return Shadow(python, changes, tuple(conflicts))


def _run(command: Sequence[str], environment: Mapping[str, str], problem: str) -> str:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, errors="replace", check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    output = done.stdout + done.stderr
    if done.returncode:
        lines = [line for line in output.splitlines() if line.strip()][-_LAST_LINES:]
        raise StageError(problem, "\n".join(lines), is_external=True)
    return output
