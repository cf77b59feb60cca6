"""Loads libraries into a worker server, and says what went wrong."""

from __future__ import annotations

import contextlib
import importlib
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def preload(modules: Iterable[str], without: Iterable[str] = ()) -> str:
    """Load ``modules`` while those of ``without`` look not installed; return what is wrong with the first one.

    A later one that cannot be loaded is left out: a stage that needs it says so itself.
    """
    with _hidden(without):
        for position, name in enumerate(modules):
            problem = load(name)
            if problem and position == 0:
                return problem
    log(f"ready, {_count_threads()} threads")
    return ""


def load(name: str) -> str:
    """Import a module; return what went wrong. A broken library may raise anything at all."""
    if name in sys.modules:
        return ""
    log(f"importing {name}")  # the last such line tells which library crashed
    try:
        importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            log(f"{name} is not installed")
        else:
            traceback.print_exc()
        return f"cannot import {name}: {type(error).__name__}: {error}"
    return ""


def log(line: str) -> None:
    """Write to the server's log, which its output is."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@contextlib.contextmanager
def _hidden(names: Iterable[str]) -> Iterator[None]:
    """Make importing ``names`` fail for a while, as if they were not installed."""
    hidden = [name for name in names if name not in sys.modules]
    modules: dict[str, Any] = sys.modules
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:  # a stage that asks for it later gets it
            del modules[name]


def _count_threads() -> str:
    tasks = Path("/proc/self/task")
    return str(sum(1 for _ in tasks.iterdir())) if tasks.exists() else "an unknown number of"
