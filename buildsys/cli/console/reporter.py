"""The reporter: tells doit's events to a screen and closes a run with one table per model.

As long as nothing has to run, nothing is imported here that a run with nothing to do can go without.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TextIO

from buildsys.cli.console.target_line import ENDED, Line
from buildsys.cli.session import Session
from buildsys.errors import with_hint

if TYPE_CHECKING:
    from buildsys.cli.console.progress import Screen
    from buildsys.cli.failures.stale_outputs import LeftBehind

INTERRUPTED, TERMINATED = 130, 143


class Reporter:
    """Reports to the console what runs, for how long, what failed and why.

    doit makes one from a subclass that is bound to a session. ``execute_task`` and progress messages come
    from the threads of ``doit -n``, everything else from the main thread.
    """

    desc = "live display on a terminal, plain lines elsewhere, one closing table per model"
    session: ClassVar[Session]

    def __init__(self, outstream: TextIO, options: Mapping[str, Any]) -> None:
        del options  # how much captured output to show; nothing is captured here
        if hasattr(outstream, "reconfigure"):
            outstream.reconfigure(errors="replace")  # a terminal that lacks ✓ is no reason to fail
        self._out = outstream
        self._lock = threading.RLock()
        self._lines: dict[str, Line] = {}
        self._screen: Screen | None = None
        self._problems: list[str] = []
        self._prepared = False
        self._handlers: dict[signal.Signals, Any] = {}
        self._began = time.monotonic()

    # --- doit's events, by doit's names -----------------------------------------------------------

    def initialize(self, tasks: Mapping[str, Any], selected_tasks: Sequence[str]) -> None:
        """Note all targets that this run may come to."""
        self._lines = {
            target: self._line(target) for target in self._reachable(tasks, selected_tasks)
        }
        self._lines.update(
            (target, self._line(target, "fresh")) for target in self.session.settled_targets
        )
        self.session.progress = self._progress
        self.session.waits = self._waits
        self.session.stale = self._stale
        self._handle(signal.SIGTERM, _terminate)

    def get_status(self, task: Any) -> None:
        """Do nothing when doit looks whether a task is up to date."""

    def execute_task(self, task: Any) -> None:
        """Show that a target runs."""
        line = self._lines.get(task.name)
        if line is None:
            return
        with self._lock:
            line.status, line.began = "running", time.monotonic()

    def add_success(self, task: Any) -> None:
        """Show that a target passed, or that it cannot run on this machine."""
        line, finished = self._lines.get(task.name), self.session.finished.get(task.name)
        if line is None or finished is None:
            return
        with self._lock:
            line.status = (
                "fresh"
                if finished.elsewhere
                else "restored"
                if finished.restored
                else finished.status
            )
            unrun = finished.elsewhere or finished.restored
            line.seconds = (
                None if unrun else finished.seconds
            )  # without waiting for other benchmarks
            told = (
                ("built by another run meanwhile", "")
                if finished.elsewhere
                else (finished.reason, finished.hint)
            )
            line.reason = with_hint(*told)
            self._open_screen().ended(line)

    def add_failure(self, task: Any, fail: Any) -> None:
        """Show why a target failed; those behind it are only listed at the end."""
        line = self._lines.get(task.name)
        if line is None:
            return
        with self._lock:
            if fail.get_name() == "UnmetDependency":
                line.reason = self._needed(fail.message.split())
                return
            line.status = "failed"
            finished = self.session.finished.get(task.name)
            line.seconds = finished.seconds if finished else 0.0
            line.reason = fail.message.strip()
            line.log = self._log(task.name, line.reason)
            self._open_screen().ended(line)

    def skip_uptodate(self, task: Any) -> None:
        """Note a target that has nothing to do."""
        self._note(task.name, "fresh")

    def skip_ignore(self, task: Any) -> None:
        """Note a target that is not run because of ``doit ignore``."""
        self._note(task.name, "ignored")

    def cleanup_error(self, exception: Any) -> None:
        """Tell of a failed teardown, should a task ever have one."""
        self._problems.append(exception.get_msg())

    def runtime_error(self, msg: str) -> None:
        """Keep an error of doit itself for the end."""
        self._problems.append(msg)

    def teardown_task(self, task: Any) -> None:
        """Do nothing: targets have no teardown."""

    def complete_run(self) -> None:
        """Close the run: also after Ctrl-C, when doit calls this with the exception on its way."""
        error = sys.exc_info()[1]
        stopped = isinstance(error, KeyboardInterrupt | SystemExit)
        if stopped:
            self._handle(signal.SIGINT, _leave_at_once)
        try:
            if self._screen:
                self._screen.close()
            if stopped:
                self.session.close()
                self._stop_running_lines()
            self._tell_end(stopped, broken=error is not None)
        finally:
            self.session.close()
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
        if stopped:
            raise SystemExit(error.code if isinstance(error, SystemExit) else INTERRUPTED) from None

    # --- behind them ------------------------------------------------------------------------------

    def _tell_end(self, stopped: bool, *, broken: bool) -> None:
        lines = list(self._lines.values())
        left = self._left_behind(lines, stopped=stopped, broken=broken)
        if left or any(line.status in ENDED for line in lines):
            from buildsys.cli.console.run_summary import tell_end

            tell_end(self._out, self.session, lines, time.monotonic() - self._began, left)
        elif not broken and not self._problems:
            self._out.write(_nothing_to_do(lines))
        for problem in self._problems:
            self._out.write(f"{problem.strip()}\n")
        if stopped:
            self._out.write("interrupted: what had passed stays, the rest runs next time\n")
        self._out.flush()

    def _left_behind(
        self, lines: Sequence[Line], *, stopped: bool, broken: bool
    ) -> Sequence[LeftBehind]:
        """Return what is left of earlier passes in models in which a target failed or did not get its turn."""
        if not broken and not any(line.status == "failed" for line in lines):
            return ()  # with `-s` what a target needs is not run, and all is well
        short = [line.model for line in lines if line.status in ("failed", "not run")]
        if stopped:  # nobody waits for models that were not come to
            touched = {line.model for line in lines if line.status in ENDED or line.reason}
            short = [model for model in short if model in touched]
        if not short:
            return ()
        from buildsys.cli.failures.stale_outputs import after_failure

        return after_failure(self.session, dict.fromkeys(short))

    def _handle(self, number: signal.Signals, handler: Callable[..., NoReturn]) -> None:
        if (
            threading.current_thread() is threading.main_thread()
        ):  # Python takes signals nowhere else
            self._handlers[number] = signal.signal(number, handler)

    def _line(self, target: str, status: str = "not run") -> Line:
        stage, model, variant = (*target.split(":", 2), "")[:3]
        return Line(target, model, stage, variant, status)

    def _reachable(self, tasks: Mapping[str, Any], selected: Iterable[str]) -> list[str]:
        """Return the targets that ``selected`` comes to, in the order of the plan."""
        reached: set[str] = set()
        waiting = list(selected)
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting.extend(tasks[name].task_dep)
        return [name for name, task in tasks.items() if name in reached and not task.has_subtask]

    def _needed(self, targets: Sequence[str]) -> str:
        """Return what a target waits for, of targets that did not pass: those that failed, not those behind them."""
        failed = [
            name for name in targets if name in self._lines and self._lines[name].status == "failed"
        ]
        return f"needs {', '.join(failed or targets[:1])}"

    def _note(self, target: str, status: str) -> None:
        if target in self._lines:
            self._lines[target].status = status

    def _progress(self, target: str, message: str) -> None:
        if target in self._lines:
            self._lines[target].message = message
        if (
            not self._prepared
        ):  # rich is loaded once the first worker works: not before, nor when all are done
            self._prepared = True
            threading.Thread(
                target=import_module, args=("buildsys.cli.console.run_summary",), daemon=True
            ).start()

    def _stale(self, target: str, reason: str) -> None:
        with self._lock:
            if target in self._lines:
                self._lines[target].why = reason
                self._open_screen().started(self._lines[target])

    def _waits(self, target: str, holder: str) -> None:
        with self._lock:
            if target in self._lines:
                self._open_screen().waits(self._lines[target], holder)

    def _log(self, target: str, reason: str) -> str:
        """Return where the log of a failed target lies, unless ``reason`` says it already."""
        path = self.session.log(target)
        shown = os.path.relpath(path)
        return shown if path.exists() and path.name not in reason else ""

    def _open_screen(self) -> Screen:
        if self._screen is None:
            from buildsys.cli.console.progress import open_screen

            self._screen = open_screen(self._out, self._running, self._tally)
        return self._screen

    def _running(self) -> list[Line]:
        return [line for line in list(self._lines.values()) if line.status == "running"]

    def _tally(self) -> str:
        done = sum(line.status not in ("running", "not run") for line in list(self._lines.values()))
        return f"{done} of {len(self._lines)} targets done"

    def _stop_running_lines(self) -> None:
        for line in self._running():
            line.status, line.reason = "not run", "interrupted"


def _nothing_to_do(lines: Sequence[Line]) -> str:
    if not lines:
        return "no targets: there is no manifest in the models folder yet\n"
    ignored = sum(line.status == "ignored" for line in lines)
    fresh = sum(line.status == "fresh" for line in lines)
    noted = f", {ignored} ignored" if ignored else ""
    return f"everything is up to date ({fresh} target{'s' * (fresh != 1)}{noted})\n"


def _terminate(*_: int | FrameType | None) -> NoReturn:
    raise SystemExit(TERMINATED)


def _leave_at_once(*_: int | FrameType | None) -> NoReturn:
    os._exit(
        INTERRUPTED
    )  # Ctrl-C a second time: workers end by themselves once this process is gone
