"""What a forked child does: run one stage, write its result file, answer, and end.

It ends by ``os._exit`` after flushing: the teardown of an interpreter with torch takes a second.
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

_IOLBF = 1  # stdio.h: line buffered
# how libraries that do not raise MemoryError say that there is none
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "bad_alloc",
    "Failed to allocate memory",
)


def run_child(job: Job, log: Path, events: int) -> NoReturn:
    """Run ``job`` with its output in ``log``, answer on the descriptor ``events``, and end this process."""
    channel = _Events(events)
    try:
        _redirect(job, log)
        _prefer_as_oom_victim()
        os.chdir(job.project)
    except OSError as error:
        problem = f"cannot start {job.target}: {error.strerror}: {error.filename}"
        channel.send({"event": "error", "error": error_to_json(StageError(problem))})
        os._exit(0)
    clock = time.perf_counter()

    def end(answer: Message) -> NoReturn:
        _flush()
        channel.send(answer)
        os._exit(0)

    def fail(error: BuildsysError) -> NoReturn:
        expected = _as_expected(error, job, log)
        seconds = round(time.perf_counter() - clock, 4)
        end(
            {
                "event": "error",
                "error": error_to_json(expected),
                "seconds": seconds,
                "peak_rss_mib": peak_rss_mib(),
            }
        )

    end(_answer(replace(job, progress=channel.progress, fail=fail), log))


class _Events:
    """The child's end of the events pipe; a stage may report progress from several threads."""

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


def _answer(job: Job, log: Path) -> Message:
    started, clock = datetime.now(timezone.utc), time.perf_counter()
    result: StageResult | None = None
    error: BuildsysError | None = None
    try:
        result = _run_stage(job)
    except SystemExit as stop:
        _flush()
        os._exit(stop.code if isinstance(stop.code, int) else 1)
    except Exception as caught:
        error = _as_expected(caught, job, log)
        result = _as_result(error)
    seconds, peak_mib = round(time.perf_counter() - clock, 4), peak_rss_mib()
    figures = {"seconds": seconds, "peak_rss_mib": peak_mib}
    if result is not None:
        try:
            write_result(job, result, started=started, seconds=seconds, peak_rss_mib=peak_mib)
        except (OSError, TypeError, ValueError) as caught:
            error = _as_expected(caught, job, log)
    if error is not None:
        return {"event": "error", "error": error_to_json(error), **figures}
    assert result is not None
    fields = {"status": result.status, "reason": result.reason, "hint": result.hint}
    return {"event": "result", **fields, "figures": without_long_lists(result.figures), **figures}


def _run_stage(job: Job) -> StageResult:
    name = job.stage if "." in job.stage else f"buildsys.stages.{job.stage}.stage"
    result = importlib.import_module(name).run(job)
    if not isinstance(result, StageResult) or result.status not in (
        "passed",
        "failed",
        "unavailable",
    ):
        raise TypeError(f"{name}.run returned {result!r} instead of a StageResult")
    return result


def _as_expected(error: Exception, job: Job, log: Path) -> BuildsysError:
    """Return ``error`` as one that its reader can act on, and put what else is known into the log."""
    if isinstance(error, BuildsysError):
        _log(str(error))
        if error.__cause__ is not None or error.__context__ is not None:
            traceback.print_exception(type(error), error, error.__traceback__)
        return error
    traceback.print_exception(type(error), error, error.__traceback__)
    line = next(
        iter(traceback.format_exception_only(type(error), error)[-1].strip().splitlines()), ""
    )
    hint = f"full log: {job.display_path(log)}"
    if isinstance(error, MemoryError) or any(sign in str(error) for sign in _OUT_OF_MEMORY):
        return StageError(f"{job.target} ran out of memory ({line})", hint)
    return StageError(f"{job.target} failed unexpectedly: {line}", hint)


def _as_result(error: BuildsysError) -> StageResult | None:
    """Return the result that a raised verdict stands for; a stage that broke has none."""
    if isinstance(error, CheckFailed):
        return StageResult("failed", error.problem, error.hint)
    if isinstance(error, Unavailable):
        return StageResult("unavailable", error.problem, error.hint)
    return None


def peak_rss_mib() -> float:
    """Return the most memory that this process has held, with the pages that it shares with its server."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1 << 20 if sys.platform == "darwin" else 1 << 10), 1)


def _redirect(job: Job, log: Path) -> None:
    """Send everything that is written here, by Python or C, to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    libc = ctypes.CDLL(None)
    with contextlib.suppress(ValueError):  # a C library that names it otherwise keeps its buffering
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _IOLBF, 0)
    _log(f"# {job.target}, {datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}, process {os.getpid()}")


def _log(line: str) -> None:
    """Write to what is this process's log by now."""
    sys.stdout.write(f"{line}\n")


def _prefer_as_oom_victim() -> None:
    """Let the system take this process rather than the orchestrator when memory runs out."""
    with contextlib.suppress(OSError):  # only a preference, and only Linux has it
        Path("/proc/self/oom_score_adj").write_text("500")


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
