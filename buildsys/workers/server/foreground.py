"""The program of a stage in the foreground: ``python -m buildsys.workers.server.foreground FILE``.

It runs one stage with the code of a worker, in this process and with its output on the terminal.
FILE has the request; the answer is written next to it. Standard library only, apart from the
libraries of the stage.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import pdb
import signal
import sys
import time
import traceback
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import NoReturn

from buildsys.errors import BuildsysError, CheckFailed, StageError, Unavailable
from buildsys.system.processes import die_with_parent
from buildsys.workers.job import Job, StageResult
from buildsys.workers.protocol import Message, error_to_json, job_from_json
from buildsys.workers.result_file import write_result
from buildsys.workers.server.child import flush, log, measure, run_stage
from buildsys.workers.server.server import preload

_INTERRUPTED = 130  # exit code


def main() -> NoReturn:
    """Run the stage, write the answer, end without the teardown of libraries."""
    faulthandler.enable()
    file = Path(sys.argv[1])
    request = json.loads(file.read_text(encoding="utf-8"))
    die_with_parent(request["parent"], signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent ignores it
    here = str(Path.cwd())
    sys.path[:] = [entry for entry in sys.path if entry not in ("", here)]
    job = replace(
        job_from_json(request["job"]),
        progress=lambda message: log(f"… {message}"),
        fail=_end_with_traceback,
    )
    os.chdir(job.project)
    with contextlib.redirect_stdout(io.StringIO()):  # the log of a worker server
        problem = preload(request["preload"], request["without"])
    answer = (
        {"event": "error", "error": error_to_json(StageError(problem))}
        if problem
        else _run(job, debugger=request["debugger"])
    )
    flush()
    file.with_name("answer.json").write_text(json.dumps(answer), encoding="utf-8")
    os._exit(0)


def _run(job: Job, *, debugger: bool) -> Message:
    """Return a worker's answer, after the traceback of any exception."""
    started, clock = datetime.now(timezone.utc), time.perf_counter()
    try:
        result = run_stage(job)
    except BaseException as error:
        flush()
        traceback.print_exception(error)
        measured = measure(clock)  # without the time in the debugger
        if debugger:
            pdb.post_mortem(_origin(error).__traceback__)
        if isinstance(error, KeyboardInterrupt):
            flush()
            os._exit(_INTERRUPTED)
        if not isinstance(error, CheckFailed | Unavailable):
            line = traceback.format_exception_only(error)[-1].strip()
            known = error if isinstance(error, BuildsysError) else StageError(line)
            return {"event": "error", "error": error_to_json(known), **measured}
        status = "failed" if isinstance(error, CheckFailed) else "unavailable"
        result = StageResult(status, error.problem, error.hint)
    else:
        measured = measure(clock)
        if debugger and result.status != "passed":
            log("the stage returned this result without an exception: nothing to debug")
    write_result(job, result, started=started, measured=measured)
    fields = {"status": result.status, "reason": result.reason, "hint": result.hint}
    return {"event": "result", **fields, **measured}


def _origin(error: BaseException) -> BaseException:
    """Return the first exception of a chain: later ones often hide it."""
    while cause := error.__cause__ or (None if error.__suppress_context__ else error.__context__):
        error = cause
    return error


def _end_with_traceback(error: BuildsysError) -> NoReturn:
    """End the process from within a callback of a C++ library."""
    traceback.print_stack()
    log(str(error))
    flush()
    os._exit(1)


if __name__ == "__main__":
    main()
