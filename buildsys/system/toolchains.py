"""Toolchains: Python interpreters with their own libraries, their versions and problems."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path

from buildsys.errors import StageError, Unavailable

OVERRIDE_PREFIX = "BUILDSYS_TOOLCHAIN_"
OLDEST = (3, 10)
_LONGEST_LINE = 160  # characters
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
        """The command to install a package, without the package's name."""
        return f"{self.python} -m pip install"

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Make ``base`` an environment for this interpreter, without the variables of ours."""
        variables = {
            name: value for name, value in base.items() if name not in _INTERPRETER_VARIABLES
        }
        return {**variables, **self.env}


def override_variable(name: str) -> str:
    """Name the environment variable that overrides a toolchain's interpreter."""
    return OVERRIDE_PREFIX + re.sub(r"[^A-Za-z0-9]", "_", name).upper()


def locate_toolchain(
    name: str,
    python: str,
    env: Iterable[tuple[str, str]],
    project: Path,
    environment: Mapping[str, str],
) -> Toolchain:
    """Locate a toolchain on this machine from its entry in project.yaml.

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


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter."""

    implementation: str  # "CPython"
    version: str  # "3.10.13"
    full_version: str
    standard: str  # the folder of its standard library
    path: tuple[str, ...]  # sys.path

    @property
    def release(self) -> str:
        """Implementation, major and minor version: language and bytecode depend on these."""
        return f"{self.implementation} {'.'.join(self.version.split('.')[:2])}"

    def finds(self, module: str) -> bool:
        """Check whether a module is on its path; nothing is imported."""
        return PathFinder.find_spec(module, list(self.path)) is not None


def own_interpreter() -> Interpreter:
    """Describe the interpreter of this process."""
    implementation, version = platform.python_implementation(), platform.python_version()
    standard = os.path.dirname(os.__file__)  # noqa: PTH120
    return Interpreter(implementation, version, sys.version, standard, tuple(sys.path))


@dataclass(frozen=True)
class InterpreterCheck:
    """The interpreter of a toolchain, or the problem with it."""

    interpreter: Interpreter | None
    problem: str = ""
    hint: str = ""
    permanent: bool = True  # until a file changes; otherwise the next attempt may succeed


LIMIT_VARIABLE = "BUILDSYS_INTERPRETER_LIMIT"
_DEFAULT_LIMIT_S = 30.0
_SCRIPT = """
import json, os, platform, sys
print("\\n" + json.dumps({
    "implementation": platform.python_implementation(),
    "version": platform.python_version(),
    "full_version": sys.version,
    "standard": os.path.dirname(os.__file__),
    "path": [entry for entry in sys.path if entry],
}))
sys.stdout.flush()
os._exit(0)
"""
_checks: dict[tuple[Path, str], InterpreterCheck] = {}  # of this process
_probing = threading.Lock()


def check_interpreter(toolchain: Toolchain) -> InterpreterCheck:
    """Check a toolchain's interpreter, which is started once per process."""
    python = toolchain.python
    if not python.is_absolute():
        return _unusable(toolchain, f"there is no program {python} on PATH")
    if not python.is_file():
        return _unusable(toolchain, f"there is no {python}")
    environment = toolchain.environment(os.environ)
    name = python, json.dumps([toolchain.name, environment], sort_keys=True)
    with _probing:  # threads that need the same interpreter wait for one probe
        if name not in _checks:
            _checks[name] = _probe(toolchain, environment)
    return _checks[name]


def require_interpreter(toolchain: Toolchain) -> Interpreter:
    """Return the interpreter of a toolchain that can run stages.

    Raises: Unavailable: it cannot. StageError: it hangs or crashes; the next attempt may succeed.
    """
    check = check_interpreter(toolchain)
    if check.interpreter is None:
        raise (Unavailable if check.permanent else StageError)(check.problem, check.hint)
    if not check.interpreter.finds("numpy"):
        problem = f"the toolchain {toolchain.name} has no numpy"
        raise Unavailable(problem, f"{toolchain.pip} numpy")
    return check.interpreter


def probe_limit_s(environment: Mapping[str, str]) -> float:
    """Read the time limit for starting an interpreter."""
    from buildsys.system.processes import time_limit_s  # slow to import

    return time_limit_s(environment, LIMIT_VARIABLE, _DEFAULT_LIMIT_S)


def describe_ending(code: int | None, limit_s: float) -> str:
    """Write the predicate for an interpreter without a result; None: it hung."""
    from buildsys.system.processes import describe_exit

    within = f"did not respond within {limit_s:g} s ({LIMIT_VARIABLE} allows more)"
    return within if code is None else describe_exit(code)


def _probe(toolchain: Toolchain, environment: Mapping[str, str]) -> InterpreterCheck:
    from buildsys.system.processes import run_program

    python, limit_s = toolchain.python, probe_limit_s(os.environ)
    try:
        done = run_program([str(python), "-c", _SCRIPT], environment, limit_s=limit_s)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return _unusable(toolchain, f"{python} cannot be started: {reason}")
    try:
        fields = done.json()
        interpreter = Interpreter(**{**fields, "path": tuple(fields["path"])})
    except (ValueError, TypeError, LookupError):
        is_passing = done.code is None or done.code < 0
        last_line = (done.stdout + done.stderr).strip().rpartition("\n")[2][:_LONGEST_LINE]
        printed = f" and printed {last_line!r}" if last_line else ""
        ending = describe_ending(done.code, limit_s)
        problem = f"{python} is not a working Python: it {ending}{printed}"
        hint = f"try `{python} -c 'import sys'`" if is_passing else ""
        return replace(_unusable(toolchain, problem, hint), permanent=not is_passing)
    if tuple(map(int, interpreter.version.split(".")[:2])) >= OLDEST:
        return InterpreterCheck(interpreter)
    needed = ".".join(map(str, OLDEST))
    return _unusable(
        toolchain, f"{python} is Python {interpreter.version}, but {needed} or newer is needed"
    )


def _unusable(toolchain: Toolchain, problem: str, hint: str = "") -> InterpreterCheck:
    name = toolchain.name
    hint = hint or (
        f"set toolchains.{name}.python in configs/project.yaml,"
        f" or {override_variable(name)} on this machine"
    )
    return InterpreterCheck(None, f"the toolchain {name} cannot be used: {problem}", hint)
