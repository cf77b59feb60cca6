"""The program of a peer: times an engine for a bench stage that runs in another interpreter.

Requests come as JSON lines on stdin, ``{"do": "load" | "bind" | "facts" | "block", …}``; each is answered with one line
on stdout, ``{"ok": …}`` or ``{"error": {"kind", "problem", "hint"}}``. At the end of stdin the process ends. Whatever
else is written to stdout, by libraries in C++ too, goes to stderr, which is the target's log. Runs on Python 3.10 with
numpy and the engine's own library.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
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


class Service:
    """One engine, and what was asked of it."""

    def __init__(self) -> None:
        self._engine: LocalEngine | None = None
        self._contenders: dict[str, Contender] = {}
        self._answers: dict[str, Callable[[Message], Any]] = {
            "load": self._load,
            "bind": self._bind,
            "facts": lambda _: self._loaded().facts(),
            "block": self._block,
        }

    def answer(self, request: Message) -> dict[str, Any]:
        """Return what a request is answered with. An expected failure is an answer too."""
        try:
            return {"ok": self._answers[request["do"]](request)}
        except Unavailable as reason:
            return _failure("unavailable", reason)
        except StageError as error:
            traceback.print_exc()
            return _failure("error", error)

    def close(self) -> None:
        """Give back the engine."""
        if self._engine is not None:
            self._engine.close()

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

    def _bind(self, request: Message) -> list[str]:
        asked = request["timing"]
        timing = (
            None
            if asked is None
            else GpuTiming(**{**asked, "cuda_graph": tuple(asked["cuda_graph"])})
        )
        self._contenders = self._loaded().bind(Path(request["case"]), timing)
        return list(self._contenders)

    def _block(self, request: Message) -> dict[str, Any]:
        return vars(
            self._contenders[request["contender"]].block(
                request["at_least_s"], request["at_least_runs"]
            )
        )

    def _loaded(self) -> LocalEngine:
        if self._engine is None:
            raise StageError("no engine is loaded")
        return self._engine


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more."""
    service = Service()
    try:
        for line in requests:
            answers.write(json.dumps(service.answer(json.loads(line))).encode() + b"\n")
            answers.flush()
    finally:
        service.close()


def main() -> None:
    """Serve the process that started this one, whose number is the first argument; the second is the project."""
    parent, project = int(sys.argv[1]), sys.argv[2]
    if os.getppid() == parent:  # else a script lies between, and the end of stdin must do
        die_with_parent(parent, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.chdir(project)
    with answers:
        serve(sys.stdin.buffer, answers)


def _failure(kind: str, error: StageError) -> dict[str, Any]:
    return {"error": {"kind": kind, "problem": error.problem, "hint": error.hint}}
