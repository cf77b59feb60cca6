"""Toolchains: Python interpreters with their own libraries. Standard library only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

OVERRIDE_PREFIX = "BUILDSYS_TOOLCHAIN_"
# variables of our interpreter that would change the modules another one finds
_INTERPRETER_VARIABLES = (
    "PYTHONEXECUTABLE", "PYTHONHOME", "PYTHONPATH", "PYTHONPLATLIBDIR", "PYTHONSTARTUP",
    "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "__PYVENV_LAUNCHER__",
)  # fmt: skip
_PREFIX = "{prefix}"  # in a variable's value: the root folder of the interpreter's environment


@dataclass(frozen=True)
class Toolchain:
    """A Python interpreter for building and running engines."""

    name: str
    python: Path  # absolute, unless no such program was found on PATH
    env: Mapping[str, str]  # added to the environment of its processes

    @property
    def pip(self) -> str:
        """Return the command to install a package, without the package's name."""
        return f"{self.python} -m pip install"

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return ``base`` for this interpreter, without the variables of ours."""
        variables = {
            name: value for name, value in base.items() if name not in _INTERPRETER_VARIABLES
        }
        return {**variables, **self.env}


def override_variable(name: str) -> str:
    """Return the environment variable to override a toolchain's interpreter."""
    return OVERRIDE_PREFIX + re.sub(r"[^A-Za-z0-9]", "_", name).upper()


def locate_toolchain(
    name: str,
    python: str,
    env: Iterable[tuple[str, str]],
    project: Path,
    environment: Mapping[str, str],
) -> Toolchain:
    """Return a toolchain on this machine from its entry in project.yaml.

    With a slash ``python`` is absolute or relative to the project, otherwise a program on PATH;
    ``~`` is expanded.
    """
    entry = environment.get(override_variable(name)) or python
    path = Path(os.path.expanduser(entry))  # noqa: PTH111 - Path's raises for an unknown user
    if "/" in entry:
        # unresolved: a link may lead into another environment
        path = Path(os.path.abspath(project / path))  # noqa: PTH100
    else:
        import shutil  # slow to import, rarely needed

        path = Path(shutil.which(entry, path=environment.get("PATH")) or entry)
    prefix = str(path.parent.parent)
    return Toolchain(name, path, {key: value.replace(_PREFIX, prefix) for key, value in env})
