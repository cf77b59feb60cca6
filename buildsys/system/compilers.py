"""C and C++: compilers with their versions, languages of sources, included files."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from buildsys.errors import StageError
from buildsys.system.files import shortened_for_key

ABSENT = "absent"
C_SUFFIXES = (".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".hxx", ".inc", ".inl", ".def")
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_TIMEOUT_S = 20


# environment variable and programs
LANGUAGES = {"cc": ("CC", ("cc", "gcc", "clang")), "c++": ("CXX", ("c++", "g++", "clang++"))}
# the compilers' own variables: they would change the output, and no key contains them
_COMPILER_VARIABLES = (
    "CCC_OVERRIDE_OPTIONS", "COMPILER_PATH", "CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH",
    "GCC_COLORS", "GCC_EXEC_PREFIX", "LIBRARY_PATH", "SOURCE_DATE_EPOCH",
)  # fmt: skip


def compiler_command(language: str) -> list[str]:
    """Find the compiler with its arguments from ``$CC`` or ``$CXX``. [] if none is installed."""
    variable, programs = LANGUAGES[language]
    command = shlex.split(os.environ.get(variable, ""))
    if command:
        return command if shutil.which(command[0]) else []
    return next(([program] for program in programs if shutil.which(program)), [])


def compiler_environment() -> dict[str, str]:
    """Make the environment of a compiler: English messages, no options from outside."""
    variables = {
        name: value for name, value in os.environ.items() if name not in _COMPILER_VARIABLES
    }
    return {**variables, "LC_ALL": "C"}


@cache
def compiler_identity(language: str) -> str:
    """Identify version, target machine and arguments of the compiler, or ``absent``."""
    command = compiler_command(language)
    if not command:
        return ABSENT
    printed = []
    for option in ("--version", "-dumpmachine"):
        try:
            done = subprocess.run(
                [*command, option], capture_output=True, timeout=_TIMEOUT_S,
                env=compiler_environment(), check=False,
            )  # fmt: skip
            printed.append(done.stdout.strip())
        except OSError:
            printed.append(b"")
        except subprocess.TimeoutExpired:
            # without its version, a key would not identify the compiler
            problem = f"{shlex.join([*command, option])} did not answer within {_TIMEOUT_S} s"
            raise StageError(problem, "try again when this machine is idle") from None
    lines = printed[0].decode(errors="replace").splitlines()
    version = shortened_for_key(lines[0], printed[0]) if lines else command[0]
    machine = printed[1].decode(errors="replace") or "this machine"
    arguments = f" {shlex.join(command[1:])}" if command[1:] else ""
    return f"{version} for {machine}{arguments}"


def language_of(source: str) -> str:
    """Choose the compiler for a source: ``cc`` or ``c++``."""
    return "cc" if source.endswith(".c") else "c++"


def linker_of(sources: Iterable[str]) -> str:
    """Choose the compiler to link the objects of ``sources``."""
    return "c++" if "c++" in map(language_of, sources) else "cc"


def find_includes(code: bytes) -> list[str]:
    """List the paths in ``#include "…"``, relative to the file's folder."""
    joined = code.replace(b"\\\r\n", b"").replace(b"\\\n", b"")
    return sorted({os.fsdecode(name) for name in _INCLUDE.findall(joined)})


def included_files(source: Path) -> set[Path]:
    """Collect a source and its direct and indirect relative includes."""
    files: set[Path] = set()
    waiting = [Path(os.path.normpath(source))]
    while waiting:
        file = waiting.pop()
        if file not in files and file.is_file():
            files.add(file)
            named = find_includes(file.read_bytes()) if file.suffix in C_SUFFIXES else []
            waiting += [Path(os.path.normpath(file.parent / name)) for name in named]
    return files
