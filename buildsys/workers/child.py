"""Forked children of a worker server; each runs one stage.

A child writes its result file, reports, and ends by ``os._exit`` after flushing: the teardown of an
interpreter with torch takes a second.
"""

import contextlib
import ctypes
import errno
import gc
import importlib
import io
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import NoReturn

from buildsys.errors import BuildsysError, CheckFailed, StageError, Unavailable
from buildsys.system.printable import printable
from buildsys.system.processes import adopt_orphans, die_with_parent
from buildsys.system.user_modules import job_code
from buildsys.workers.job import (
    INTERRUPTED,
    TERMINAL,
    Job,
    Message,
    StageResult,
    encode,
    error_to_json,
)
from buildsys.workers.read_recorder import ReadRecorder
from buildsys.workers.result_file import without_long_lists, write_result

# how libraries report exhausted memory without raising MemoryError
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "bad_alloc",
    "Failed to allocate memory",
)

_RESOURCE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO)

SERVER_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD)
_IOLBF = 1  # stdio.h: line buffered
_LONGEST_MESSAGE = 2000  # characters in results and on the console
_LONGEST_HINT = 20_000  # it may list remedies with YAML to copy
_STATUSES = ("passed", "failed", "unavailable", "noisy")
_BETWEEN_COUNTS_S = 0.25  # the console draws no faster


