"""A loaded engine: arrays by name in, arrays by name out."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from threading import Condition, RLock
from typing import Any, TypeVar

import numpy as np

from buildsys.backends.interface import (
    DeviceSession,
    DeviceTensor,
    OperatorUse,
    Options,
    Port,
    Session,
    load_backend,
)
from buildsys.deploy.arrays import (
    NUMPY,
    DeviceArray,
    InputReader,
    allocator_from,
    allocator_of,
    as_array,
    is_on_gpu,
    library_of,
    stream_handle,
)
from buildsys.deploy.can_run import can_run, engine_file
from buildsys.errors import EngineError, StageError
from buildsys.onnx_graphs.tensors import Tensor
from buildsys.system.backend_registry import Reason, Record
from buildsys.system.engine_files import RECORD_NAME, REPLACE, is_file_name, read_record
from buildsys.system.printable import nearest

AnyArray = TypeVar("AnyArray")


class Engine(AbstractContextManager["Engine"]):
    """A built engine in this process, made by ``load_engine``.

    ``inputs`` and ``outputs`` are in the order of the graph; a dynamic size in a ``shape`` is a
    name, None or -1. ``profiles`` has the shape ranges of optimization profiles, ``{input: {"min":
    …, "opt": …, "max": …}}``. ``record`` is ``engine.json``, ``notes`` come from ``can_run``.
    Threads may call it at the same time. ``close``, or the end of a ``with`` block, frees it.
    """

    def __init__(
        self,
        name: str,
        file: Path,
        record: Record,
        notes: tuple[str, ...],
        session: Session,
        concurrency: int | None,
    ) -> None:
        """Take over a loaded session."""
        self.name = name  # "resnet18:ort-cpu", for messages
        self.file = file
        self.backend = record.backend
        self.record = record.figures
        self.notes = notes
        self.inputs: tuple[Port, ...] = session.inputs
        self.outputs: tuple[Port, ...] = session.outputs
        self.profiles = list(session.profiles)
        ranges, images = record.map("ranges"), record.map("images")
        self._readers = {
            port.name: InputReader(name, port, ranges.get(port.name, ()), images.get(port.name))
            for port in self.inputs
        }
        axes: dict[str, list[tuple[str, int]]] = {}
        for port, reader in self._readers.items():
            for axis, dim in enumerate(reader.names):
                axes.setdefault(dim, []).append((port, axis))
        self._equal_axes = {dim: of for dim, of in axes.items() if dim and len(of) > 1}
        self._pool = SessionPool(name, session, concurrency)
        self._takes_gpu_memory = isinstance(session, DeviceSession)
        self._process = os.getpid()

    def __call__(self, *inputs: Any, **arrays: AnyArray) -> dict[str, AnyArray]:
        """Run the engine on inputs by keyword or in a mapping, or on its only input; see ``run``.

        Raises: EngineError: as ``run``, or arrays of several inputs have no names.
        """
        if not inputs:
            return self.run(arrays)
        if len(inputs) > 1 or arrays:
            raise self._without_names(f"{len(inputs) + len(arrays)} arguments")
        first = inputs[0]
        is_only = len(self._readers) == 1 and not isinstance(first, Mapping)
        return self.run({next(iter(self._readers)): first} if is_only else first)

    def run(
        self,
        inputs: Mapping[str, AnyArray],
        *,
        profile: int | None = None,
        stream: Any = None,
        out: Mapping[str, AnyArray] | None = None,
    ) -> dict[str, AnyArray]:
        """Run the engine; the outputs are by name, in the order of ``outputs``.

        Inputs are contiguous arrays of numpy, torch, cupy or any library with DLPack, with the
        types of ``inputs``; they are not copied. ``profile`` is an index into ``profiles``.
        Outputs are new arrays: in GPU memory if an input is, of torch if all inputs are, of cupy
        or ``DeviceArray`` on a GPU, else of numpy. ``out`` has arrays in GPU memory for them.
        With ``stream``, a CUDA stream of torch or cupy or its number, outputs are complete as soon
        as the stream gets there; keep the inputs until then.

        Raises: EngineError: an input is missing, unknown or does not fit; the engine is closed, or
        was loaded before a fork; the computation failed.
        """
        if os.getpid() != self._process:
            problem = f"{self.name} was loaded in process {self._process}, and this is a fork of it"
            raise EngineError(problem, "load the engine in the process that runs it")
        if not isinstance(inputs, Mapping):
            raise self._without_names(f"a value of type {type(inputs).__name__}")
        if inputs.keys() != self._readers.keys():
            raise self._wrong_names(inputs)
        if profile is not None and not self.profiles:
            problem = f"{self.name} has no optimization profiles"
            raise EngineError(problem, "leave out `profile`")
        try:
            if self._takes_gpu_memory:
                for value in inputs.values():
                    if type(value) is not np.ndarray and is_on_gpu(value):
                        return self._run_on_gpu(inputs, type(value), profile, stream, out)
            if stream is not None or out is not None:
                name = "out" if stream is None else "stream"
                problem = f"no input of {self.name} is in GPU memory, so it cannot use `{name}`"
                raise EngineError(problem, "leave it out")
            tensors = {name: self._readers[name].read(value) for name, value in inputs.items()}
            self._check_equal_axes(tensors)
            session = self._pool.acquire()
            try:
                results = session.run(tensors, profile)
            finally:
                self._pool.release(session)
            libraries = {library_of(type(value)) for value in inputs.values()}
            library = libraries.pop() if len(libraries) == 1 else NUMPY
            return {name: as_array(tensor, library) for name, tensor in results.items()}
        except EngineError:
            raise
        except StageError as error:
            raise EngineError(error.problem, error.hint) from error

    def _run_on_gpu(
        self,
        inputs: Mapping[str, AnyArray],
        kind: type,
        profile: int | None,
        stream: Any,
        out: Mapping[str, AnyArray] | None,
    ) -> dict[str, AnyArray]:
        names = [port.name for port in self.outputs]
        if out is not None and out.keys() != {*names}:
            problem = f"out has {', '.join(out) or 'nothing'}, and {self.name} {', '.join(names)}"
            raise EngineError(problem, "give an array for each output")
        chosen = None if stream is None else stream_handle(stream)
        session: Any = self._pool.acquire()
        try:
            handle = session.stream if chosen is None else chosen
            tensors = {
                name: self._readers[name].read_on_gpu(value, handle)
                for name, value in inputs.items()
            }
            self._check_equal_axes(tensors)
            allocate = allocator_of(kind) if out is None else allocator_from(out, handle)
            results = session.enqueue(tensors, allocate, chosen, profile)
        finally:
            self._pool.release(session)
        outputs = {name: result.array for name, result in results.items()}
        if chosen is not None:  # the inference may outlive the arrays
            for array in (*inputs.values(), *outputs.values()):
                if isinstance(array, DeviceArray):
                    array.is_shared = True
        return outputs

    def bind(
        self,
        inputs: Mapping[str, AnyArray],
        *,
        profile: int | None = None,
        out: Mapping[str, AnyArray] | None = None,
    ) -> Callable[[], dict[str, AnyArray]]:
        """Prepare a call that repeats ``run`` on the same arrays in GPU memory.

        It computes from the content that the arrays have when it is called.
        Raises: EngineError: as ``run``, or an input is in host memory.
        """
        is_mapping = isinstance(inputs, Mapping)  # else ``run`` says so
        if is_mapping and not (self._takes_gpu_memory and all(map(is_on_gpu, inputs.values()))):
            problem = f"not all inputs of {self.name} are in GPU memory"
            raise EngineError(problem, "call the engine instead of binding it")
        outputs = self.run(inputs, profile=profile, out=out)
        return partial(self.run, {**inputs}, profile=profile, out=outputs)

    def close(self) -> None:
        """Wait for running calls, then free the engine.

        Later calls fail. Closing twice is no error. In a fork of the process it does nothing.
        """
        if os.getpid() == self._process:
            self._pool.close()

    def __exit__(self, *_: object) -> None:
        """Close the engine."""
        self.close()

    def __del__(self) -> None:
        """Free the engine: memory of a GPU is not freed otherwise.

        What could still run holds a reference, or is garbage, too.
        """
        if hasattr(self, "_pool") and os.getpid() == self._process:
            with suppress(StageError):
                self._pool.close(wait=False)

    def __repr__(self) -> str:
        """Show the name, the backend and the inputs and outputs."""
        ports = (
            ", ".join(f"{port.name}: {port.dtype}{list(port.shape)}" for port in ports)
            for ports in (self.inputs, self.outputs)
        )
        return f"<Engine {self.name}, {self.backend}, {' -> '.join(ports)}>"

    def _check_equal_axes(self, tensors: Mapping[str, Tensor | DeviceTensor]) -> None:
        for dim, axes in self._equal_axes.items():
            sizes = {name: tensors[name].shape[axis] for name, axis in axes}
            if len({tensors[name].shape[axis] for name, axis in axes}) > 1:
                listed = ", ".join(f"{name} has {size}" for name, size in sizes.items())
                problem = f"the inputs of {self.name} differ in {dim}: {listed}"
                raise EngineError(problem, "pass arrays of equal size there")

    def _without_names(self, given: str) -> EngineError:
        names = ", ".join(f"{name}=array" for name in self._readers)
        problem = f"the inputs of {self.name} are {given}"
        return EngineError(problem, f"pass them by name, engine({names}), or as a mapping")

    def _wrong_names(self, inputs: Mapping[str, object]) -> EngineError:
        missing = [name for name in self._readers if name not in inputs]
        unknown = next((str(name) for name in inputs if name not in self._readers), "")
        if not unknown:
            return EngineError(f"{self.name} needs the input {', '.join(missing)}", "pass it too")
        similar = nearest(unknown, missing or self._readers, count=1)
        problem = f"{self.name} has no input {unknown!r}, it has {', '.join(self._readers)}"
        return EngineError(problem, f"did you mean {similar[0]}?" if similar else "")


class SessionPool:
    """Sessions for concurrent calls, made on demand; calls that wait get theirs in turn."""

    def __init__(self, engine: str, session: Session, limit: int | None = None) -> None:
        """Take over a session; further ones are its duplicates, ``limit`` in all."""
        self._engine = engine
        self._first = session
        self._limit = limit
        self._idle = [session]  # the most recently used last: its memory is in the caches
        self._all = [session]
        self._is_closed = False
        self._lock = RLock()
        self._turns = deque[Condition]()  # of waiting calls
        self._all_idle = Condition(self._lock)

    def acquire(self) -> Session:
        """Take an idle session, make another one, or wait.

        Raises: EngineError: the pool is closed.
        """
        with self._lock:
            if self._idle and not self._turns and not self._is_closed:
                return self._idle.pop()
            turn = Condition(self._lock)
            self._turns.append(turn)
            try:
                while not self._is_closed:
                    is_next = self._turns[0] is turn
                    if is_next and self._idle:
                        return self._idle.pop()
                    if not is_next or len(self._all) == self._limit:
                        turn.wait()
                        continue
                    try:
                        self._all.append(self._first.duplicate())
                        return self._all[-1]
                    except StageError:  # e.g. no memory for another execution context
                        self._limit = len(self._all)
            finally:
                self._turns.remove(turn)
                self._call_next()
        problem = f"{self._engine} is closed"
        raise EngineError(problem, "load it again, or close it after its last call")

    def release(self, session: Session) -> None:
        """Take a session back."""
        with self._lock:
            self._idle.append(session)
            self._call_next()
            self._all_idle.notify_all()

    def _call_next(self) -> None:
        if self._turns:
            self._turns[0].notify()

    def close(self, *, wait: bool = True) -> None:
        """Free all sessions, the first one last; wait for running calls before."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for turn in self._turns:
                turn.notify()
            while wait and len(self._idle) < len(self._all):
                self._all_idle.wait()
            for session in self._all[1:]:
                if session is not self._first:
                    session.close()
            self._first.close()
            self._idle.clear()


