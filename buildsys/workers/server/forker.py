"""Fork the children of a worker server."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from buildsys.system.processes import die_with_parent

SERVER_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD)


def fork_child(work: Callable[[], NoReturn]) -> int:
    """Run ``work`` in a forked child with its own process group. Return its pid.

    Raises: OSError: no memory or no process is left.
    """
    server = os.getpid()
    flush()
    gc.freeze()  # a collection in the child then does not copy shared pages
    signal.pthread_sigmask(signal.SIG_BLOCK, SERVER_SIGNALS)  # a child must not run its handlers
    try:
        pid = os.fork()
        if pid != 0:
            return pid
        try:
            os.setsid()  # a time-out reaches the processes it starts, Ctrl-C reaches none of them
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGINT, *SERVER_SIGNALS):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SERVER_SIGNALS)
            die_with_parent(server, signal.SIGKILL)
            gc.enable()
            work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)  # never return to the server's loop
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SERVER_SIGNALS)


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to a child and to the processes it started."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:  # just forked, not yet the leader of its group
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def flush() -> None:
    """Write out the buffers of Python and C. A child would write them again."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
