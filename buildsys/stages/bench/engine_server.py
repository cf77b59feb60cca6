"""Timing server in a toolchain's interpreter, the counterpart of ``remote_engine``.

Requests are JSON lines on stdin, ``{"do": "load" | "bind" | "facts" | "block", …}``. Each gets one
line on stdout: ``{"ok": …}`` or ``{"error": {"kind", "problem", "hint"}}``. The process ends with
stdin. All other output to stdout, also from C++ libraries, goes to stderr, the target's log. Needs
Python 3.10, numpy and the engine's own library.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from buildsys.backends.interface import OperatorUse
from buildsys.backends.measurement.contenders import Contender
from buildsys.backends.measurement.gpu import GpuTiming
from buildsys.errors import StageError, Unavailable
from buildsys.stages.bench.local_engine import LocalEngine
from buildsys.system.interpreters.toolchain import Toolchain
from buildsys.system.processes import die_with_parent
from buildsys.workers.result_file import loaded_versions

Message = Mapping[str, Any]


class EngineServer:
    """One loaded engine and its bound contenders."""

    def __init__(self) -> None:
        self._engine: LocalEngine | None = None
        self._contenders: dict[str, Contender] = {}

    def answer(self, request: Message) -> dict[str, Any]:
        """Return the answer to a request; expected failures are answers too."""
        try:
            return {"ok": self._answer(request)}
        except StageError as error:
            kind = "unavailable" if isinstance(error, Unavailable) else "error"
            if kind == "error":
                traceback.print_exc()
            return {"error": {"kind": kind, "problem": error.problem, "hint": error.hint}}

    def close(self) -> None:
        """Close the engine."""
        if self._engine is not None:
            self._engine.close()

    def _answer(self, request: Message) -> Any:
        if request["do"] == "load":
            return self._load(request)
        if self._engine is None:
            raise StageError("no engine is loaded")
        if request["do"] == "facts":
            return self._engine.facts()
        if request["do"] == "bind":
            gpu = request["timing"]
            timing = GpuTiming(**{**gpu, "cuda_graph": tuple(gpu["cuda_graph"])}) if gpu else None
            self._contenders = self._engine.bind(Path(request["case"]), timing)
            return list(self._contenders)
        contender = self._contenders[request["contender"]]
        return vars(contender.block(request["at_least_s"], request["at_least_runs"]))

    def _load(self, request: Message) -> dict[str, Any]:
        uses = tuple(
            OperatorUse(use["op"], use["kind"], Path(use["path"]), Path(use["project"]))
            for use in request["operators"]
        )
        toolchain = Toolchain(request["toolchain"], Path(request["python"]), {})
        self._engine = LocalEngine(
            request["backend"], Path(request["engine"]), request["options"], uses, toolchain
        )
        return {"device": self._engine.device, "versions": loaded_versions()}


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until the end of ``requests``."""
    server = EngineServer()
    try:
        for line in requests:
            answers.write(json.dumps(server.answer(json.loads(line))).encode() + b"\n")
            answers.flush()
    finally:
        server.close()


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
