"""Reporter of doit's events: a display, then one table per model.

Nothing is imported at the top that a run with nothing to do can go without.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from doit.reporter import ConsoleReporter

from buildsys.cli.command import shown_path
from buildsys.cli.console.progress import (
    ConsoleLine,
    Display,
    broken_lines,
    is_implied,
    target_line,
    up_to_date_lines,
)
from buildsys.cli.console.streams import guarded
from buildsys.cli.interrupts import INTERRUPTED, TERMINATED
from buildsys.cli.session import BuildSession
from buildsys.cli.target_names import is_group_or_target
from buildsys.report.formatting import fold
from buildsys.system.printable import printable

if TYPE_CHECKING:
    from buildsys.cli.failure_report import StaleOutputs

NOTICE = "interrupted; finished targets are kept, the rest will run next time\n"
_END_LIMIT_S = 10.0  # for the main thread, once all workers are stopped
_LOADING_LIMIT_S = 5.0  # at the end of a run, for the thread that loads modules


class Reporter(ConsoleReporter):  # type: ignore[misc]  # doit has no type information
    """Reports the targets of a run to the console; a subclass has the session.

    ``execute_task`` and progress messages come from doit's threads, everything else from the main
    thread.
    """

    session: BuildSession
    runtime_errors: list[str]

    def __init__(self, outstream: TextIO | None, options: Mapping[str, Any]) -> None:
        # doit has the standard output of before it was guarded
        self._out = sys.stdout if outstream in (None, sys.__stdout__) else guarded(outstream)
        super().__init__(self._out, options)
        self._lock = threading.RLock()
        self._lines = self.session.lines
        self._display = Display(self._out, self._lines)
        self._has_others = False  # tasks that are not ours
        self._loading: threading.Thread | None = None
        self._signals = Signals(self.session.interrupt)

    def write(self, text: str) -> None:
        """Print what doit says about tasks that are not ours."""
        with self._lock:
            self._display.write(printable(text))

    def initialize(self, tasks: Mapping[str, Any], selected_tasks: Sequence[str]) -> None:
        """List all targets of this run, in plan order."""
        self._signals.catch()
        self.session.is_run = True
        reached: set[str] = set()
        waiting = list(selected_tasks)
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += (*tasks[name].task_dep, *tasks[name].setup_tasks)
        self._has_others = not all(map(is_group_or_target, reached))
        for name, task in tasks.items():
            if name in reached and task.actions and name in self.session.actions:
                self._lines[name] = target_line(name)
        for name in self.session.up_to_date_targets:
            self._note_up_to_date(self._lines.setdefault(name, target_line(name)))
        self.session.on_event = self._take_event
        self.session.on_warning = self._warn

    def execute_task(self, task: Any) -> None:
        """Note a running target; its stale reason will show it."""
        if not is_group_or_target(task.name):
            super().execute_task(task)
        if line := self._lines.get(task.name):
            line.status, line.began = "running", time.monotonic()

    def add_success(self, task: Any) -> None:
        """Show a passed, unavailable or noisy target."""
        line, finished = self._lines.get(task.name), self.session.finished.get(task.name)
        if line is None or finished is None:
            return
        with self._lock:
            line.status, line.log_file = finished.status, None
            line.reason, line.hint = finished.reason, finished.hint
            is_earlier = finished.waited or finished.restored
            line.seconds = None if is_earlier else finished.seconds
            if line.status in ("unavailable", "noisy"):
                line.recorded = finished.waited
            elif finished.waited:
                line.status, line.reason = "fresh", "built by another run meanwhile"
            else:
                from buildsys.report.key_figures import key_figure

                line.status = "restored" if finished.restored else line.status
                line.figure = key_figure(line.stage, self.session.result(line.target))
            if not is_implied(line, self._lines):
                self._display.ended(line)

    def add_failure(self, task: Any, fail: Any) -> None:
        """Show a failure; targets downstream only appear in the table."""
        line, finished = self._lines.get(task.name), self.session.finished.get(task.name)
        if not is_group_or_target(task.name):
            super().add_failure(task, fail)
        if line is None:
            return
        if finished is None:  # doit names what it depends on
            unmet = fail.message.split()
            failed = [t for t in unmet if t in self._lines and self._lines[t].status == "failed"]
            line.reason = f"needs {', '.join(failed or unmet[:1])}"
            return
        with self._lock:
            line.status, line.hint = "failed", finished.hint
            line.reason = fail.message.strip().removesuffix(line.hint).rstrip("; \n")
            line.log_file, line.seconds = None, finished.seconds
            log = self.session.log(task.name)
            has_log = os.path.exists(log)  # noqa: PTH110 - no error in an unreadable folder
            line.log = shown_path(log) if has_log and log.name not in line.reason else ""
            self._display.ended(line)

    def skip_uptodate(self, task: Any) -> None:
        """Note an up-to-date target."""
        if not is_group_or_target(task.name):
            super().skip_uptodate(task)
        if line := self._lines.get(task.name):
            self._note_up_to_date(line)

    def _note_up_to_date(self, line: ConsoleLine) -> None:
        line.status = "fresh"
        if shortfall := self.session.shortfall(line.target):
            line.status, line.recorded = shortfall, True
            line.reason, line.hint = self.session.recorded_reason(line.target)

    def skip_ignore(self, task: Any) -> None:
        """Note a target skipped because of ``doit ignore``."""
        if not is_group_or_target(task.name):
            super().skip_ignore(task)
        if line := self._lines.get(task.name):
            line.status = "ignored"

    def complete_run(self) -> None:
        """End the run; after an interruption doit calls this during exception handling.

        Raises: SystemExit: a target failed or the run was interrupted; doit counts targets
        downstream of a failed check as errors.
        """
        error = sys.exc_info()[1]
        if isinstance(error, KeyboardInterrupt) and not self.session.interrupted:
            self.session.interrupted = INTERRUPTED
        try:
            self._end_display()
            if self.session.has_summary:
                self._print_end(is_broken=error is not None)
        finally:
            self.session.close()  # the last results are on their way into the store
            self._signals.restore()
        if self.session.finished:
            from buildsys.cli.commands.cache import enforce_limit

            enforce_limit(self.session.project)
        if code := self.session.interrupted or self.session.exit_code:
            raise SystemExit(code)

    def _end_display(self) -> None:
        if self._loading:
            self._loading.join(_LOADING_LIMIT_S)
        self._display.close()
        if self.session.interrupted:
            self.session.close()
            for line in self._lines.values():
                if line.status == "running":
                    line.status, line.reason = "not run", "interrupted"

    def _print_end(self, *, is_broken: bool) -> None:
        """Print the outcome of the run."""
        session, lines = self.session, list(self._lines.values())
        stale: Sequence[StaleOutputs] = ()
        # with `-s` dependencies don't run, without any failure
        if is_broken or any(line.status == "failed" for line in lines):
            from buildsys.cli.failure_report import report_failure

            models = {line.model: None for line in lines if line.status in ("failed", "not run")}
            # after an interruption only models that this run has reached
            reached = {line.model for line in lines if line.has_ended or line.reason}
            unreached = models.keys() - reached if session.interrupted else ()
            stale = report_failure(session, [name for name in models if name not in unreached])
        if stale or any(line.has_ended for line in lines):
            from buildsys.cli.commands.pages import update_pages
            from buildsys.cli.console.run_summary import print_summary

            changed = {line.model for line in lines if line.has_ended}
            changed |= {outputs.model for outputs in stale}
            pages = update_pages(session, [m for m in session.project.models if m in changed])
            print_summary(self._out, session, lines, stale, pages)
        elif not is_broken and not self.runtime_errors and (lines or not self._has_others):
            if session.broken or _has_marks(session.project.build / "report/index.html"):
                from buildsys.cli.commands.pages import update_pages

                update_pages(session, ())
            summary = [*broken_lines(session), *up_to_date_lines(lines)]
            self._out.writelines(printable(f"{text.rstrip()}\n") for text in summary)
        problems, self.runtime_errors = self.runtime_errors, []
        super().complete_run()  # what failed tasks that are not ours have printed
        for problem in problems:
            self._out.write(printable(f"{problem.strip()}\n"))
        if session.interrupted:
            self._out.write(NOTICE)
        self._out.flush()

    def _take_event(self, target: str, event: Mapping[str, Any]) -> None:
        """Show an event of the executor."""
        line, kind = self._lines.get(target), event["event"]
        with self._lock:
            if kind in ("started", "waiting") and self._loading is None:
                from buildsys.cli.commands.pages import prepare

                # while the first worker works, which delays nothing
                self._loading = threading.Thread(target=prepare, daemon=True)
                self._loading.start()
            if line is None:
                return
            if kind == "started":  # the worker; until then it may have waited
                line.began, line.message, line.counter = time.monotonic(), "", ""
                line.log_file = self.session.log(target)
            elif kind == "progress":
                line.message = event["message"]
            elif kind == "count":
                done, total = event["done"], event["total"]
                line.counter = f"{done:,}{f' of {total:,}' if total else ''} {event['unit']}"
            elif kind == "trying":
                problem = fold(event["problem"].partition("\n")[0])[0]
                self._display.note(line, "tries", f"changes of its manifest, after: {problem}")
            elif kind == "stale":
                line.why = event["reason"]
                if not is_implied(line, self._lines):
                    note = f"… {line.why}" if line.why else ""
                    self._display.started(line, "run", note)
            elif kind == "waiting":
                line.message = f"waiting for {event['holder']}"
                if event["elsewhere"]:
                    self._display.started(line, "waits", f"for {event['holder']}")

    def _warn(self, warning: str) -> None:
        with self._lock:
            self._display.warn(warning)


def _has_marks(index: Path) -> bool:
    """Check whether a page marks broken manifests."""
    try:
        return b"pill broken" in index.read_bytes()
    except OSError:
        return False


class Signals:
    """Ctrl-C and SIGTERM during a run, without exceptions at arbitrary points.

    Python raises KeyboardInterrupt wherever the main thread happens to be: inside
    ``queue.Queue.get`` of doit's runner it makes ``Condition.wait`` release a lock that it does
    not hold. Here a thread stops the workers, and what waits for them then raises
    KeyboardInterrupt, holding no lock.
    """

    def __init__(self, stop: Callable[[int], None]) -> None:
        """Call ``stop`` with the exit code after a signal, in a thread."""
        self._stop = stop
        self._exit_code = 0
        self._earlier_handlers: dict[int, Any] = {}
        self._ended = threading.Event()

    def catch(self) -> None:
        """Install the handlers, if this is the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._earlier_handlers[number] = signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGINT and self._exit_code:
            exit_at_once(INTERRUPTED)  # Ctrl-C a second time; workers end with this process
        self._exit_code = INTERRUPTED if number == signal.SIGINT else TERMINATED
        _thread.start_new_thread(self._end, (self._exit_code,))  # Thread.start takes locks

    def _end(self, exit_code: int) -> None:
        self._stop(exit_code)
        if not self._ended.wait(_END_LIMIT_S):  # for example, in a slow download
            exit_at_once(exit_code, NOTICE)

    def restore(self) -> None:
        """Restore the handlers of before the run."""
        while self._earlier_handlers:
            signal.signal(*self._earlier_handlers.popitem())
        self._ended.set()


def exit_at_once(code: int, notice: str = "") -> None:
    """End this process at once, after restoring a hidden cursor."""
    if os.isatty(1):
        notice = f"\x1b[?25h\r\n{notice}"
    with suppress(OSError):
        os.write(1, notice.encode())
    os._exit(code)
