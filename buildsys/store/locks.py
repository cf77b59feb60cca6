"""Locks on targets, devices and the project, between threads and processes."""

import math
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from buildsys.errors import StageError
from buildsys.system.files import make_private, open_lock, try_lock

CPU = "cpu"  # the device of benchmarks on the processor
_POLL_S = (0.002, 0.005, 0.01, 0.02, 0.05)  # then 0.05 for as long as it takes
_REPORT_AFTER_S = 0.1  # without an exclusive holder the turnstile is shut for less than that


# receives ``process 4711 on host (engine:resnet50:trt, since 12:00:01)``, "" for an unknown holder
OnWait = Callable[[str], None]


@dataclass(eq=False)
class InterruptedWaitError(StageError):
    """A wait for a lock, ended by the exit of this process."""

    is_external: bool = True


def machine_lock_folder() -> Path:
    """Locate the device locks shared by a user's projects.

    BUILDSYS_MACHINE_LOCK overrides it.
    Raises: StageError: the folder cannot be created or belongs to another user. Without it
    benchmarks of two projects would run at the same time.
    """
    chosen = os.environ.get("BUILDSYS_MACHINE_LOCK")
    hint = "set BUILDSYS_MACHINE_LOCK to a folder of yours, the same one for all your projects"
    return Path(chosen) if chosen else private_folder("lock", hint)


def private_folder(use: str, hint: str) -> Path:
    """Find or create this user's own temporary folder.

    Raises: StageError: it cannot be created or is open to others; ``hint`` is the remedy.
    """
    temporary = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - checked below
    folder = temporary / f"buildsys-{os.getuid()}"
    try:
        if not make_private(folder):
            problem = f"the {use} folder {folder} does not belong to you alone"
            raise StageError(problem, f"remove it, or {hint}")
    except OSError as error:
        problem = f"the {use} folder {folder} cannot be created: {error.strerror}"
        raise StageError(problem, hint) from None
    return folder


class Locks:
    """The locks of one project and of the machine's devices."""

    def __init__(self, folder: Path, machine: Path | None = None) -> None:
        self._folder = folder
        self._given_machine = machine
        self.stopped = threading.Event()  # set: all waits end with ``InterruptedWaitError``

    @cached_property
    def _machine(self) -> Path:
        return self._given_machine or machine_lock_folder()

    @contextmanager
    def target(self, target: str, on_wait: OnWait) -> Iterator[bool]:
        """Hold a target exclusively; yield True after a wait."""
        with self._hold([self._folder / _file_name(target)], target, on_wait) as (_, waited):
            yield waited

    @contextmanager
    def devices(self, names: Iterable[str], target: str, on_wait: OnWait) -> Iterator[None]:
        """Hold devices (UUIDs of GPUs, CPU) exclusively among this user's projects."""
        with ExitStack() as stack:
            for name in sorted(set(names)):  # the same order everywhere, against deadlocks
                stack.enter_context(self._hold([self._device(name)], target, on_wait))
            yield

    @contextmanager
    def one_device(self, names: Iterable[str], target: str, on_wait: OnWait) -> Iterator[str]:
        """Hold the first free device exclusively; yield its name."""
        paths = {self._device(name): name for name in names}
        with self._hold(paths, target, on_wait) as (path, _):
            yield paths[path]

    def _device(self, name: str) -> Path:
        return self._machine / f"device-{_file_name(name)}"

    @contextmanager
    def project(self, target: str, *, exclusive: bool, on_wait: OnWait) -> Iterator[None]:
        """Hold the project, shared or exclusively.

        Everyone passes a turnstile first. A process that wants the project exclusively keeps it
        shut while waiting, so a stream of short stages does not starve a benchmark.
        """
        with ExitStack() as stack:
            with self._hold([self._folder / "turnstile.lock"], target, on_wait):
                path = self._folder / "project.lock"
                stack.enter_context(self._hold([path], target, on_wait, shared=not exclusive))
            yield

    @contextmanager
    def _hold(
        self, paths: Collection[Path], target: str, on_wait: OnWait, *, shared: bool = False
    ) -> Iterator[tuple[Path, bool]]:
        """Hold the first free lock file; yield it, and True after a wait."""
        waited = False
        while True:
            handles: dict[int, Path] = {}
            with ExitStack() as stack:
                for path in paths:
                    handles[handle := _open(path)] = path
                    stack.callback(os.close, handle)
                handle, has_waited = self._wait(handles, on_wait, shared=shared)
                waited |= has_waited
                if not _is_at(handles[handle], handle):
                    continue  # its folder was deleted meanwhile, so nobody else sees this lock
                if not shared:
                    stack.callback(os.ftruncate, handle, 0)
                    # only informs those waiting: a full disk must not fail the lock
                    with suppress(OSError):
                        place = f"process {os.getpid()} on {socket.gethostname()}"
                        holder = f"{place} ({target}, since {time.strftime('%H:%M:%S')})"
                        os.pwrite(handle, holder.encode(), 0)
                yield handles[handle], waited
                return

    def _wait(
        self, handles: Mapping[int, Path], on_wait: OnWait, *, shared: bool
    ) -> tuple[int, bool]:
        polls, report_at = 0, time.monotonic() + _REPORT_AFTER_S
        while True:
            for handle, path in handles.items():
                try:
                    if try_lock(handle, shared=shared):
                        return handle, polls > 0
                except OSError as error:
                    problem = f"cannot lock {path}: {error.strerror}"
                    raise StageError(problem, "its file system must support flock") from error
            if time.monotonic() > report_at:
                on_wait(os.pread(next(iter(handles)), 4096, 0).decode(errors="replace"))
                report_at = math.inf
            if self.stopped.wait(_POLL_S[min(polls, len(_POLL_S) - 1)]):
                raise InterruptedWaitError("interrupted while waiting for another process")
            polls += 1


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open_lock(path, 0o644)
    except OSError as error:
        problem = f"cannot lock {path}: {error.strerror}"
        raise StageError(problem, "the folder must be writable") from error


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _file_name(target: str) -> str:
    return target.replace("%", "%25").replace("/", "%2F").replace(":", "@") + ".lock"
