"""Programs of ours that doit starts with ``python -m``, forked from a doit of the tests.

Importing onnx takes longer than their answers. A fork is a separate process as well, with its
arguments, environment, folder and streams.
"""

import contextlib
import importlib
import json
import os
import runpy
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence

from buildsys.system import processes

INSPECTION, DOCTOR = "buildsys.onnx_graphs.inspection", "buildsys.doctor"
LIBRARIES = {INSPECTION: f"{INSPECTION}.__main__", DOCTOR: DOCTOR}
_start_new = processes.run_python


def fork_modules() -> None:
    """Import what these programs import, and fork them in this process and its forks."""
    for module in LIBRARIES.values():
        importlib.import_module(module)
    for module in list(sys.modules.values()):
        if getattr(module, "run_python", None) is _start_new:
            module.run_python = run_python  # type: ignore[attr-defined]


def run_python(
    arguments: Sequence[str],
    request: object = None,
    *,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
    limit_s: float | None = None,
) -> processes.ChildResult:
    """Run a program as ``buildsys.system.processes.run_python`` does."""
    option, module, *rest = *arguments, ""
    if python != sys.executable or option != "-m" or module not in LIBRARIES:
        return _start_new(
            arguments, request, python=python, environment=environment, limit_s=limit_s
        )
    with contextlib.ExitStack() as files:
        given, out, err = (files.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        given.write(json.dumps(request).encode() if request is not None else b"")
        given.seek(0)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        pid = os.fork()
        if pid == 0:
            for number, file in enumerate((given, out, err)):
                os.dup2(file.fileno(), number)
            _run(module, rest[:-1], processes.package_environment(environment))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        printed = []
        for file in (out, err):
            file.seek(0)
            printed.append(file.read().decode(errors="replace"))
    return processes.ChildResult(code, *printed)


def _run(module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    code: object = 1
    try:
        sys.stdin = os.fdopen(0, closefd=False)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(tempfile.gettempdir())
        sys.argv = [module, *arguments]
        sys.path[0] = tempfile.gettempdir()
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code if isinstance(code, int) else 1)
