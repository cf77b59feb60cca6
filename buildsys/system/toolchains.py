"""Toolchains: Python interpreters with their own libraries, their versions and problems.

Each library is imported in a process of its own: some crash or hang.
"""

import json
import os
import platform
import re
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from buildsys.errors import StageError, Unavailable

OVERRIDE_PREFIX = "BUILDSYS_TOOLCHAIN_"
LIMIT_VARIABLE = "BUILDSYS_INTERPRETER_LIMIT"
OLDEST = (3, 10)
_DEFAULT_LIMIT_S = 30.0
_CONCURRENT_IMPORTS = 4
_LONGEST_LINE = 160  # characters
# variables of our interpreter that would change the modules another one finds
_INTERPRETER_VARIABLES = (
    "PYTHONEXECUTABLE", "PYTHONHOME", "PYTHONPATH", "PYTHONPLATLIBDIR", "PYTHONSTARTUP",
    "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "__PYVENV_LAUNCHER__",
)  # fmt: skip
_PREFIX = "{prefix}"  # in a variable's value: the root folder of the interpreter's environment

_INTERPRETER_SCRIPT = """
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
_LIBRARY_SCRIPT = """
import gc, json, os, sys

def installed(name):
    try:
        from importlib import metadata
        return metadata.version(name)
    except Exception:
        return ""

def describe(name):
    answer = {}
    try:
        module = __import__(name)
        answer["version"] = str(getattr(module, "__version__", "") or installed(name))
        answer["file"] = str(getattr(module, "__file__", ""))
    except Exception as error:
        if isinstance(error, ImportError) and getattr(error, "name", None) == name:
            answer["missing"] = True
        answer["problem"] = "%s: %s" % (type(error).__name__, error)
        return answer
    if name == "onnxruntime":
        answer["providers"] = list(module.get_available_providers())
    if name in ("tensorrt", "tensorrt_rtx"):
        try:
            answer["builder"] = bool(module.Builder(module.Logger(module.Logger.ERROR)))
        except Exception as error:
            answer["builder"] = False
            problem = str(error).split("\\n")[0]
            answer["builder_problem"] = "%s: %s" % (type(error).__name__, problem)
    if name == "torch":
        answer["cuda"] = module.version.cuda
    return answer

gc.disable()  # collections take a fifth of importing torch
if sys.argv[1] == "onnxsim":
    # onnxsim imports them for seconds without needing them here
    sys.modules["torch"] = sys.modules["sympy"] = None
