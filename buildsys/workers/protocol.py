"""What the orchestrator, a worker server and its children say to each other: JSON lines. Standard library only.

The orchestrator sends over the *control* socket ``{"job", "log", "timeout_s", "preload"}`` with two file
descriptors: the write end of the job's *events* pipe, for the child alone, and one end of the job's *fate*
socket, for the server alone. Each has one writer, so a message is never torn by another writer's.

On events: ``{"event": "progress", "message"}``, then ``{"event": "result", …}`` or ``{"event": "error", "error"}``.
On fate: ``{"event": "started", "pid"}``, then ``{"event": "exit", …}``; or ``{"event": "refused", "error"}`` alone.
The end of file means, on control: the orchestrator is gone, or the server is; on fate: the job is no longer wanted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from buildsys.errors import BuildsysError, CheckFailed, StageError, Unavailable, WorkerDied
from buildsys.system.interpreters.toolchain import Toolchain
from buildsys.workers.job import Job

Message = dict[str, Any]

_ERRORS = {kind.__name__: kind for kind in (StageError, CheckFailed, Unavailable, WorkerDied)}


def encode(message: Mapping[str, Any]) -> bytes:
    """Return ``message`` as one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class LineBuffer:
    """Joins what arrives in pieces into whole messages."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, piece: bytes) -> list[Message]:
        """Return the messages that ``piece`` completes."""
        whole, newline, rest = piece.rpartition(b"\n")
        if not newline:
            self._pieces.append(piece)
            return []
        lines = b"".join((*self._pieces, whole)).split(b"\n")
        self._pieces = [rest]
        return [json.loads(line) for line in lines]


def job_to_json(job: Job) -> Message:
    """Return the fields of ``job`` as JSON values; ``progress`` and ``fail`` stay behind."""
    return {
        "target": job.target,
        "stage": job.stage,
        "model": job.model,
        "variant": job.variant,
        "options": dict(job.options),
        "inputs": {role: str(path) for role, path in job.inputs.items()},
        "outputs": {role: str(path) for role, path in job.outputs.items()},
        "project": str(job.project),
        "advisory": {role: str(path) for role, path in job.advisory.items()},
        "toolchain": None
        if job.toolchain is None
        else {**asdict(job.toolchain), "python": str(job.toolchain.python)},
        "timing_caches": None if job.timing_caches is None else str(job.timing_caches),
        "threads": job.threads,
    }


def job_from_json(fields: Message, **local: Any) -> Job:
    """Return the job that ``fields`` describe; ``local`` are the fields that do not travel."""
    there, caches = fields["toolchain"], fields["timing_caches"]
    paths = {
        "inputs": {role: Path(path) for role, path in fields["inputs"].items()},
        "outputs": {role: Path(path) for role, path in fields["outputs"].items()},
        "project": Path(fields["project"]),
        "advisory": {role: Path(path) for role, path in fields["advisory"].items()},
        "timing_caches": None if caches is None else Path(caches),
    }
    toolchain = None if there is None else Toolchain(**{**there, "python": Path(there["python"])})
    return Job(**{**fields, **paths, "toolchain": toolchain, **local})


def error_to_json(error: BuildsysError) -> Message:
    """Return ``error`` as JSON values; one that is not a stage's own travels as a ``StageError``."""
    if isinstance(error, StageError) and type(error).__name__ in _ERRORS:
        return {"class": type(error).__name__, "problem": error.problem, "hint": error.hint}
    return {"class": StageError.__name__, "problem": str(error), "hint": ""}


def error_from_json(fields: Message) -> StageError:
    """Return the error that ``error_to_json`` described."""
    return _ERRORS[fields["class"]](fields["problem"], fields["hint"])
