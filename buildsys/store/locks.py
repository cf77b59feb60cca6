"""Locks between threads and processes, made of flock: the kernel drops them with the process, however it ends."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from buildsys.errors import StageError

_POLL_S = (0.002, 0.005, 0.01, 0.02, 0.05)  # then 0.05 for as long as it takes
_SAY_AFTER_S = 0.1  # the turnstile is shut for less than that when nobody wants the machine alone


class LockHolder(NamedTuple):
    """Who holds a lock."""

    pid: int
    host: str
    target: str
    since: str

    def __str__(self) -> str:
        """Return ``process 4711 on host (engine:resnet50:trt, since 12:00:01)``."""
        return f"process {self.pid} on {self.host} ({self.target}, since {self.since})"


OnWait = Callable[
    ["LockHolder | None"], None
]  # None: the holders are not known (several may share a lock)


class InterruptedWaitError(StageError):
    """Waiting for a lock was given up because this process is ending."""


def machine_lock_folder(fallback: Path) -> Path:
    """Return the folder of the lock that all projects of this user on this machine share.

    BUILDSYS_MACHINE_LOCK names another folder. A folder in the temporary directory that is not ours
    alone is not trusted: then ``fallback`` it is.
    """
    chosen = os.environ.get("BUILDSYS_MACHINE_LOCK")
    if chosen:
        return Path(chosen)
    folder = Path(os.environ.get("TMPDIR") or "/tmp") / f"buildsys-{os.getuid()}"  # noqa: S108 - checked below
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        ours = folder.lstat().st_uid == os.getuid() and folder.is_dir() and not folder.is_symlink()
    except OSError:
        ours = False
    return folder if ours else fallback


class Locks:
    """The locks of one project, and those of the machine.

    ``stop()`` makes every wait end with ``InterruptedWaitError``, for a process that wants to exit.
    """

    def __init__(self, folder: Path, machine: Path | None = None) -> None:
        self._folder = folder
        self._machine = machine
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Give up all waiting, now and later."""
        self._stopped.set()

    @contextmanager
    def target(self, target: str, on_wait: OnWait) -> Iterator[bool]:
        """Hold a target alone; yields whether another process or thread had it first."""
        with self._flock(self._folder / _file_name(target), target, on_wait) as waited:
            yield waited

    @contextmanager
    def machine(self, target: str, *, exclusive: bool, on_wait: OnWait) -> Iterator[None]:
        """Hold the machine together with others, or alone.

        Everyone passes a turnstile first, and who wants the machine alone keeps it shut while waiting:
        so nobody new comes in, and a benchmark is not starved by a stream of short stages.
        """
        folder = self._machine or machine_lock_folder(self._folder)
        wanted = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        with self._flock(folder / "turnstile.lock", target, on_wait):
            handle, _ = self._acquire(folder / "machine.lock", wanted, on_wait)
        try:
            if exclusive:
                _sign(handle, target)
            yield
        finally:
            _release(handle, signed=exclusive)

    @contextmanager
    def resources(
        self, target: str, *, devices: Iterable[str], exclusive: bool, on_wait: OnWait
    ) -> Iterator[None]:
        """Hold devices alone, and the machine together with others or alone.

        The devices come first: who waits for one must not keep others from having the machine alone.
        """
        with (
            self.devices(devices, target, on_wait),
            self.machine(target, exclusive=exclusive, on_wait=on_wait),
        ):
            yield

    @contextmanager
    def devices(self, names: Iterable[str], target: str, on_wait: OnWait) -> Iterator[None]:
        """Hold devices of the machine, named by their UUIDs, alone among the projects of this user."""
        folder = self._machine or machine_lock_folder(self._folder)
        with ExitStack() as stack:
            for name in sorted(
                set(names)
            ):  # in one order everywhere: two that want both do not wait for each other
                stack.enter_context(
                    self._flock(folder / f"device-{_file_name(name)}", target, on_wait)
                )
            yield

    @contextmanager
    def _flock(self, path: Path, target: str, on_wait: OnWait) -> Iterator[bool]:
        handle, waited = self._acquire(path, fcntl.LOCK_EX, on_wait)
        try:
            _sign(handle, target)
            yield waited
        finally:
            _release(handle, signed=True)

    def _acquire(self, path: Path, operation: int, on_wait: OnWait) -> tuple[int, bool]:
        waited = False
        while True:
            handle = _open(path)
            try:
                waited = self._wait(handle, path, operation, on_wait) or waited
                if _same_file(handle, path):
                    return handle, waited
            except BaseException:
                os.close(handle)
                raise
            os.close(
                handle
            )  # the state folder was deleted meanwhile: what we hold means nothing to others

    def _wait(self, handle: int, path: Path, operation: int, on_wait: OnWait) -> bool:
        begun, polls, told = time.monotonic(), 0, False
        while True:
            try:
                fcntl.flock(handle, operation | fcntl.LOCK_NB)
                return polls > 0
            except BlockingIOError:
                pass  # somebody holds it: told and waited for below
            except OSError as error:
                problem = f"cannot lock {path}: {error.strerror}"
                raise StageError(problem, "its file system must support flock") from error
            if not told and time.monotonic() - begun > _SAY_AFTER_S:
                on_wait(_read_holder(handle))
                told = True
            if self._stopped.wait(_POLL_S[min(polls, len(_POLL_S) - 1)]):
                raise InterruptedWaitError("interrupted while waiting for another process")
            polls += 1


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StageError(
            f"cannot lock {path}: {error.strerror}", "the folder must be writable"
        ) from error


def _same_file(handle: int, path: Path) -> bool:
    try:
        return path.stat().st_ino == os.fstat(handle).st_ino
    except FileNotFoundError:
        return False


def _sign(handle: int, target: str) -> None:
    holder = LockHolder(os.getpid(), socket.gethostname(), target, time.strftime("%H:%M:%S"))
    with suppress(
        OSError
    ):  # the name is a courtesy to those who wait: a full disk must not fail the lock
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(holder).encode(), 0)


def _release(handle: int, *, signed: bool) -> None:
    try:
        if signed:
            os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _read_holder(handle: int) -> LockHolder | None:
    try:
        return LockHolder(*json.loads(os.pread(handle, 4096, 0)))
    except (TypeError, ValueError):
        return None  # being written, or held together by several


def _file_name(target: str) -> str:
    return target.replace("%", "%25").replace("/", "%2F").replace(":", "@") + ".lock"