sys.path[:] = [entry for entry in sys.path if entry]
answer = json.dumps(describe(sys.argv[1]))
print("\\n" + answer)
sys.stdout.flush()
os._exit(0)
"""


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


def this_interpreter() -> Toolchain:
    """Return the toolchain of work without another one."""
    return Toolchain("default", Path(sys.executable), {})


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


_interpreters: dict[tuple[Path, str], Interpreter | StageError] = {}  # of this process
_probing = threading.Lock()


def find_interpreter(toolchain: Toolchain) -> Interpreter:
    """Describe a toolchain's interpreter, which is started once per process.

    Raises: Unavailable: it is not usable. StageError: it hangs or crashes; another attempt may
    succeed.
    """
    python = toolchain.python
    if not python.is_absolute():
        raise _unusable(toolchain, f"there is no program {python} on PATH")
    if not python.is_file():
        raise _unusable(toolchain, f"there is no {python}")
    environment = toolchain.environment(os.environ)
    name = python, json.dumps([toolchain.name, environment], sort_keys=True)
    with _probing:  # threads that need the same interpreter wait for one probe
        if name not in _interpreters:
            _interpreters[name] = _probe(toolchain, environment)
    interpreter = _interpreters[name]
    if isinstance(interpreter, StageError):
        raise type(interpreter)(interpreter.problem, interpreter.hint)
    return interpreter


def require_interpreter(toolchain: Toolchain) -> Interpreter:
    """Describe the interpreter of a toolchain that can run stages.

    Raises: Unavailable: it cannot. StageError: it hangs or crashes.
    """
    interpreter = find_interpreter(toolchain)
    if not interpreter.finds("numpy"):
        problem = f"the toolchain {toolchain.name} has no numpy"
        raise Unavailable(problem, f"{toolchain.pip} numpy")
    return interpreter


def _probe(toolchain: Toolchain, environment: Mapping[str, str]) -> Interpreter | StageError:
    python = toolchain.python
    fields, problem, code = _ask(python, environment, _INTERPRETER_SCRIPT)
    if problem:
        problem = f"{python} is not a working Python: it {problem}"
    else:
        interpreter = Interpreter(**{**fields, "path": tuple(fields["path"])})
        if tuple(map(int, interpreter.version.split(".")[:2])) >= OLDEST:
            return interpreter
        needed = ".".join(map(str, OLDEST))
        problem = f"{python} is Python {interpreter.version}, but {needed} or newer is needed"
    error = _unusable(toolchain, problem)
    if code is None or code < 0:
        return StageError(error.problem, f"try `{python} -c 'import sys'`")
    return error


def _unusable(toolchain: Toolchain, problem: str) -> Unavailable:
    name = toolchain.name
    hint = (
        f"set toolchains.{name}.python in project.yaml,"
        f" or {override_variable(name)} on this machine"
    )
    return Unavailable(f"the toolchain {name} cannot be used: {problem}", hint)


def _ask(
    python: Path, environment: Mapping[str, str], *arguments: str
) -> tuple[dict[str, Any], str, int | None]:
    """Run a script; return its answer, or a predicate, with its exit code (None: it hung)."""
    # slow to import
    from buildsys.system.processes import describe_exit, run_program, time_limit_s

    limit_s = time_limit_s(os.environ, LIMIT_VARIABLE, _DEFAULT_LIMIT_S)
    try:
        done = run_program([str(python), "-c", *arguments], environment, limit_s=limit_s)
    except OSError as error:
        return {}, f"cannot be started: {error.strerror}", 1
    try:
        return dict(done.json()), "", 0
    except (ValueError, TypeError):
        last_line = (done.stdout + done.stderr).strip().rpartition("\n")[2][:_LONGEST_LINE]
    ending = f"did not respond within {limit_s:g} s ({LIMIT_VARIABLE} allows more)"
    ending = ending if done.code is None else describe_exit(done.code)
    printed = f" and printed {last_line!r}" if last_line else ""
    return {}, f"{ending}{printed}", done.code


@dataclass(frozen=True)
class Library:
    """A library in an interpreter, as seen by importing it there."""

    name: str
    version: str = ""
    missing: bool = False
    problem: str = ""  # why an installed library cannot be imported
    facts: Mapping[str, Any] | None = None  # e.g. the execution providers of onnxruntime
    timed_out: bool = False  # it did not answer: nothing is known

    @property
    def is_usable(self) -> bool:
        """Check whether the library can be imported."""
        return not self.missing and not self.problem


def check_libraries(
    python: Path, names: Iterable[str], environment: Mapping[str, str]
) -> dict[str, Library]:
    """Import each library in a separate process."""
    from concurrent.futures import ThreadPoolExecutor

    def check(name: str) -> Library:
        facts, problem, code = _ask(python, environment, _LIBRARY_SCRIPT, name)
        if problem:
            return Library(name, problem=f"its import {problem}", timed_out=code is None)
        version, missing = str(facts.pop("version", "")), bool(facts.pop("missing", False))
        problem = str(facts.pop("problem", ""))
        return Library(name, version, missing, "" if missing else problem, facts)

    distinct = list(dict.fromkeys(names))
    with ThreadPoolExecutor(_CONCURRENT_IMPORTS) as threads:
        return dict(zip(distinct, threads.map(check, distinct), strict=True))