_MAX_THREADS = 1 << 16


def load_engine(
    engine: str | os.PathLike[str],
    *,
    digest: bool = True,
    project: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
    trusted_keys: Iterable[str] | None = None,
    revoked_keys: Iterable[str] = (),
) -> Engine:
    """Load a built engine to run it in this process.

    ``engine`` is an engine file or its folder. It is checked by ``can_run`` first, with ``digest``,
    ``project``, ``trusted_keys`` and ``revoked_keys``; plugins in Python are loaded from its folder
    or below ``project``. ``options`` replace recorded options that do not change results, such as
    ``intra_op_threads`` (0: one per core). ``concurrency`` limits the calls that run at the same
    time, and with them the memory; more calls wait.

    Raises: EngineError: the engine cannot run here, or an argument is wrong; one sentence with the
    remedy.
    """
    if concurrency is not None and (not isinstance(concurrency, int) or concurrency < 1):
        raise EngineError(f"concurrency is {concurrency!r}", "pass a number from 1 on, or None")
    result = can_run(
        engine, digest=digest, project=project, trusted_keys=trusted_keys, revoked_keys=revoked_keys
    )
    file = engine_file(engine)
    record = read_record(file)
    reasons = result.reasons or ((record,) if isinstance(record, Reason) else ())
    if reasons or isinstance(record, Reason):
        first, *others = reasons
        more = f" (and {len(others)} more, which can_run lists)" if others else ""
        raise EngineError(f"{engine} cannot run here: {first.problem}{more}", first.remedy)
    names = [str(record.figures.get(name) or "") for name in ("model", "variant")]
    title = ":".join(filter(None, names)) or file.name
    try:
        backend = load_backend(record.backend, to_run=True)
        chosen = _options(record, backend.RUN_OPTIONS, options or {})
        session = backend.load(file, chosen, tuple(_operators(record, file, project)))
        try:
            return Engine(title, file, record, result.notes, session, concurrency)
        except StageError:  # an input or output of a type that cannot be used
            session.close()
            raise
    except StageError as error:
        raise EngineError(f"{title} cannot be loaded: {error.problem}", error.hint) from error
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        wrong = f"{type(error).__name__}: {' '.join(str(error).split()):.200}"
        problem = f"{title} cannot be loaded: {RECORD_NAME} has a wrong value ({wrong})"
        raise EngineError(problem, REPLACE) from error


