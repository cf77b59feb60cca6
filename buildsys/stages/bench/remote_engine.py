"""An engine timed in a process of another interpreter: client of ``local_engine``."""

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

from buildsys.backends.interface import Figures, OperatorUse, Options
from buildsys.backends.measurement import Contender, GpuTiming, Samples
from buildsys.errors import StageError, Unavailable
from buildsys.stages.bench import local_engine  # imported so that its code is in the key
from buildsys.system.backend_registry import link_packages
from buildsys.system.processes import describe_exit
from buildsys.system.toolchains import Toolchain

# Our packages come last on the path, so that they hide none of the interpreter's.
_PROGRAM = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    f"from {local_engine.__name__} import main; main()"
)
_ANSWER_LIMIT_S = 600.0  # loading a large engine from a slow disk
_BLOCK_LIMIT_S = 60.0  # plus ten times the expected duration of a block
_END_LIMIT_S = 10.0
_LOG = "its output is in this target's log"
_SHOWN = 200  # characters of an invalid answer


class RemoteEngine:
    """An engine in a child process.

    The child ends with this process, and its output goes to this process's stderr.

    Raises: Unavailable: the engine cannot run there. StageError: the process does not start, or
    ends.
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
        """Start the process in ``folder``, free of modules, and load the engine."""
        self._who = (
            f"the process that times the engine (toolchain {toolchain.name}, {toolchain.python})"
        )
        root = str(link_packages(folder / "packages"))
        command = [str(toolchain.python), "-c", _PROGRAM, root, str(os.getpid()), str(project)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=folder,
                env=toolchain.environment(os.environ),
            )
        except OSError as error:
            raise StageError(
                f"the interpreter of the toolchain {toolchain.name} cannot be started: "
                f"{toolchain.python}: {(error.strerror or str(error)).lower()}",
                "correct toolchains in configs/project.yaml",
            ) from error
        self.processes: tuple[int, ...] = (self._process.pid,)
        self._rest = b""
        operators = [
            {
                "op": use.op,
                "kind": use.kind,
                "path": use.path and str(use.path),
                "project": str(use.project),
            }
            for use in uses
        ]
        load = {
            "do": "load", "backend": backend, "engine": str(engine), "options": options,
            "operators": operators, "toolchain": toolchain.name, "python": str(toolchain.python),
        }  # fmt: skip
        try:
            loaded = self.ask(load, "loaded the engine")
            self.device: Figures = loaded["device"]
            self.versions: Mapping[str, str] = loaded["versions"]
        except BaseException:
            self.close()
            raise

    def bind(self, case: Path, timing: GpuTiming | None) -> dict[str, Contender]:
        """Bind the contenders of the engine on the golden inputs of ``case``."""
        asked = {"do": "bind", "case": str(case), "timing": timing and asdict(timing)}
        return {name: _RemoteContender(self, name) for name in self.ask(asked, "took the inputs")}

    def facts(self) -> Figures:
        """Report facts about the GPU and its memory while contenders are bound."""
        facts: Figures = self.ask({"do": "facts"}, "reported its facts")
        return facts

    def slowest_layers(self, case: Path) -> list[Figures]:
        """Time the slowest layers; the timed session is closed before."""
        asked = {"do": "layers", "case": str(case)}
        layers: list[Figures] = self.ask(asked, "timed the engine's layers")
        return layers

    def close(self) -> None:
        """Close the pipes, wait for the process, and kill it if needed."""
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # it ended before it read its last request
                    pipe.close()
        try:
            process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def ask(self, request: Mapping[str, Any], doing: str, limit_s: float = _ANSWER_LIMIT_S) -> Any:
        """Send a request and read its answer.

        Raises: StageError: the process ended, or gave no valid answer within ``limit_s``.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._raise_ended(doing)
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
            text = line.decode(errors="replace").strip()[:_SHOWN]
            problem = f"{self._who} wrote {text!r} instead of an answer while it {doing}"
            hint = "nothing in its interpreter may write to stdout"
            raise StageError(problem, hint) from error

    def _line(self, doing: str, limit_s: float) -> bytes:
        assert self._process.stdout is not None
        pipe, deadline = self._process.stdout, time.monotonic() + limit_s
        while b"\n" not in self._rest:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self._process.kill()
                raise StageError(
                    f"{self._who} gave no answer for {limit_s:.0f} s while it {doing}", _LOG
                )
            piece = os.read(pipe.fileno(), 1 << 20)
            if not piece:
                self._raise_ended(doing)
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _raise_ended(self, doing: str) -> NoReturn:
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_END_LIMIT_S)
        raise StageError(f"{self._who} {describe_exit(code)} while it {doing}", _LOG)


class _RemoteContender:
    """A contender in the child process."""

    def __init__(self, engine: RemoteEngine, name: str) -> None:
        self._engine = engine
        self._name = name
        self._slowest_s: float | None = None  # slowest inference of the last block

    def block(self, at_least_s: float, at_least_runs: int) -> Samples:
        """Collect the child's samples; transport is not part of any of them."""
        limits = {"at_least_s": at_least_s, "at_least_runs": at_least_runs}
        asked = {"do": "block", "contender": self._name, **limits}
        limit_s = _ANSWER_LIMIT_S
        if self._slowest_s is not None:
            limit_s = _BLOCK_LIMIT_S + 10 * max(at_least_s, 2 * at_least_runs * self._slowest_s)
        samples = Samples(**self._engine.ask(asked, f"timed {self._name}", limit_s))
        self._slowest_s = max(samples.wall_ns) / 1e9
        return samples
