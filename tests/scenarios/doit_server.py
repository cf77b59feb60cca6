"""Processes that have loaded doit and our modules, and fork a doit for each call.

Starting Python and importing pydantic takes longer than most commands. A forked doit is a process
with a separate environment, folder, session and streams. Two servers with different hash seeds take
turns, so that a result that depends on the order of a set changes from one call to the next.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import itertools
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

PACKAGES = ("cli", "execution", "manifest", "plan", "store", "system", "workers.client")


def run_doit(
    arguments: Sequence[str], cwd: Path, environment: Mapping[str, str], timeout_s: float
) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of a doit process."""
    return next(_servers(environment["PYTHONPATH"])).run(arguments, cwd, environment, timeout_s)


@cache
def _servers(path: str) -> Iterator[DoitServer]:
    return itertools.cycle([DoitServer(path, seed) for seed in ("1", "2")])


class DoitServer:
    """A server, which ends with this process."""

    def __init__(self, path: str, hash_seed: str) -> None:
        self._channel, theirs = socket.socketpair()
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed}
        with theirs:
            # pipes, as Python treats streams on files differently
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        atexit.register(self._end)

    def _end(self) -> None:
        self._channel.close()
        self._process.communicate()

    def run(
        self, arguments: Sequence[str], cwd: Path, environment: Mapping[str, str], timeout_s: float
    ) -> tuple[int, str, str]:
        readers, writers = zip(*(os.pipe() for _ in range(2)), strict=True)
        socket.send_fds(self._channel, [b"!"], writers)
        for writer in writers:
            os.close(writer)
        _send(self._channel, [list(arguments), str(cwd), dict(environment)])
        pid = _receive(self._channel)
        with ThreadPoolExecutor(2) as threads:
            streams = [threads.submit(_read, reader) for reader in readers]
            try:
                out, err = (stream.result(timeout_s) for stream in streams)
            except TimeoutError:
                os.killpg(pid, signal.SIGKILL)
                _receive(self._channel)  # its exit code, which the next call must not get
                raise
        return _receive(self._channel), out, err


def _read(descriptor: int) -> str:
    with open(descriptor, encoding="utf-8") as stream:
        return stream.read()


def _send(channel: socket.socket, message: object) -> None:
    content = json.dumps(message).encode()
    channel.sendall(len(content).to_bytes(4, "big") + content)


def _receive(channel: socket.socket) -> object:
    size = int.from_bytes(channel.recv(4, socket.MSG_WAITALL), "big")
    return json.loads(channel.recv(size, socket.MSG_WAITALL))


def serve(channel: socket.socket) -> None:
    """Answer requests; return in each forked process."""
    while True:
        message, descriptors, *_ = socket.recv_fds(channel, 1, 2)
        if not message:
            os._exit(0)
        arguments, cwd, environment = _receive(channel)
        pid = os.fork()
        if pid == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
        _send(channel, pid)
        _send(channel, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    channel.close()
    os.setsid()
    for stream, descriptor in enumerate(descriptors, start=1):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv[1:] = arguments
    sys.path[0] = cwd  # as under `python -m doit`


if __name__ == "__main__":
    for package in PACKAGES:
        found = importlib.import_module(f"buildsys.{package}")
        for module in pkgutil.walk_packages(found.__path__, f"{found.__name__}."):
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(module.name)
    gc.freeze()  # else a collection would write to every page that the processes share
    serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("doit", run_name="__main__", alter_sys=True)
