"""An engine to time, in this process or in another interpreter.

A toolchain's interpreter (Python 3.10, numpy and the engine's library) runs ``main``, which loads
the engine and answers requests from a pipe: pickled tuples of plain values, as the two sides may
have different versions of Python. Everything that it prints goes to stderr, the target's log.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from buildsys.backends.cuda_gpus import find_driver, pci_bus_id
from buildsys.backends.interface import (
    DeviceSession,
    Figures,
    OperatorUse,
    Options,
    Session,
    load_backend,
)
from buildsys.backends.measurement import ENGINE, Contender, GpuTiming, LocalCall, Samples
from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.tensors import Tensor, load_case, save_tensors
from buildsys.system.backend_registry import link_packages
from buildsys.system.processes import describe_exit, end_with_parent
from buildsys.system.toolchains import Toolchain

if TYPE_CHECKING:
    from buildsys.backends.cuda_device import Device
    from buildsys.workers.job import Job

# Our packages come last on the path, so that they hide none of the interpreter's.
_PROGRAM = f"import sys; sys.path.append(sys.argv.pop(1)); from {__name__} import main; main()"
_ANSWER_LIMIT_S = 600.0  # loading a large engine from a slow disk
_END_LIMIT_S = 10.0


class LocalEngine:
    """An engine in this process. Raises: Unavailable: it cannot run here."""

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
        self.processes: tuple[int, ...] = ()  # IDs of other processes
        self._gpu: Device | None = None
        self._taken_bytes = 0  # by free GPU memory before and after
        with ExitStack() as stack:
            if self.device["kind"] == "gpu" and find_driver().gpus:
                from buildsys.backends.cuda_device import Device  # needs cuda-bindings

                self._gpu = stack.enter_context(closing(Device(0)))
            start = time.perf_counter()
            with self._record_memory():
                self._session: Session = self._backend.load(engine, options, uses)
            self._load_s = time.perf_counter() - start
            stack.callback(self._session.close)
            self._stack = stack.pop_all()

    def bind(self, case: Path, timing: GpuTiming | None) -> dict[str, Contender]:
        """Bind the engine's contenders on the golden inputs of ``case``.

        Only the contenders of the last call may be used. ``timing`` is None for an engine on a CPU.
        """
        inputs = load_case(case).inputs
        with self._record_memory():
            if timing is not None and isinstance(self._session, DeviceSession):
                return self._session.contenders(inputs, timing)
            return {ENGINE: LocalCall(self._session.bind(inputs))}

    def start(self, case: Path) -> dict[str, float]:
        """Make the first call, on ``case``; report the times of loading and of it, in s."""
        inputs = load_case(case).inputs
        start = time.perf_counter()
        with self._record_memory():
            self._session.run(inputs)
        return {"load_time": self._load_s, "first_call": time.perf_counter() - start}

    def save_outputs(self, case: Path, file: Path) -> None:
        """Compute the outputs of ``case`` into a file, apart from the contenders."""
        save_tensors(file, self._session.run(load_case(case).inputs))

    def run(self, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Compute outputs, in the first profile that fits."""
        return self._session.run(inputs)

    def facts(self) -> Figures:
        """Report the GPU and its memory use while contenders are bound."""
        if self._gpu is None:
            return {}
        described = (
            self._session.memory_figures() if isinstance(self._session, DeviceSession) else {}
        )
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


class RemoteEngine:
    """An engine in a child process, which ends with this one.

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
        self._pipe, theirs = Pipe()
        root, fd = str(link_packages(folder / "packages")), theirs.fileno()
        python = str(toolchain.python)
        try:
            self._process = subprocess.Popen(
                [python, "-c", _PROGRAM, root, str(os.getpid()), str(project), str(fd)],
                stdin=subprocess.DEVNULL,
                stdout=2,
                cwd=folder,
                env=toolchain.environment(os.environ),
                pass_fds=(fd,),
            )
        except OSError as error:
            self._pipe.close()
            raise StageError(
                f"the interpreter of the toolchain {toolchain.name} cannot be started: "
                f"{toolchain.python}: {(error.strerror or str(error)).lower()}",
                "correct toolchains in project.yaml",
            ) from error
        finally:
            theirs.close()
        self.processes: tuple[int, ...] = (self._process.pid,)
        operators = [(u.op, u.kind, u.path and str(u.path), str(u.project)) for u in uses]
        place = toolchain.name, python
        try:
            request = "load", backend, str(engine), dict(options), operators, *place
            self.device: Figures = self.ask(*request)
        except BaseException:
            self.close()
            raise

    def bind(self, case: Path, timing: GpuTiming | None) -> dict[str, Contender]:
        """Bind the contenders of the engine on the golden inputs of ``case``."""
        return {name: _RemoteContender(self, name) for name in self.ask("bind", str(case), timing)}

    def start(self, case: Path) -> dict[str, float]:
        """Make the first call, on ``case``; report the times of loading and of it, in s."""
        figures: dict[str, float] = self.ask("start", str(case))
        return figures

    def save_outputs(self, case: Path, file: Path) -> None:
        """Compute the outputs of ``case`` into a file, apart from the contenders."""
        self.ask("outputs", str(case), str(file))

    def run(self, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Compute outputs, in the first profile that fits."""
        return dict(map(_unpacked, self.ask("run", [*map(_packed, inputs.items())])))

    def facts(self) -> Figures:
        """Report facts about the GPU and its memory while contenders are bound."""
        facts: Figures = self.ask("facts")
        return facts

    def slowest_layers(self, case: Path) -> list[Figures]:
        """Time the slowest layers; the timed session is closed before."""
        layers: list[Figures] = self.ask("layers", str(case))
        return layers

    def close(self) -> None:
        """Close the pipe, wait for the process, and kill it if needed."""
        self._pipe.close()
        try:
            self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, request: str, *arguments: Any, expected_s: float = 0.0) -> Any:
        """Send a request and read its answer.

        Raises: StageError: the process ended, or gave no answer in time.
        """
        try:
            self._pipe.send((request, *arguments))
            limit_s = _ANSWER_LIMIT_S + 10 * expected_s
            if not self._pipe.poll(limit_s):
                self._process.kill()
                problem = f'{self._who} did not answer "{request}" for {limit_s:.0f} s'
                raise StageError(problem, "its output is in this target's log")
            answer, failure = self._pipe.recv()
        except (EOFError, OSError):
            code: int | None = None
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(_END_LIMIT_S)
            problem = f'{self._who} {describe_exit(code)} while it was asked to "{request}"'
            raise StageError(problem, "its output is in this target's log") from None
        if failure is not None:
            is_unavailable, *texts = failure
            raise (Unavailable if is_unavailable else StageError)(*texts)
        return answer


