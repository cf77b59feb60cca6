"""Messages between orchestrator, worker server and child: JSON lines. Standard library only.

Orchestrator and server share one *control* socket per connection; it keeps the server alive. For
each job the orchestrator sends one end of a new *channel* over it. The request,
``{"job", "log", "debugger", "timeout_s", "preload", "environment", "server_log"}``, comes through
that channel, with the terminal of a job in the foreground, and so do all answers:

- of the child: ``{"event": "started", "pid"}``, any number of ``{"event": "progress", "message"}``
  and ``{"event": "count", "done", "total", "unit"}``, then ``{"event": "result", …}`` or
  ``{"event": "error", "error"}``;
- of the server: ``{"event": "exit", …}`` after the child ended, or
  ``{"event": "refused", "error"}`` if none was forked.

End of file on control means that the other process is gone; on a channel, that the orchestrator no
longer wants the result.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from buildsys.errors import BuildsysError, CheckFailed, StageError, Unavailable, WorkerDied
from buildsys.system.toolchains import Toolchain
from buildsys.workers.job import Job

Message = dict[str, Any]
JOB, RETIRE = b"j", b"r"  # on control: a job's channel comes along; end after the running jobs
TERMINAL = (0, 1, 2)  # descriptors of a job in the foreground
INTERRUPTED = 130  # exit code of a stage in the foreground after Ctrl-C
_PATHS = ("inputs", "outputs", "advisory")  # fields with paths by role
_LOCAL = ("progress", "count", "fail")
_ERRORS = {kind.__name__: kind for kind in (StageError, CheckFailed, Unavailable, WorkerDied)}


class JobNotStartedError(WorkerDied):
    """A job not started by its server; another one can run it."""


def encode(message: Mapping[str, Any]) -> bytes:
    """Encode ``message`` as one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


@dataclass
class LineBuffer:
    """A buffer to split received bytes into lines."""

    longest: float = math.inf  # bytes of one message
    _pieces: list[bytes] = field(default_factory=list)
    _waiting: int = 0  # bytes of an incomplete line

    def feed(self, piece: bytes) -> list[bytes]:
        """Split off the lines completed by ``piece``. Raises: ValueError: a line is too long."""
        whole, newline, rest = piece.rpartition(b"\n")
        self._waiting = len(rest) if newline else self._waiting + len(piece)
        if self._waiting > self.longest:
            raise ValueError("a message is too long")
        if not newline:
            self._pieces.append(piece)
            return []
        lines = b"".join((*self._pieces, whole)).split(b"\n")
        self._pieces = [rest]
        return lines


def decode(lines: Iterable[bytes]) -> Iterator[Message]:
    """Read messages, without a line that its killed writer left incomplete."""
    for line in lines:
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def job_to_json(job: Job) -> Message:
    """Convert ``job`` to JSON values, without its callbacks."""
    toolchain = job.toolchain
    return {
        **{name: value for name, value in vars(job).items() if name not in _LOCAL},
        "options": dict(job.options),
        "environment": dict(job.environment),
        "project": str(job.project),
        **{name: {role: str(path) for role, path in getattr(job, name).items()} for name in _PATHS},
        "toolchain": toolchain and {**asdict(toolchain), "python": str(toolchain.python)},
        "timing_caches": job.timing_caches and str(job.timing_caches),
    }


def job_from_json(fields: Message) -> Job:
    """Make a job from the values of ``job_to_json``, without callbacks."""
    toolchain, caches = fields["toolchain"], fields["timing_caches"]
    converted = {
        "project": Path(fields["project"]),
        **{name: {role: Path(path) for role, path in fields[name].items()} for name in _PATHS},
        "timing_caches": caches and Path(caches),
        "earlier": tuple(fields["earlier"]),
        "exclusive": tuple(fields["exclusive"]),
        "preload": tuple(fields["preload"]),
        "toolchain": toolchain and Toolchain(**{**toolchain, "python": Path(toolchain["python"])}),
    }
    return Job(**{**fields, **converted})


def error_to_json(error: BuildsysError) -> Message:
    """Convert ``error`` to JSON values. Other classes become stage errors."""
    if isinstance(error, StageError) and type(error).__name__ in _ERRORS:
        return {"class": type(error).__name__, "problem": error.problem, "hint": error.hint}
    return {"class": StageError.__name__, "problem": str(error), "hint": ""}


def error_from_json(fields: Message) -> StageError:
    """Make an error from the values of ``error_to_json``."""
    return _ERRORS[fields["class"]](fields["problem"], fields["hint"])
