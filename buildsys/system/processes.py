"""Processes: one-shot Python children, foreign processes, exit causes, limits, parent death."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from buildsys.system.units import number_or_text, parse_duration

_SHORTEST_S = 1e-6  # 0 would be no limit
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_CRASHES = {
    signal.SIGSEGV: "crashed with a segmentation fault (SIGSEGV)",
    signal.SIGBUS: "crashed with a bus error (SIGBUS)",
    signal.SIGILL: "crashed on an instruction this processor does not support (SIGILL)",
    signal.SIGFPE: "crashed with an arithmetic error (SIGFPE)",
    signal.SIGABRT: "aborted (SIGABRT)",
    signal.SIGXCPU: "exceeded its CPU time limit (SIGXCPU)",
}


@dataclass(frozen=True)
class Process:
    """Any process, not only a child of this one.

    The start time distinguishes it from a later process with the same pid.
    """

    pid: int
    started: int  # clock ticks since boot; 0 if it had already ended

    @classmethod
    def of(cls, pid: int) -> "Process":
        """Identify the current process with this pid."""
        return cls(pid, _start_ticks(pid))

    @property
    def is_running(self) -> bool:
        """Return True until the process ends; a zombie has ended."""
        return self.started > 0 and _start_ticks(self.pid) == self.started

    def wait(self, limit_s: float) -> bool:
        """Wait for the end of the process. Return False after ``limit_s``."""
        deadline = time.monotonic() + limit_s
        while self.is_running:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended or is another user's."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)


def _start_ticks(pid: int) -> int:
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return 0
    return 0 if state in "ZX" else int(fields[18])


def kill_group(pid: int) -> None:
    """Kill a process group, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def die_with_parent(parent: int, number: signal.Signals) -> None:
    """Request a signal for the end of the parent.

    It is sent at once if the parent has ended. Linux sends it when the *thread* that started
    this process ends, not its process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def end_with_parent(parent: int) -> None:
    """Let this process be killed when its parent ends.

    With a wrapper script between both, the script is the parent: nothing is requested then.
    """
    if os.getppid() == parent:
        die_with_parent(parent, signal.SIGKILL)


def resident_memory(pid: int | str = "self") -> tuple[int, int] | None:
    """Read a process's resident memory and its peak in bytes, None if unknown."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    kib = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    if "VmHWM" not in kib:  # it has ended
        return None
    return int(kib["VmRSS"][0]) * 1024, int(kib["VmHWM"][0]) * 1024


@contextlib.contextmanager
def raised_after(limit_s: float, error: BaseException) -> Iterator[None]:
    """Raise ``error`` in a block that takes longer; in the main thread only."""

    def stop(_number: int, _frame: FrameType | None) -> NoReturn:
        raise error

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(limit_s, _SHORTEST_S))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def children_of(pid: int) -> set[int]:
    """List the children of a process, zombies included. Empty where the kernel lists none."""
    children: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):  # per thread
        with contextlib.suppress(OSError):
            children.update(map(int, task.read_text().split()))
    return children


def adopt_orphans() -> None:
    """Make this process the parent of all descendants whose own parents end (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants() -> None:
    """Kill all descendants of this process, which has adopted the orphans, and reap them."""
    while children := children_of(os.getpid()):
        for pid in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def describe_exit(code: int | None) -> str:
    """Write the predicate of a sentence like "the worker of export:m …".

    ``code`` is an exit code, a negative signal number, or None for a process that hung.
    """
    if code is None:
        return "stopped responding"
    if code >= 0:
        return f"exited with code {code} without a result"
    if code == -signal.SIGKILL:
        return "was killed by signal 9 (SIGKILL), probably because memory ran out"
    try:
        number = signal.Signals(-code)
    except ValueError:
        return f"was killed by signal {-code}"
    return _CRASHES.get(number, f"was killed by signal {-code} ({number.name})")


@dataclass(frozen=True)
class ChildResult:
    """The end of a one-shot child process and its output."""

    code: int | None  # None: it exceeded its time limit and was killed
    stdout: str
    stderr: str

    @property
    def problem(self) -> str:
        """Return the last line of stderr, or the exit cause. "" after success."""
        if self.code == 0:
            return ""
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        return lines[-1].strip() if lines else describe_exit(self.code)

    def json(self) -> Any:
        """Parse the JSON document on the last line of stdout.

        Raises: ValueError: it is not JSON.
        """
        return json.loads(self.stdout.strip().rpartition("\n")[2])


def run_python(
    arguments: Sequence[str],
    request: object = None,
    *,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
    limit_s: float | None = None,
) -> ChildResult:
    """Run a one-shot Python process that finds this package.

    ``request`` is on its stdin as JSON. Heavy or crash-prone libraries are loaded there, never in
    the orchestrator.

    Raises: OSError: ``python`` cannot be started.
    """
    command = [python, *arguments]
    return run_program(command, package_environment(environment), request, limit_s)


def run_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    request: object = None,
    limit_s: float | None = None,
) -> ChildResult:
    """Run a program, and kill everything that it started. Raises: OSError: it cannot be started."""
    with contextlib.ExitStack() as stack:
        # files, as a process that it leaves behind could hold pipes open
        stdin, *outputs = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        stdin.write(b"" if request is None else json.dumps(request).encode())
        stdin.seek(0)
        process = subprocess.Popen(
            command, stdin=stdin, stdout=outputs[0], stderr=outputs[1], env=dict(environment),
            cwd="/", start_new_session=True,  # a project may contain its own onnx.py
        )  # fmt: skip
        code: int | None = None
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            kill_group(process.pid)
            process.wait()
        texts = []
        for file in outputs:
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return ChildResult(code, *texts)


def package_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Make an environment with this package on its module path."""
    base = dict(os.environ if environment is None else environment)
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (root, base.get("PYTHONPATH", ""))))
    return {**base, "PYTHONPATH": path}


def time_limit_s(environment: Mapping[str, str], variable: str, default_s: float) -> float:
    """Read a duration in an environment variable; the command line has checked it."""
    text = environment.get(variable, "").strip()
    return parse_duration(number_or_text(text)) if text else default_s