def _options(record: Record, changeable: Options, replaced: Mapping[str, Any]) -> Options:
    """Replace recorded options. Raises: StageError: an unknown one, or a wrong value."""
    if not isinstance(replaced, Mapping):
        raise StageError(f"options is {replaced!r}", "pass a mapping of options by name")
    if unknown := next((name for name in replaced if name not in changeable), None):
        hint = f"pass one of {', '.join(changeable) or 'none'}"
        raise StageError(f"{record.backend} has no option {unknown!r} for running", hint)
    recorded = {**record.map("portability"), **record.map("settings")}
    for options, title, hint in (
        (recorded, f"{RECORD_NAME} has a wrong value: ", REPLACE),
        (replaced, "", ""),
    ):
        for name, value in options.items():
            if name in changeable and not _fits(value, type(changeable[name])):
                problem = f"{title}the option {name} is {value!r:.100}"
                raise StageError(problem, hint or f"pass a value such as {changeable[name]!r}")
    return {**changeable, **recorded, **replaced}


def _fits(value: object, kind: type) -> bool:
    """Check the type and range of an option."""
    if kind is dict and isinstance(value, dict):
        return all(isinstance(word, str) for item in value.items() for word in item)
    if kind is int:
        return type(value) is int and 0 <= value <= _MAX_THREADS
    return type(value) is kind


def _operators(
    record: Record, engine: Path, project: str | os.PathLike[str] | None
) -> Iterator[OperatorUse]:
    """Yield the libraries and plugins of the recorded custom operators."""
    root = engine.parent if project is None else Path(project)
    files = {
        str(plugin["operator"]): str(plugin["file"])
        for plugin in record.figures.get("plugins") or ()
        if isinstance(plugin, Mapping) and {"operator", "file"} <= plugin.keys()
    }
    for op, use in record.map("operators").items():
        kind, _, name = str(use).partition(" ")
        if kind == "plugin" and not name:  # the backend's own library has it
            yield OperatorUse(op, kind, None, root)
            continue
        path = engine.with_name(name) if is_file_name(name) else None
        if path is not None and not path.is_file():  # can_run has found it in the project
            file = Path(files.get(op, name))
            path = None if file.is_absolute() or ".." in file.parts else root / file
        if path is None:
            problem = f"{RECORD_NAME} refers to {files.get(op, name)!r:.100} for {op}"
            raise StageError(f"{problem}, which is not in the engine's folder", REPLACE)
        yield OperatorUse(op, kind, path, root)
