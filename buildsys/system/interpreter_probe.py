"""Short scripts run by another interpreter to describe itself.

A script writes JSON to a file (``argv[1]``), so nothing printed by ``sitecustomize`` or a library
is mistaken for the result.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildsys.errors import UsageError
from buildsys.system.processes import describe_exit, kill_group, time_limit_s

LIMIT_VARIABLE = "BUILDSYS_INTERPRETER_LIMIT"
_DEFAULT_LIMIT_S = 30.0
_KEPT_OUTPUT = 4000  # characters
_CONCURRENT_IMPORTS = 4

# Any Python since 2.7 must be able to parse these scripts.
INTERPRETER_SCRIPT = """
import json, os, platform, sys
answer = {
    "implementation": platform.python_implementation(),
    "version": platform.python_version(),
    "full_version": sys.version,
    "prefix": sys.prefix,
    "standard": os.path.dirname(os.__file__),
    "path": [entry for entry in sys.path if entry],
    "pid": os.getpid(),
}
with open(sys.argv[1], "w") as file:
    file.write(json.dumps(answer))
"""

LIBRARY_SCRIPT = """
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
if sys.argv[2] == "onnxsim":
    # onnxsim imports them for seconds without needing them here
    sys.modules["torch"] = sys.modules["sympy"] = None
sys.path[:] = [entry for entry in sys.path if entry]
with open(sys.argv[1], "w") as file:
    file.write(json.dumps(describe(sys.argv[2])))
os._exit(0)
"""


@dataclass(frozen=True)
class ProbeResult:
    """The result of a script, or the end of its process."""

    fields: Mapping[str, Any] | None
    ending: str = ""  # without a result, e.g. "exited with code 1 without a result"
    output: str = ""  # the last characters it printed
    timed_out: bool = False
    crashed: bool = False
    pid: int = 0

    @property
    def last_line(self) -> str:
        """The last printed line, shortened and without control characters."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        text = "".join(c if c.isprintable() else "�" for c in (lines or [""])[-1])
        return text if len(text) <= 160 else f"{text[:157]}…"


def probe_limit_s(environment: Mapping[str, str]) -> float:
    """Parse the time limit of a probe.

    Raises: UsageError: BUILDSYS_INTERPRETER_LIMIT is not a duration.
    """
    hint = "write 30, 30s or 2min"
    limit_s = time_limit_s(environment, LIMIT_VARIABLE, _DEFAULT_LIMIT_S, hint)
    if not limit_s:
        raise UsageError(f"{LIMIT_VARIABLE}={environment[LIMIT_VARIABLE]} is not a duration", hint)
    return limit_s


def run_probe(
    python: Path,
    script: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    limit_s: float,
) -> ProbeResult:
    """Run a script in an interpreter, and kill everything it started.

    Raises: OSError: the program cannot be started.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        answer = Path(folder, "answer.json")
        process = subprocess.Popen(
            [str(python), "-c", script, str(answer), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",  # a project may contain its own json.py
            env=dict(environment),
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            kill_group(process.pid)
            process.wait()
        output.seek(0)
        printed = output.read()[-_KEPT_OUTPUT:].decode(errors="replace")
        if code is None:
            ending = f"did not respond within {limit_s:g} s ({LIMIT_VARIABLE} allows more)"
            return ProbeResult(None, ending, printed, timed_out=True)
        with contextlib.suppress(OSError, ValueError):
            fields = json.loads(answer.read_bytes())
            if isinstance(fields, dict):
                return ProbeResult(fields, output=printed, pid=process.pid)
    return ProbeResult(None, describe_exit(code), printed, crashed=code < 0)


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
    python: Path, names: Iterable[str], environment: Mapping[str, str], limit_s: float
) -> dict[str, Library]:
    """Import each library in a separate process: some crash or hang."""

    def check(name: str) -> Library:
        try:
            result = run_probe(python, LIBRARY_SCRIPT, (name,), environment, limit_s)
        except OSError as error:
            return Library(name, problem=f"{python} cannot be started: {error.strerror}")
        if result.fields is None:
            abrupt = result.crashed or result.timed_out or not result.last_line
            printed = "" if abrupt else f": {result.last_line}"
            problem = f"the interpreter {result.ending} on import{printed}"
            return Library(name, problem=problem, timed_out=result.timed_out)
        facts = dict(result.fields)
        version, missing = str(facts.pop("version", "")), bool(facts.pop("missing", False))
        problem = str(facts.pop("problem", ""))
        return Library(name, version, missing, "" if missing else problem, facts)

    distinct = list(dict.fromkeys(names))
    with ThreadPoolExecutor(_CONCURRENT_IMPORTS) as threads:
        return dict(zip(distinct, threads.map(check, distinct), strict=True))
