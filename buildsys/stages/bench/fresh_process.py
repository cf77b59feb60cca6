"""Fresh processes in which ``load_engine`` loads an engine, as its users do."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from buildsys.system.backend_registry import link_packages
from buildsys.system.processes import run_program
from buildsys.system.toolchains import this_interpreter
from buildsys.workers.job import Job


@contextmanager
def fresh_processes(job: Job, module: str) -> Iterator[Callable[[object, float], dict[str, Any]]]:
    """Yield a function that has ``main`` of a module answer a request, within seconds.

    It runs in the engine's interpreter, and ends with this process. Without an answer there is only
    a ``problem``.
    """
    toolchain = job.toolchain or this_interpreter()
    # our packages come last on the path, so that they hide none of the interpreter's
    program = (
        "import sys; sys.path.append(sys.argv.pop(1));"
        " from buildsys.system.processes import end_with_parent; end_with_parent(int(sys.argv[1]));"
        f" from {module} import main; main()"
    )
    with TemporaryDirectory(dir=job.outputs["result"].parent) as folder:
        packages = str(link_packages(Path(folder)))
        command = [str(toolchain.python), "-c", program, packages, str(os.getpid())]

        def ask(request: object, limit_s: float) -> dict[str, Any]:
            done = run_program(command, toolchain.environment(os.environ), request, limit_s)
            try:
                answer: dict[str, Any] = done.json()
            except ValueError:
                answer = {"problem": done.problem}
            if "problem" in answer:
                sys.stderr.write(done.stderr)
            return answer

        yield ask
