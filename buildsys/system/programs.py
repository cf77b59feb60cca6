"""Other programs: their paths, environment and probes; graphviz."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from buildsys.errors import StageError, Unavailable, WorkerDied
from buildsys.system.devices import NONE, gpu_facts
from buildsys.system.files import TextCache, shortened_for_key
from buildsys.system.processes import describe_exit
from buildsys.system.toolchains import Toolchain
from buildsys.system.versions import ABSENT, tool_versions

_DOT_TIMEOUT_S = 60
_PYTHON = ("python", "python3")  # the toolchain's, whatever is first on PATH
# variables of a machine that let programs start; a result may only depend on declared ones
_OF_THE_MACHINE = (
    "PATH", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
)  # fmt: skip
_TIMEOUT_S = 20
_LONGEST_TEXT = 2000  # characters that are shown; a digest stands for the others


def interpreter_of(toolchain: Toolchain | None) -> Path:
    """Return the Python interpreter of a toolchain, or our own."""
    return toolchain.python if toolchain is not None else Path(sys.executable)


def program_environment(
    toolchain: Toolchain | None, base: Mapping[str, str], folder: Path
) -> dict[str, str]:
    """Make a program's environment, with ``folder`` as home and temporary folder.

    The programs of the toolchain come first on PATH.
    """
    variables = {name: base[name] for name in _OF_THE_MACHINE if name in base}
    own = str(interpreter_of(toolchain).parent)
    path = os.pathsep.join(filter(None, (own, variables.get("PATH", os.defpath))))
    added = toolchain.env if toolchain is not None else {}
    return {**variables, "HOME": str(folder), "TMPDIR": str(folder), "PATH": path, **added}


def find_program(
    name: str, toolchain: Toolchain | None, environment: Mapping[str, str]
) -> str | None:
    """Find the path of a program; None without one."""
    if name in _PYTHON:
        return str(interpreter_of(toolchain))
    return name if "/" in name else shutil.which(name, path=environment.get("PATH"))


def missing_requirement(
    toolchain: Toolchain | None, distributions: Sequence[str], *, on_gpu: bool, remedy: str = ""
) -> tuple[str, str] | None:
    """Find a missing interpreter, distribution or GPU, and the remedy.

    ``remedy`` installs the distributions.
    """
    python = interpreter_of(toolchain)
    if toolchain is not None and not python.exists():
        problem = f"there is no {python}, the interpreter of the toolchain {toolchain.name}"
        return problem, f"create it, or correct toolchains.{toolchain.name}.python"
    versions = tool_versions(distributions, toolchain)
    if missing := [name for name in distributions if versions[name] == ABSENT]:
        where = f" in the toolchain {toolchain.name}" if toolchain is not None else ""
        verb = "is" if len(missing) == 1 else "are"
        problem = f"{' and '.join(missing)} {verb} not installed{where}"
        return problem, remedy or f"{python} -m pip install {' '.join(missing)}"
    if on_gpu and gpu_facts()["gpu.name"] == NONE:
        return "there is no NVIDIA GPU here", "run it on a machine with one"
    return None


def probe(arguments: Sequence[str], toolchain: Toolchain | None, texts: TextCache) -> str:
    """Record what a command prints, such as ``trtexec --version``, or ``absent``.

    It runs once per state of its program.
    Raises: StageError: it does not answer.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = program_environment(toolchain, os.environ, Path(folder))
        program = find_program(arguments[0], toolchain, environment)
        if program is None or not os.path.isfile(program):  # noqa: PTH113
            return ABSENT
        status = os.stat(program)  # noqa: PTH116
        state = [program, status.st_mtime_ns, status.st_size, status.st_ino, *arguments[1:]]
        variables = sorted(toolchain.env.items()) if toolchain is not None else []
        cached = f"probe/2:{json.dumps([state, variables])}"
        remembered = texts.get(cached)
        if remembered is not None:
            return remembered
        try:
            done = subprocess.run(
                [program, *arguments[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=_TIMEOUT_S, env=environment, cwd=folder,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            # without its text, a key would not identify the program
            problem = f"{shlex.join(arguments)} did not answer within {_TIMEOUT_S} s"
            raise StageError(problem, "try again when this machine is idle") from None
        except OSError as error:
            return f"cannot run: {error.strerror}"
        failed = f"exit code {done.returncode}: " if done.returncode else ""
        printed = done.stdout.decode(errors="replace").strip()[:_LONGEST_TEXT]
        text = failed + shortened_for_key(printed, done.stdout)
        texts.set(cached, text)
        return text


def call_program(
    words: Sequence[str],
    hint: str,
    text: str = "",
    environment: Mapping[str, str] | None = None,
    limit_s: float | None = None,
) -> str:
    """Return what a program prints.

    Raises: StageError: it is missing, fails or exceeds its limit. WorkerDied: it was killed.
    """
    try:
        done = subprocess.run(
            words, input=text, capture_output=True, encoding="utf-8", errors="replace",
            check=False, env=environment, timeout=limit_s,
        )  # fmt: skip
    except OSError as error:
        raise StageError(f"cannot start {words[0]}: {error.strerror}", hint) from error
    except subprocess.TimeoutExpired:
        raise StageError(f"{words[0]} did not end within {limit_s} s", hint) from None
    if done.returncode < 0:
        raise WorkerDied(f"{words[0]} {describe_exit(done.returncode)}", "run it again")
    if done.returncode:
        problem = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise StageError(f"{words[0]}: {problem}", hint)
    return done.stdout


def require_dot() -> str:
    """Find the program. Raises: Unavailable: graphviz is not installed."""
    program = find_program("dot", None, program_environment(None, os.environ, Path()))
    if program is None:
        hint = "`apt-get install graphviz` or `brew install graphviz` installs it"
        raise Unavailable("graphviz is not installed, whose program dot draws graphs", hint)
    return program


def render_svg(dot: str) -> str:
    """Draw a graph as SVG.

    Raises: Unavailable: graphviz is not installed. StageError: it cannot draw this graph.
    WorkerDied: it was killed.
    """
    environment = program_environment(None, os.environ, Path(tempfile.gettempdir()))
    hint = "draw a part of it"
    return call_program([require_dot(), "-Tsvg"], hint, dot, environment, _DOT_TIMEOUT_S)
