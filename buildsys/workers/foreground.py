"""A stage in the foreground: a process on this terminal, without server."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from buildsys.errors import CheckFailed, Unavailable, WorkerDied
from buildsys.system.processes import describe_exit
from buildsys.workers.job import Job
from buildsys.workers.launch import check_toolchain, start_in_foreground
from buildsys.workers.protocol import INTERRUPTED, Message, error_from_json, job_to_json


def run_in_foreground(job: Job, folder: Path, *, debugger: bool = False) -> Message:
    """Run ``job`` on this terminal; return its status, reason, hint and seconds.

    The process has the interpreter, environment and libraries of a worker. ``folder`` is for
    temporary files. With ``debugger``, an exception opens pdb where it was raised.
    Raises: StageError: raised by the stage. WorkerDied: the process ended without a result.
    KeyboardInterrupt: Ctrl-C ended it.
    """
    if job.toolchain is not None:
        problem = check_toolchain(job, job.toolchain, None)
        if problem is not None:
            return {"status": "unavailable", "reason": problem.problem, "hint": problem.hint}
    events = folder / "events"
    request = {"job": job_to_json(job), "debugger": debugger, "events": str(events)}
    file = folder / "request.json"
    file.write_text(json.dumps(request), encoding="utf-8")
    interrupt = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the stage, or for its debugger
    try:
        code = start_in_foreground(job, folder, file).wait()
    finally:
        signal.signal(signal.SIGINT, interrupt)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    try:
        answer: Message = json.loads(events.read_bytes().splitlines()[-1])
    except (OSError, ValueError, IndexError):
        answer = {}
    if answer.get("event") not in ("result", "error"):
        died = f"the worker of {job.target} {describe_exit(code)}"
        raise WorkerDied(died, "the output above has its last words")
    if answer["event"] == "error":
        error = error_from_json(answer["error"])
        if not isinstance(error, CheckFailed | Unavailable):
            raise error
        status = "failed" if isinstance(error, CheckFailed) else "unavailable"
        answer |= {"status": status, "reason": error.problem, "hint": error.hint}
    return answer