def fork_child(work: Callable[[], NoReturn]) -> int:
    """Run ``work`` in a forked child with its own process group. Return its pid.

    Raises: OSError: no memory or no process is left.
    """
    server = os.getpid()
    flush()
    gc.freeze()  # a collection in the child then does not copy shared pages
    signal.pthread_sigmask(signal.SIG_BLOCK, SERVER_SIGNALS)  # a child must not run its handlers
    try:
        pid = os.fork()
        if pid != 0:
            return pid
        try:
            os.setsid()  # a time-out reaches the processes it starts, Ctrl-C reaches none of them
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGINT, *SERVER_SIGNALS):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SERVER_SIGNALS)
            die_with_parent(server, signal.SIGKILL)
            adopt_orphans()
            gc.enable()
            work()
        except KeyboardInterrupt:  # Ctrl-C in the foreground
            flush()
            os._exit(INTERRUPTED)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)  # never return to the server's loop
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SERVER_SIGNALS)


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to a child and to the processes it started."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:  # just forked, not yet the leader of its group
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def flush() -> None:
    """Write out the buffers of Python and C. A child would write them again."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)


def run_child(
    job: Job,
    log_file: Path | None,
    events: int,
    *,
    terminal: Sequence[int] = (),
    debugger: bool = False,
) -> NoReturn:
    """Run ``job`` with its output in ``log_file``, report on ``events``, end.

    Without a log, the job is in the foreground: its input and output are the descriptors of
    ``terminal``, where ``debugger`` opens pdb after an exception.
    """
    sending = threading.Lock()  # a stage may report progress from several threads

    def send(message: Message) -> None:
        rest = memoryview(encode(message))
        with sending:
            while rest:
                rest = rest[os.write(events, rest) :]

    def progress(message: str) -> None:
        log(message if log_file is not None else f"… {message}")
        send({"event": "progress", "message": _shortened(message)})

    counted_at = 0.0

    def count(done: int, total: int, unit: str) -> None:
        nonlocal counted_at
        now = time.monotonic()
        if now - counted_at >= _BETWEEN_COUNTS_S:
            counted_at = now
            send({"event": "count", "done": done, "total": total, "unit": unit})

    def fail(error: BuildsysError) -> NoReturn:
        expected = error_to_json(_as_expected(error, job, log_file))
        flush()
        send({"event": "error", "error": expected, **measure(clock)})
        os._exit(0)

    try:
        if log_file is None:
            _use_descriptors(terminal)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # passed on by the client
        send({"event": "started", "pid": os.getpid()})
        if log_file is not None:
            _open_log(job, log_file)
        with contextlib.suppress(OSError):  # only a preference, and specific to Linux
            # if memory runs out, the system should kill this process, not the orchestrator
            Path("/proc/self/oom_score_adj").write_text("500")
        os.chdir(job.project)
    except OSError as error:
        problem = f"cannot start {job.target}: {error.strerror}: {error.filename}"
        hint = "check the permissions of the project, and the free space"
        send({"event": "error", "error": error_to_json(StageError(problem, hint))})
        os._exit(0)
    clock = time.perf_counter()
    job = replace(job, progress=progress, count=count, fail=fail)
    answer = _run_job(job, log_file, debugger=debugger)
    flush()
    send(answer)
    os._exit(0)


def run_stage(job: Job) -> StageResult:
    """Run the stage of a job.

    Raises: TypeError: its result is not one. Unavailable: the machine does not meet its needs.
    """
    if job.obstacle is not None:
        raise Unavailable(*job.obstacle)
    job_code[:] = job.code_roots
    name = job.stage if "." in job.stage else f"buildsys.stages.{job.stage}.stage"
    answer = importlib.import_module(name).run(job)
    if not isinstance(answer, StageResult) or answer.status not in _STATUSES:
        raise TypeError(f"{name}.run returned {answer!r} instead of a StageResult")
    return answer


def _run_job(job: Job, log_file: Path | None, *, debugger: bool) -> Message:
    """Run the stage, write its result file, return the final message."""
    started, clock = datetime.now(timezone.utc), time.perf_counter()
    recorder: ReadRecorder | None = None
    if log_file is not None and hasattr(os, "memfd_create"):  # Linux
        folders = {path.parent for path in job.outputs.values()} | {job.timing_caches} - {None}
        recorder = ReadRecorder(job.project, tuple(f"{folder}{os.sep}" for folder in folders))
        recorder.start()
    result: StageResult | None = None
    error: BuildsysError | None = None
    try:
        answer = run_stage(job)
        if debugger and answer.status != "passed":
            log("the stage returned this result without an exception: nothing to debug")
        if answer.reason:
            log(f"{answer.reason}\n{answer.hint}")
        reason, hint = _shortened(answer.reason), _shortened(answer.hint, _LONGEST_HINT)
        result = replace(answer, reason=reason, hint=hint)
    except BaseException as caught:  # user code may raise KeyboardInterrupt, or its own class
        if log_file is None:
            _show_error(caught, debugger=debugger)
        error = _as_expected(caught, job, log_file)
        if isinstance(error, CheckFailed | Unavailable):  # a result; a stage that broke has none
            status = "failed" if isinstance(error, CheckFailed) else "unavailable"
            result = StageResult(status, error.problem, error.hint)  # the error has its changes
    reads = recorder.stop() if recorder is not None else []
    measured = measure(clock)
    if result is not None:
        try:
            write_result(job, result, started=started, measured=measured)
        except (OSError, TypeError, ValueError) as caught:
            error = _as_expected(caught, job, log_file)
    if error is not None:
        return {"event": "error", "error": error_to_json(error), **measured}
    assert result is not None
    names = ("status", "reason", "hint", "changes")
    fields = {name: getattr(result, name) for name in names}
    figures = without_long_lists(result.figures)
    return {"event": "result", **fields, "figures": figures, "reads": reads, **measured}


def _shortened(text: str, longest: int = _LONGEST_MESSAGE) -> str:
    """Make a message printable, and cut out its middle if it is too long."""
    text = printable(text)
    if len(text) <= longest:
        return text
    left_out = len(text) - longest
    head, tail = text[: longest * 3 // 4], text[-(longest // 4) :]
    return f"{head} … ({left_out:,} characters left out, the log has all) … {tail}"


def _show_error(error: BaseException, *, debugger: bool) -> None:
    """Print the traceback of a stage in the foreground. End it after Ctrl-C."""
    flush()
    traceback.print_exception(error)
    if debugger:
        import pdb

        origin = error  # later exceptions of a chain often hide the first one
        while cause := origin.__cause__ or origin.__context__:
            origin = cause
        pdb.post_mortem(origin.__traceback__)
    if isinstance(error, KeyboardInterrupt):
        raise error


def _as_expected(error: BaseException, job: Job, log_file: Path | None) -> BuildsysError:
    """Convert ``error`` to an expected one. Write details to the log."""
    if isinstance(error, BuildsysError):
        log(str(error))
        if log_file is not None and (error.__cause__ or error.__context__):
            traceback.print_exception(type(error), error, error.__traceback__)
        if not isinstance(error, StageError):
            return StageError(_shortened(str(error)))
        error.problem = _shortened(error.problem)
        error.hint = _shortened(error.hint, _LONGEST_HINT)
        return error
    if log_file is not None:
        traceback.print_exception(type(error), error, error.__traceback__)
    summary = traceback.format_exception_only(type(error), error)[-1].strip()
    line = _shortened((summary.splitlines() or [""])[0])
    hint = f"full log: {job.display_path(log_file)}" if log_file else "see the traceback above"
    if isinstance(error, MemoryError) or any(sign in str(error) for sign in _OUT_OF_MEMORY):
        return StageError(f"{job.target} ran out of memory ({line})", hint, is_external=True)
    if isinstance(error, ImportError):
        hint = f"`buildsys doctor` names the next step; {hint}"
    is_external = isinstance(error, OSError) and error.errno in _RESOURCE_ERRORS
    problem = f"{job.target} failed unexpectedly: {line}"
    return StageError(problem, hint, is_external=is_external)


def measure(clock: float) -> dict[str, float]:
    """Measure the time since ``clock`` and the peak memory, including the server's."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    mib = peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    return {"seconds": round(time.perf_counter() - clock, 4), "peak_rss_mib": round(mib, 1)}


def _open_log(job: Job, log_file: Path) -> None:
    """Redirect all output of Python and C to a new ``log_file``."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    log_file.unlink(missing_ok=True)  # a program may have made it a link
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
    descriptor = os.open(log_file, flags, 0o666)
    _use_descriptors((0, descriptor, descriptor))
    os.close(descriptor)
    log(f"# {job.target}, {datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}, process {os.getpid()}")


def _use_descriptors(descriptors: Sequence[int]) -> None:
    """Make ``descriptors`` the standard input, output and errors of Python and C."""
    for standard, descriptor in zip(TERMINAL, descriptors, strict=True):
        os.dup2(descriptor, standard)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    libc = ctypes.CDLL(None)
    with contextlib.suppress(ValueError):  # a libc with another symbol keeps its buffering
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _IOLBF, 0)


def log(line: str) -> None:
    """Write a line to the log."""
    sys.stdout.write(f"{line}\n")  # stdout is the log
    sys.stdout.flush()
