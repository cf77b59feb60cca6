"""The C and C++ compilers: which one is called, and what tells it from another one."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from functools import cache
from typing import NamedTuple

ABSENT = "absent"
_TIMEOUT_S = 20


class _Language(NamedTuple):
    variable: str
    programs: tuple[str, ...]


LANGUAGES = {
    "cc": _Language("CC", ("cc", "gcc", "clang")),
    "c++": _Language("CXX", ("c++", "g++", "clang++")),
}
# the compiler's own variables: they would change what it makes, and no key has them
_SILENT_OPTIONS = (
    "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX",
    "SOURCE_DATE_EPOCH", "GCC_COLORS", "CCC_OVERRIDE_OPTIONS",
)  # fmt: skip


def compiler_command(language: str) -> list[str]:
    """Return the program with the arguments that ``$CC`` or ``$CXX`` gives it; [] where none is installed."""
    variable, programs = LANGUAGES[language]
    asked = shlex.split(os.environ.get(variable, ""))
    if asked:
        return asked if shutil.which(asked[0]) else []
    return next(([program] for program in programs if shutil.which(program)), [])


def compiler_environment() -> dict[str, str]:
    """Return the variables that a compiler runs with: messages in English, no options from outside."""
    kept = {name: value for name, value in os.environ.items() if name not in _SILENT_OPTIONS}
    return {**kept, "LC_ALL": "C"}


@cache
def compiler_identity(language: str) -> str:
    """Return version, machine and arguments of the compiler, or ``absent``."""
    command = compiler_command(language)
    if not command:
        return ABSENT
    version = _answer([*command, "--version"]).splitlines()
    machine = _answer([*command, "-dumpmachine"]).strip()
    arguments = f" {shlex.join(command[1:])}" if command[1:] else ""
    return f"{version[0] if version else command[0]} for {machine or 'this machine'}{arguments}"


def _answer(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, env=compiler_environment(),
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
