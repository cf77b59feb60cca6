"""An engine that another process times, in another interpreter: the bench stage's end of ``timing.serve``."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import buildsys
from buildsys.backends.interface import Figures, OperatorUse, Options
from buildsys.backends.measurement.contenders import Contender, Samples
from buildsys.backends.measurement.gpu import GpuTiming
from buildsys.errors import StageError, Unavailable
from buildsys.stages.bench import engine_server  # so that its code counts for who starts it
from buildsys.system.interpreters.toolchain import Toolchain
from buildsys.system.processes import describe_exit

# our own package comes last on the path: what lies beside it may be the libraries of another interpreter
_PROGRAM = f"import sys; sys.path.append(sys.argv.pop(1)); from {engine_server.__name__} import main; main()"
_ANSWER_LIMIT_S = 600.0  # a large engine is read from a slow disk, and its memory filled
_BLOCK_LIMIT_S = 60.0  # beside ten times what a block should take, by those before it
_END_LIMIT_S = 10.0
_LOG = "what it wrote is in this target's log"
_SHOWN = 200  # characters of what is no answer


class PeerEngine:
    """An engine in another process, which ends with this one. Its output goes where this process's stderr goes.

    Raises: Unavailable: the engine cannot run there. StageError: the process cannot be started, or ended.
    """

    def __init__(
        self,
        toolchain: Toolchain,
        backend: str,
        engine: Path,
        options: Options,
        uses: Sequence[OperatorUse],
        *,
        project: Path,
        folder: Path,
    ) -> None:
        """Start the process in ``folder``, where no module lies, and load the engine there."""
        self._toolchain = toolchain
        self._process = _start(toolchain, project, folder)
        self.processes: tuple[int, ...] = (self._process.pid,)
        self._rest = b""
        operators = [
            {"op": u.op, "kind": u.kind, "path": str(u.path), "project": str(u.project)}
            for u in uses
        ]
        load = {
            "do": "load", "backend": backend, "engine": str(engine), "options": options, "operators": operators,
            "toolchain": toolchain.name, "python": str(toolchain.python),
        }  # fmt: skip
        try:
            loaded = self.ask(load, "loaded the engine")
            self.device: Figures = loaded["device"]
            self.versions: Mapping[str, str] = loaded["versions"]
        except BaseException:
            self.close()
            raise

    def bind(self, case: Path, timing: GpuTiming | None) -> dict[str, Contender]:
        """Return the contenders of the engine on the golden inputs of ``case``."""
        asked = {
            "do": "bind",
            "case": str(case),
            "timing": None if timing is None else asdict(timing),
        }
        return {name: _PeerContender(self, name) for name in self.ask(asked, "took the inputs")}

    def facts(self) -> Figures:
        """Return what is known while contenders are bound."""
        facts: Figures = self.ask({"do": "facts"}, "told its facts")
        return facts

    def close(self) -> None:
        """End the process: by itself, or where it does not, by force."""
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(
                    BrokenPipeError
                ):  # it has ended already, and its last request was not read
                    pipe.close()
        try:
            process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def ask(self, request: Mapping[str, Any], doing: str, limit_s: float = _ANSWER_LIMIT_S) -> Any:
        """Return the answer to a request.

        Raises: StageError: the process ended, does not answer within ``limit_s``, or answers with something else.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._died(doing)
        line = self._line(doing, limit_s)
        try:
            answer = json.loads(line)
            failure = answer.get("error")
            if failure is None:
                return answer["ok"]
            kind = Unavailable if failure["kind"] == "unavailable" else StageError
            raise kind(failure["problem"], failure["hint"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._process.kill()
            shown = line.decode(errors="replace").strip()[:_SHOWN]
            problem = f"{self._who()} wrote {shown!r} instead of an answer while it {doing}"
            raise StageError(
                problem, "its interpreter must write nothing of its own to stdout"
            ) from error

    def _line(self, doing: str, limit_s: float) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._rest:
            ready, _, _ = select.select(
                [self._process.stdout], [], [], max(0.0, deadline - time.monotonic())
            )
            if not ready:
                self._process.kill()
                raise StageError(
                    f"{self._who()} gave no answer for {limit_s:.0f} s while it {doing}", _LOG
                )
            piece = os.read(self._process.stdout.fileno(), 1 << 20)
            if not piece:
                self._died(doing)
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _died(self, doing: str) -> NoReturn:
        try:
            code: int | None = self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
        raise StageError(f"{self._who()} {describe_exit(code)} while it {doing}", _LOG)

    def _who(self) -> str:
        return f"the process that times the engine (toolchain {self._toolchain.name}, {self._toolchain.python})"


class _PeerContender:
    """A contender that a peer runs."""

    def __init__(self, peer: PeerEngine, name: str) -> None:
        self._peer = peer
        self._name = name
        self._slowest_s: float | None = None  # inference of the last block

    def block(self, at_least_s: float, at_least_runs: int) -> Samples:
        """Return what the peer measures: the time of its answer is not in it."""
        asked = {
            "do": "block",
            "contender": self._name,
            "at_least_s": at_least_s,
            "at_least_runs": at_least_runs,
        }
        limit_s = _ANSWER_LIMIT_S
        if self._slowest_s is not None:
            limit_s = _BLOCK_LIMIT_S + 10 * max(at_least_s, 2 * at_least_runs * self._slowest_s)
        samples = Samples(**self._peer.ask(asked, f"timed {self._name}", limit_s))
        self._slowest_s = max(samples.wall_ns) / 1e9
        return samples


def _start(toolchain: Toolchain, project: Path, folder: Path) -> subprocess.Popen[bytes]:
    root = str(Path(buildsys.__file__).parents[1])
    command = [str(toolchain.python), "-c", _PROGRAM, root, str(os.getpid()), str(project)]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env=toolchain.environment(os.environ),
        )
    except OSError as error:
        raise StageError(
            f"the interpreter of the toolchain {toolchain.name} cannot be started: {toolchain.python}:"
            f" {(error.strerror or str(error)).lower()}"
        ) from error
