"""Libraries of an interpreter, each imported in a process of its own: some crash or hang."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildsys.system.processes import run_program
from buildsys.system.toolchains import describe_ending

_CONCURRENT_IMPORTS = 4
_LONGEST_LINE = 160  # characters
_SCRIPT = """
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
    """Import each library in a separate process."""

    def check(name: str) -> Library:
        try:
            done = run_program([str(python), "-c", _SCRIPT, name], environment, limit_s=limit_s)
        except OSError as error:
            return Library(name, problem=f"{python} cannot be started: {error.strerror}")
        try:
            facts = dict(done.json())
        except (ValueError, TypeError):
            line = (done.stdout + done.stderr).strip().rpartition("\n")[2][:_LONGEST_LINE]
            printed = f": {line}" if line and done.code is not None and done.code >= 0 else ""
            ending = describe_ending(done.code, limit_s)
            problem = f"the interpreter {ending} on import{printed}"
            return Library(name, problem=problem, timed_out=done.code is None)
        version, missing = str(facts.pop("version", "")), bool(facts.pop("missing", False))
        problem = str(facts.pop("problem", ""))
        return Library(name, version, missing, "" if missing else problem, facts)

    distinct = list(dict.fromkeys(names))
    with ThreadPoolExecutor(_CONCURRENT_IMPORTS) as threads:
        return dict(zip(distinct, threads.map(check, distinct), strict=True))
