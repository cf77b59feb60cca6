"""A toolchain: another Python interpreter with its own libraries. Standard library only: it is read there as well."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

OVERRIDE_PREFIX = "BUILDSYS_TOOLCHAIN_"
# what of our own interpreter would change which modules another one finds
_OF_AN_INTERPRETER = (
    "PYTHONEXECUTABLE",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONPLATLIBDIR",
    "PYTHONSTARTUP",
    "VIRTUAL_ENV",
    "VIRTUAL_ENV_PROMPT",
    "__PYVENV_LAUNCHER__",
)
_PREFIX = "{prefix}"  # in a variable's value: the folder of the interpreter's environment


@dataclass(frozen=True)
class Toolchain:
    """An interpreter that runs engines; ``python`` is absolute unless no such program was found."""

    name: str
    python: Path
    env: Mapping[str, str]  # variables on top of the environment, as they are set there

    @property
    def pip(self) -> str:
        """The command line that installs something into it, up to its name."""
        return f"{self.python} -m pip install"


def override_variable(name: str) -> str:
    """Return the environment variable that names another interpreter for a toolchain."""
    return OVERRIDE_PREFIX + re.sub(r"[^A-Za-z0-9]", "_", name).upper()


def located(
    name: str,
    python: str,
    env: Iterable[tuple[str, str]],
    project: Path,
    environment: Mapping[str, str],
) -> Toolchain:
    """Return a toolchain as it is on this machine; ``python`` and ``env`` are written as in project.yaml.

    ``python`` is absolute, relative to the project where it has a slash, else looked up on PATH; ``~`` is expanded.
    """
    written = environment.get(override_variable(name)) or python
    path = Path(os.path.expanduser(written))  # noqa: PTH111 - Path.expanduser raises for an unknown user
    if "/" in written:
        path = Path(os.path.abspath(project / path))  # noqa: PTH100 - a link leads into another environment
    else:
        import shutil  # only for those who look on PATH

        path = Path(shutil.which(written, path=environment.get("PATH")) or written)
    prefix = str(path.parent.parent)
    return Toolchain(name, path, {key: value.replace(_PREFIX, prefix) for key, value in env})


def interpreter_environment(toolchain: Toolchain, base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a toolchain's processes start with: of ``base`` nothing that is our interpreter's."""
    kept = {name: value for name, value in base.items() if name not in _OF_AN_INTERPRETER}
    return {**kept, **toolchain.env}
