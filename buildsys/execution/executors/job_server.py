"""The program ``python -m buildsys.execution.executors.job_server``: commands of buildsys, forked.

Starting Python and importing our modules takes longer than most jobs, so they are imported once.
Requests come on standard input, one at a time: ``{"arguments", "environment"}``. Events are written
to standard output: any number of ``{"event": "log", "text"}``, then ``{"event": "ended", "code"}``.

It ends when its standard input closes, together with its job.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import NamedTuple, NoReturn

from buildsys.errors import UsageError
from buildsys.execution.action_request import decode_request
from buildsys.system.processes import Process, die_with_parent, kill_group, shell_exit_code
from buildsys.workers.protocol import Message, encode

_MAIN = "buildsys.cli.main"  # by name: the orchestrator's packages do not import it
_PRELOAD = (
    _MAIN,
    "buildsys.cli.commands.run_action",
    "buildsys.backends.onnxruntime.description",
    "buildsys.execution.availability",
    "buildsys.execution.stage_job",
    "buildsys.manifest.schema.base",
    "buildsys.workers.client.launch",
    "blake3",
    "encodings.ascii",
    "fsspec.implementations.chained",
    "fsspec.implementations.local",
    "secrets",
    "sysconfig",
    "zoneinfo",
)
_NO_REQUEST = b'{"buildsys": "", "schema": ""}'
_STDIN, _STDOUT, _STDERR = 0, 1, 2
_LOG_BYTES = 64 << 10  # of one event
_LOG_PAUSE_S = 0.02
_END_LIMIT_S = 5.0


class _Job(NamedTuple):
    pid: int
    process: int  # descriptors
    output: int


def serve() -> Message:
    """Run jobs; return the request in the process of each job."""
    server = os.getpid()
    for line in sys.stdin.buffer:
        request: Message = json.loads(line)
        output, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            _become_job(server, writer, request["environment"])
            return request
        os.close(writer)
        job = _Job(pid, os.pidfd_open(pid), output)
        try:
            code = _watch(job)
        finally:
            os.close(job.process)
            os.close(job.output)
        _send({"event": "ended", "code": code})
    os._exit(0)


def _become_job(server: int, output: int, environment: dict[str, str]) -> None:
    os.setsid()
    die_with_parent(server, signal.SIGTERM)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, _STDIN)
    os.dup2(output, _STDOUT)
    os.dup2(output, _STDERR)
    os.close(null)
    os.close(output)
    # new ones, as Python treats streams on files differently
    sys.stdout, sys.stderr = (
        os.fdopen(end, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        for end in (_STDOUT, _STDERR)
    )
    os.environ.clear()
    os.environ.update(environment)


def _watch(job: _Job) -> int:
    """Forward the output of a job until it ends; return its exit code."""
    poll = select.poll()
    for descriptor in (_STDIN, job.process, job.output):
        poll.register(descriptor, select.POLLIN)
    log, send_at = b"", 0.0
    has_ended = False
    while not has_ended:
        pause_s = max(0.0, send_at - time.monotonic()) if log else None
        for descriptor, _ in poll.poll(pause_s and pause_s * 1000):
            if descriptor == _STDIN:  # nobody waits for the job
                _end(job.pid)
                os._exit(0)
            has_ended = has_ended or descriptor == job.process
            if descriptor == job.output:
                piece = os.read(job.output, _LOG_BYTES)
                log = (log + piece)[-_LOG_BYTES:]
                if not piece:
                    poll.unregister(job.output)
        if log and time.monotonic() >= send_at:
            _send({"event": "log", "text": log.decode(errors="replace")})
            log, send_at = b"", time.monotonic() + _LOG_PAUSE_S
    os.set_blocking(job.output, False)  # processes that it started may hold the other end
    with suppress(BlockingIOError):
        log += os.read(job.output, 1 << 20)  # more than a pipe holds
    if log:
        _send({"event": "log", "text": log[-_LOG_BYTES:].decode(errors="replace")})
    kill_group(job.pid)  # before its pid is free
    return shell_exit_code(os.waitstatus_to_exitcode(os.waitpid(job.pid, 0)[1]))


def _end(pid: int) -> None:
    """Let a job end with its processes; kill it if it does not."""
    process = Process.of(pid)
    process.send_signal(signal.SIGTERM)
    process.wait(_END_LIMIT_S)
    kill_group(pid)


def _send(event: Message) -> None:
    with suppress(BrokenPipeError):  # standard input closes as well
        sys.stdout.buffer.write(encode(event))
        sys.stdout.buffer.flush()


def main() -> None:
    """Serve until standard input closes."""
    if os.fork():  # a Ray process that ends kills its children, before they can end their jobs
        os._exit(0)
    os.setsid()
    for name in _PRELOAD:
        try:
            importlib.import_module(name)
        except ImportError:
            if name == _MAIN:
                raise
    with suppress(UsageError):
        decode_request(_NO_REQUEST)  # compiles the types of requests
    gc.freeze()  # else a collection would write to every page that the processes share
    request = serve()
    try:
        code = importlib.import_module(_MAIN).run(request["arguments"])
    except Exception:
        traceback.print_exc()
        code = os.EX_SOFTWARE  # Python's own, 1, means a failed check
    _exit(code)


def _exit(code: int) -> NoReturn:
    """End a job's process without copying pages in a teardown."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as Python does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
