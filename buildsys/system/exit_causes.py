"""Plain sentences for how a process ended."""

from __future__ import annotations

import signal
from pathlib import Path

_CRASHES = {
    signal.SIGSEGV: "crashed with a segmentation fault (SIGSEGV)",
    signal.SIGBUS: "crashed with a bus error (SIGBUS)",
    signal.SIGILL: "crashed on an instruction that this processor lacks (SIGILL)",
    signal.SIGFPE: "crashed with an arithmetic error (SIGFPE)",
    signal.SIGABRT: "aborted (SIGABRT)",
    signal.SIGKILL: "was killed by signal 9 (SIGKILL), most likely by the system for lack of memory",
    signal.SIGXCPU: "used up its limit of processor time (SIGXCPU)",
}


def how_it_ended(code: int | None) -> str:
    """Return the end of a sentence such as "the worker of export:m …" for an exit code, negative for a signal."""
    if code is None:
        return "stopped answering"
    if code >= 0:
        return f"ended with exit code {code} before it gave an answer"
    try:
        number = signal.Signals(-code)
    except ValueError:
        return f"was killed by signal {-code}"
    return _CRASHES.get(number, f"was killed by signal {-code} ({number.name})")


def shown(path: Path, project: Path) -> str:
    """Return ``path`` as a reader in the project folder would type it."""
    return str(path.relative_to(project) if path.is_relative_to(project) else path)
