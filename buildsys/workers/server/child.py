"""A forked child: run one stage, write its result file, report, end.

It ends by ``os._exit`` after flushing, as the teardown of an interpreter with torch takes a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import os
import resource
import sys
import threading
import time
import traceback
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import NoReturn

from buildsys.errors import BuildsysError, CheckFailed, StageError, Unavailable
from buildsys.workers.job import Job, StageResult
from buildsys.workers.protocol import Message, encode, error_to_json
from buildsys.workers.result_file import without_long_lists, write_result
from buildsys.workers.server.forker import flush

_IOLBF = 1  # stdio.h: line buffered
_STATUSES = ("passed", "failed", "unavailable")
# how libraries report exhausted memory without raising MemoryError
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "bad_alloc",
    "Failed to allocate memory",
)


def run_child(job: Job, log: Path, events: int) -> NoReturn:
    """Run ``job`` with its output in ``log``, report on ``events``, end."""
    channel = _EventChannel(events)
    channel.send({"event": "started", "pid": os.getpid()})
    try:
        _redirect_output(job, log)
        with contextlib.suppress(OSError):  # only a preference, and specific to Linux
            # if memory runs out, the system should kill this process, not the orchestrator
            Path("/proc/self/oom_score_adj").write_text("500")
        os.chdir(job.project)
    except OSError as error:
        problem = f"cannot start {job.target}: {error.strerror}: {error.filename}"
        channel.send({"event": "error", "error": error_to_json(StageError(problem))})
        os._exit(0)
    clock = time.perf_counter()

    def end(answer: Message) -> NoReturn:
        flush()
        channel.send(answer)
        os._exit(0)

    def fail(error: BuildsysError) -> NoReturn:
        expected = _as_expected(error, job, log)
        seconds = round(time.perf_counter() - clock, 4)
        end(_error_message(expected, {"seconds": seconds, "peak_rss_mib": peak_rss_mib()}))

    end(_run_job(replace(job, progress=channel.progress, fail=fail), log))


class _EventChannel:
    """The write end of the events pipe, shared by a stage's threads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def progress(self, message: str) -> None:
        _log(message)
        self.send({"event": "progress", "message": message})

    def send(self, message: Message) -> None:
        rest = memoryview(encode(message))
        with self._lock:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]


def _run_job(job: Job, log: Path) -> Message:
    """Run the stage, write its result file, return the final message."""
    started, clock = datetime.now(timezone.utc), time.perf_counter()
    result: StageResult | None = None
    error: BuildsysError | None = None
    try:
        name = job.stage if "." in job.stage else f"buildsys.stages.{job.stage}.stage"
        answer = importlib.import_module(name).run(job)
        if not isinstance(answer, StageResult) or answer.status not in _STATUSES:
            raise TypeError(f"{name}.run returned {answer!r} instead of a StageResult")
        result = answer
    except SystemExit as stop:
        flush()
        os._exit(stop.code if isinstance(stop.code, int) else 1)
    except Exception as caught:
        error = _as_expected(caught, job, log)
        if isinstance(error, CheckFailed | Unavailable):  # a result; a stage that broke has none
            status = "failed" if isinstance(error, CheckFailed) else "unavailable"
            result = StageResult(status, error.problem, error.hint)
    seconds, peak_mib = round(time.perf_counter() - clock, 4), peak_rss_mib()
    measured = {"seconds": seconds, "peak_rss_mib": peak_mib}
    if result is not None:
        try:
            write_result(job, result, started=started, seconds=seconds, peak_rss_mib=peak_mib)
        except (OSError, TypeError, ValueError) as caught:
            error = _as_expected(caught, job, log)
    if error is not None:
        return _error_message(error, measured)
    assert result is not None
    fields = {"status": result.status, "reason": result.reason, "hint": result.hint}
    return {"event": "result", **fields, "figures": without_long_lists(result.figures), **measured}


def _error_message(error: BuildsysError, measured: dict[str, float]) -> Message:
    return {"event": "error", "error": error_to_json(error), **measured}


def _as_expected(error: Exception, job: Job, log: Path) -> BuildsysError:
    """Return ``error`` as an expected one. Write details to the log."""
    if isinstance(error, BuildsysError):
        _log(str(error))
        if error.__cause__ is not None or error.__context__ is not None:
            traceback.print_exception(type(error), error, error.__traceback__)
        return error
    traceback.print_exception(type(error), error, error.__traceback__)
    summary = traceback.format_exception_only(type(error), error)[-1].strip()
    line = (summary.splitlines() or [""])[0]
    hint = f"full log: {job.display_path(log)}"
    if isinstance(error, MemoryError) or any(sign in str(error) for sign in _OUT_OF_MEMORY):
        return StageError(f"{job.target} ran out of memory ({line})", hint)
    return StageError(f"{job.target} failed unexpectedly: {line}", hint)


def peak_rss_mib() -> float:
    """Return the peak memory of this process. It includes pages shared with the server."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1 << 20 if sys.platform == "darwin" else 1 << 10), 1)


def _redirect_output(job: Job, log: Path) -> None:
    """Redirect all output of Python and C to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    libc = ctypes.CDLL(None)
    with contextlib.suppress(ValueError):  # a libc with another symbol keeps its buffering
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _IOLBF, 0)
    _log(f"# {job.target}, {datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}, process {os.getpid()}")


def _log(line: str) -> None:
    sys.stdout.write(f"{line}\n")  # stdout is the log by now
