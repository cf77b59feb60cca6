"""A stage in the foreground: a process on this terminal, without server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from buildsys.errors import WorkerDied
from buildsys.system.interpreters.interpreter import check_interpreter
from buildsys.system.processes import describe_exit
from buildsys.workers.client.environment import server_environment
from buildsys.workers.client.launch import check_toolchain
from buildsys.workers.job import Job
from buildsys.workers.protocol import Message, error_from_json, job_to_json
from buildsys.workers.server_kinds import server_kind_of, toolchain_of

INTERRUPTED = 130  # exit code of the process after Ctrl-C


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
    kind, toolchain = server_kind_of(job), toolchain_of(job)
    path = None if toolchain is None else check_interpreter(toolchain).require().path
    request = {
        "job": job_to_json(job),
        "preload": kind.preload,
        "without": kind.without,
        "debugger": debugger,
        "parent": os.getpid(),
    }
    file = folder / "request.json"
    file.write_text(json.dumps(request), encoding="utf-8")
    python = sys.executable if toolchain is None else str(toolchain.python)
    interrupt = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the stage, or for its debugger
    try:
        process = subprocess.Popen(
            [python, "-m", "buildsys.workers.server.foreground", str(file)],
            cwd=folder,  # `-m` imports from here first
            env={**server_environment(folder, os.environ, toolchain, path), **job.environment},
        )
        code = process.wait()
    finally:
        signal.signal(signal.SIGINT, interrupt)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    try:
        answer: Message = json.loads((folder / "answer.json").read_bytes())
    except (OSError, ValueError):
        died = f"the worker of {job.target} {describe_exit(code)}"
        raise WorkerDied(died, "the output above has its last words") from None
    if answer["event"] == "error":
        raise error_from_json(answer["error"])
    return answer
