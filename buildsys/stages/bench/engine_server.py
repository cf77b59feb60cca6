"""Timing server in a toolchain's interpreter, the counterpart of ``remote_engine``.

Requests are JSON lines on stdin, ``{"do": "load" | "bind" | "facts" | "block" | "layers", …}``.
Each gets one line on stdout: ``{"ok": …}`` or ``{"error": {"kind", "problem", "hint"}}``. The
process ends with stdin. All other output to stdout, also from C++ libraries, goes to stderr, the
target's log. Needs Python 3.10, numpy and the engine's own library.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, BinaryIO

from buildsys.backends.interface import OperatorUse
from buildsys.backends.measurement import Contender, GpuTiming
from buildsys.errors import StageError, Unavailable
from buildsys.stages.bench.local_engine import LocalEngine
from buildsys.system.backend_registry import describe_backend
from buildsys.system.interpreters.toolchain import Toolchain
from buildsys.system.processes import die_with_parent
from buildsys.workers.result_file import loaded_versions


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until the end of ``requests``; expected failures are answers too."""
    with ExitStack() as stack:
        engine: LocalEngine | None = None
        contenders: dict[str, Contender] = {}
        for line in requests:
            request = json.loads(line)
            answer: dict[str, Any]
            try:
                if engine is None:  # the first request is "load"
                    engine = stack.enter_context(closing(_load(request)))
                    versions = loaded_versions(describe_backend(request["backend"]).module)
                    answer = {"ok": {"device": engine.device, "versions": versions}}
                elif request["do"] == "facts":
                    answer = {"ok": engine.facts()}
                elif request["do"] == "layers":
                    answer = {"ok": engine.slowest_layers(Path(request["case"]))}
                elif request["do"] == "bind":
                    gpu = request["timing"]
                    if gpu:
                        gpu = GpuTiming(**{**gpu, "cuda_graph": tuple(gpu["cuda_graph"])})
                    contenders = engine.bind(Path(request["case"]), gpu)
                    answer = {"ok": list(contenders)}
                else:
                    contender = contenders[request["contender"]]
                    samples = contender.block(request["at_least_s"], request["at_least_runs"])
                    answer = {"ok": vars(samples)}
            except StageError as error:
                kind = "unavailable" if isinstance(error, Unavailable) else "error"
                if kind == "error":
                    traceback.print_exc()
                answer = {"error": {"kind": kind, "problem": error.problem, "hint": error.hint}}
            answers.write(json.dumps(answer).encode() + b"\n")
            answers.flush()


def _load(request: Mapping[str, Any]) -> LocalEngine:
    uses = tuple(
        OperatorUse(use["op"], use["kind"], use["path"] and Path(use["path"]), Path(use["project"]))
        for use in request["operators"]
    )
    toolchain = Toolchain(request["toolchain"], Path(request["python"]), {})
    file, options = Path(request["engine"]), request["options"]
    return LocalEngine(request["backend"], file, options, uses, toolchain)


def main() -> None:
    """Serve the parent process. Arguments: its process ID and the project folder."""
    parent, project = int(sys.argv[1]), sys.argv[2]
    if os.getppid() == parent:  # else a wrapper script is the parent; rely on the end of stdin
        die_with_parent(parent, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.chdir(project)
    with answers:
        serve(sys.stdin.buffer, answers)
