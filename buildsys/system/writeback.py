"""Start writing a finished file to disk while the stage goes on."""

from __future__ import annotations

import os
import threading
from pathlib import Path

_WORTH_IT = 16 * 2**20  # bytes


def start_writeback(path: Path) -> None:
    """Begin to flush ``path`` in the background.

    Some file systems write a file out when it replaces another one, as outputs do when they are published: what is
    on its way already does not hold that up. Nothing relies on it, so nothing is said when it fails.
    """
    if path.stat().st_size >= _WORTH_IT:
        threading.Thread(target=_flush, args=(path,), daemon=True).start()


def _flush(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # renamed or removed meanwhile
        return
    try:
        os.fdatasync(handle)
    except OSError:  # the fsync after publishing reports it
        return
    finally:
        os.close(handle)
