"""Import libraries into a worker server."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def preload(modules: Iterable[str], without: Iterable[str] = ()) -> str:
    """Import ``modules`` while ``without`` look missing. Return the first one's problem.

    Later ones that cannot be imported are skipped: a stage that needs them reports that.
    """
    hidden = [name for name in without if name not in sys.modules]
    loaded: dict[str, Any] = sys.modules
    loaded.update(dict.fromkeys(hidden))
    try:
        for position, name in enumerate(modules):
            problem = load(name)
            if problem and position == 0:
                return problem
    finally:
        for name in hidden:  # a stage may import it
            del loaded[name]
    tasks = Path("/proc/self/task")
    threads = str(len(list(tasks.iterdir()))) if tasks.exists() else "an unknown number of"
    _log(f"ready, {threads} threads")
    return ""


def load(name: str) -> str:
    """Import a module and return the problem, if any. Broken libraries raise anything."""
    if name in sys.modules:
        return ""
    _log(f"importing {name}")  # the last such line names a library that crashes
    try:
        importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            _log(f"{name} is not installed")
        else:
            traceback.print_exc()
        return f"cannot import {name}: {type(error).__name__}: {error}"
    return ""


def _log(line: str) -> None:
    sys.stdout.write(f"{line}\n")  # stdout is the server's log
    sys.stdout.flush()
