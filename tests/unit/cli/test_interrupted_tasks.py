"""Ctrl-C and SIGTERM while doit runs our tasks, in this process."""

import os
import pty
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from cli_doubles import Doit

from buildsys.cli.console.reporter import NOTICE
from buildsys.errors import WorkerDied


@pytest.mark.parametrize("processes", [(), ("-n", "2")])
def test_ctrl_c_never_arrives_while_doit_holds_a_lock(
    doit: Doit, processes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A KeyboardInterrupt inside of ``queue.Queue.get`` releases a lock that it does not hold."""
    in_lock: list[BaseException] = []
    sent = threading.Event()

    def send_in_lock(lock: Any) -> None:
        if not sent.is_set() and threading.current_thread() is threading.main_thread():
            try:
                with lock:
                    sent.set()
                    signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt as error:
                in_lock.append(error)
                raise

    original = queue.Queue.get

    def get(self: Any, *arguments: Any, **options: Any) -> Any:
        if processes:
            send_in_lock(self.mutex)
        return original(self, *arguments, **options)

    def work() -> Any:
        if not processes:
            send_in_lock(threading.Lock())
        while not doit.session.interrupted:
            time.sleep(0.001)
        raise WorkerDied("the worker was stopped")

    monkeypatch.setattr(queue.Queue, "get", get)
    doit.actions["export:net"] = doit.actions["reference:net"] = work
    code, out = doit(*processes)
    assert (code, in_lock) == (130, [])
    assert "Traceback" not in out
    assert out.endswith("interrupted; finished targets are kept, the rest will run next time\n")


def test_an_end_at_once_shows_the_cursor_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    controller, terminal = pty.openpty()
    code = f"from buildsys.cli.console.reporter import exit_at_once; exit_at_once(130, {NOTICE!r})"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=terminal)
    assert process.wait() == 130
    os.close(terminal)
    printed = os.read(controller, 4096)
    os.close(controller)
    assert printed.startswith(b"\x1b[?25h")
    assert printed.rstrip().endswith(NOTICE.strip().encode())
