"""Runs a short text in another interpreter and reads what it answers, whatever else that interpreter does."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildsys.errors import UsageError

LIMIT_VARIABLE = "BUILDSYS_INTERPRETER_LIMIT"
_DEFAULT_LIMIT_S = 30.0
_UNITS_S = {"": 1.0, "s": 1.0, "min": 60.0}
_KEPT_OUTPUT = 4000  # characters
_CRASHES = {
    signal.SIGSEGV: "crashed with a segmentation fault",
    signal.SIGABRT: "aborted",
    signal.SIGBUS: "crashed with a bus error",
    signal.SIGILL: "crashed on an instruction that this processor lacks",
    signal.SIGKILL: "was killed",
}


@dataclass(frozen=True)
class Answer:
    """What came back: an answer, or how the program ended without one."""

    fields: Mapping[str, Any] | None
    how: str = ""  # it ended, e.g. "ended with exit code 1"
    output: str = ""  # the end of what it printed
    in_time: bool = True
    crashed: bool = False
    pid: int = 0  # of the program that was started

    @property
    def last_line(self) -> str:
        """The last line that it printed."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return _readable(lines[-1]) if lines else ""


def limit_s(environment: Mapping[str, str]) -> float:
    """Return how long an interpreter may take to answer.

    Raises: UsageError: BUILDSYS_INTERPRETER_LIMIT is not a time.
    """
    text = environment.get(LIMIT_VARIABLE, "").strip()
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|)", text)
    if text and (found is None or not float(found[1])):
        raise UsageError(f"{LIMIT_VARIABLE}={text} is not a time", "write 30, 30s or 2min")
    return float(found[1]) * _UNITS_S[found[2]] if found else _DEFAULT_LIMIT_S


def ask(
    python: Path,
    text: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    within_s: float,
) -> Answer:
    """Run ``text`` in an interpreter; it answers by JSON on the descriptor that is its first argument.

    Raises: OSError: the program cannot be started.
    """
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as output, os.fdopen(reader, "rb") as answer:
        try:
            process = subprocess.Popen(
                [str(python), "-c", text, str(writer), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",  # a project may hold a json.py of its own
                env=dict(environment),
                pass_fds=[writer],
                start_new_session=True,  # what it starts ends with it
            )
        finally:
            os.close(writer)
        try:
            said = _read(answer.fileno(), within_s)
            code = _end(process, within_s) if said is not None else None
        finally:
            _kill(process)
        output.seek(0)
        printed = output.read()[-_KEPT_OUTPUT:].decode(errors="replace")
    if said is None or code is None:
        return Answer(None, f"did not answer within {within_s:g} s", printed, in_time=False)
    with contextlib.suppress(ValueError):
        fields = json.loads(said)
        if isinstance(fields, dict):
            return Answer(fields, output=printed, pid=process.pid)
    return Answer(None, _ending(code), printed, crashed=code < 0)


def _read(descriptor: int, within_s: float) -> bytes | None:
    """Return all that is written until the other end closes; None when that takes too long."""
    deadline, pieces = time.monotonic() + within_s, list[bytes]()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
    return None


def _end(process: subprocess.Popen[bytes], within_s: float) -> int | None:
    try:
        return process.wait(within_s)
    except subprocess.TimeoutExpired:
        return None


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        number = signal.Signals(-code)
        return f"{_CRASHES.get(number, 'was killed')} ({number.name})"
    return f"was killed by signal {-code}"


def _readable(line: str) -> str:
    text = "".join(character if character.isprintable() else "�" for character in line)
    return text if len(text) <= 160 else f"{text[:157]}…"