def open_engine(job: Job) -> LocalEngine | RemoteEngine:
    """Load the engine of a job, in its toolchain if it has one. Raises: Unavailable."""
    from buildsys.stages.operators.implementation import implementation_of

    options, file, toolchain = job.options["engine"], job.inputs["engine"], job.toolchain
    backend = options["backend"]
    uses = implementation_of(job, backend).uses
    if toolchain is None:
        return LocalEngine(backend, file, options, uses)
    job.progress(f"loading the engine in the toolchain {toolchain.name}")
    folder = job.outputs["result"].parent
    return RemoteEngine(toolchain, backend, file, options, uses, project=job.project, folder=folder)


def _packed(item: tuple[str, Tensor]) -> tuple[str, str, str, tuple[int, ...], bytes]:
    """Make plain values of a tensor: both sides may have other versions of numpy."""
    name, tensor = item
    array = tensor.array
    return name, tensor.dtype, array.dtype.str, array.shape, array.tobytes()


def _unpacked(values: tuple[str, str, str, tuple[int, ...], bytes]) -> tuple[str, Tensor]:
    name, dtype, stored, shape, content = values
    return name, Tensor(np.frombuffer(content, stored).reshape(shape), dtype)


class _RemoteContender:
    """A contender in the child process."""

    def __init__(self, engine: RemoteEngine, name: str) -> None:
        self._engine = engine
        self._name = name

    def block(self, at_least_s: float, at_least_runs: int) -> Samples:
        """Collect the child's samples; transport is not part of any of them."""
        asked = "block", self._name, at_least_s, at_least_runs
        return Samples(**self._engine.ask(*asked, expected_s=at_least_s))


def serve(pipe: Connection[Any, Any]) -> None:
    """Answer requests until the end of the pipe; expected failures are answers too."""
    with ExitStack() as stack:
        engine: Any = None
        contenders: dict[str, Contender] = {}
        while True:
            try:
                request, *arguments = pipe.recv()
            except EOFError:
                return
            answer: Any = None
            failure: tuple[bool, str, str] | None = None
            try:
                if request == "load":
                    engine = stack.enter_context(closing(_load(*arguments)))
                    answer = engine.device
                elif request == "bind":
                    contenders = engine.bind(Path(arguments[0]), arguments[1])
                    answer = list(contenders)
                elif request == "block":
                    answer = vars(contenders[arguments[0]].block(*arguments[1:]))
                elif request == "start":
                    answer = engine.start(Path(arguments[0]))
                elif request == "outputs":
                    engine.save_outputs(*map(Path, arguments))
                elif request == "run":
                    outputs = engine.run(dict(map(_unpacked, arguments[0])))
                    answer = [*map(_packed, outputs.items())]
                elif request == "layers":
                    answer = engine.slowest_layers(Path(arguments[0]))
                else:
                    answer = engine.facts()
            except StageError as error:
                failure = isinstance(error, Unavailable), error.problem, error.hint
                if not failure[0]:
                    traceback.print_exc()
            pipe.send((answer, failure))


def _load(
    backend: str, engine: str, options: Options, operators: list[Any], name: str, python: str
) -> LocalEngine:
    uses = tuple(
        OperatorUse(op, kind, path and Path(path), Path(project))
        for op, kind, path, project in operators
    )
    return LocalEngine(backend, Path(engine), options, uses, Toolchain(name, Path(python), {}))


def main() -> None:
    """Serve the parent process. Arguments: its process ID, the project folder and the pipe."""
    parent, project, fd = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    end_with_parent(parent)  # or at the end of the pipe
    os.chdir(project)
    with Connection(fd) as pipe:
        serve(pipe)
