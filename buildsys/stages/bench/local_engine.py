"""A loaded engine in this process, and a server that times it for another interpreter.

``remote_engine`` starts the server in a toolchain's interpreter (Python 3.10, numpy and the
engine's library). Requests are JSON lines on stdin, ``{"do": "load" | "bind" | "facts" | "block" |
"layers", …}``. Each gets one line on stdout: ``{"ok": …}`` or ``{"error": {"kind", "problem",
"hint"}}``. The process ends with stdin. All other output to stdout, also from C++ libraries, goes
to stderr, the target's log.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from buildsys.backends.cuda_gpus import find_driver, pci_bus_id
from buildsys.backends.interface import Figures, OperatorUse, Options, Session, load_backend
from buildsys.backends.measurement import ENGINE, Contender, GpuSession, GpuTiming, LocalCall
from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.tensors import load_case
from buildsys.system.backend_registry import describe_backend
from buildsys.system.processes import die_with_parent
from buildsys.system.toolchains import Toolchain
from buildsys.workers.result_file import loaded_versions

if TYPE_CHECKING:
    from buildsys.backends.cuda_device import Device


class LocalEngine:
    """An engine in this process.

    Raises: Unavailable: it cannot run here.
    """

    def __init__(
        self,
        name: str,
        engine: Path,
        options: Options,
        uses: tuple[OperatorUse, ...],
        toolchain: Toolchain | None = None,
    ) -> None:
        """Load an engine in this interpreter's ``toolchain``."""
        self._backend = load_backend(name, toolchain, options.get("unusable", ""), to_run=True)
        self._loaded_from = engine, options, uses
        self.device = self._backend.device(options)
        self.versions: Mapping[str, str] = {}  # libraries in another process
        self.processes: tuple[int, ...] = ()  # IDs of other processes
        self._gpu: Device | None = None
        self._taken_bytes = 0  # by free GPU memory before and after
        with ExitStack() as stack:
            if self.device["kind"] == "gpu" and find_driver().gpus:
                from buildsys.backends.cuda_device import Device  # needs cuda-bindings

                self._gpu = stack.enter_context(closing(Device(0)))
            with self._record_memory():
                self._session: Session = self._backend.load(engine, options, uses)
            stack.callback(self._session.close)
            self._stack = stack.pop_all()

    def bind(self, case: Path, timing: GpuTiming | None) -> dict[str, Contender]:
        """Bind the engine's contenders on the golden inputs of ``case``.

        Only those of the last call may be used. ``timing`` is None for an engine on a CPU.
        """
        inputs = load_case(case).inputs
        with self._record_memory():
            if timing is not None and isinstance(self._session, GpuSession):
                return self._session.contenders(inputs, timing)
            return {ENGINE: LocalCall(self._session.bind(inputs))}

    def facts(self) -> Figures:
        """Report the GPU and its memory use while contenders are bound."""
        if self._gpu is None:
            return {}
        described = self._session.memory_figures() if isinstance(self._session, GpuSession) else {}
        return {
            "pci_bus_id": pci_bus_id(self._gpu.index),
            **described,
            "memory_taken_bytes": self._taken_bytes,
        }

    def slowest_layers(self, case: Path) -> list[Figures]:
        """Time the slowest layers on inputs of ``case``, in a new session.

        The timed one is closed before.
        """
        self.close()
        measure = getattr(self._backend, "slowest_layers", None)  # else ``describe`` has them
        return measure(*self._loaded_from, load_case(case).inputs) if measure else []

    def close(self) -> None:
        """Release the session and the GPU."""
        self._stack.close()

    @contextmanager
    def _record_memory(self) -> Iterator[None]:
        before = self._free_bytes()
        yield
        self._taken_bytes += before - self._free_bytes()

    def _free_bytes(self) -> int:
        if self._gpu is None:
            return 0
        with self._gpu.current():
            return self._gpu.memory()[0]


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
