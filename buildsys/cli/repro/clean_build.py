"""Builds targets of a project anew, for ``doit repro``: ``python -m buildsys.cli.repro.clean_build ROOT TARGET…``.

A process of its own, because a seed of hashes and a folder for temporary files last for a process's life. It tells how
it goes in JSON, one event a line, and goes on after a failure with the targets that do not need what failed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from buildsys.cli.session import Session
from buildsys.errors import BuildsysError, with_hint
from buildsys.manifest.project import load_project
from buildsys.system.processes import die_with_parent

_INTERRUPTED = 130


def main() -> int:
    """Build the targets that the command line names, in its order."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    die_with_parent(os.getppid(), signal.SIGTERM)
    session = Session(load_project(Path(sys.argv[1])))
    session.progress = lambda target, message: _tell("progress", target, message=message)
    session.project.state.mkdir(parents=True, exist_ok=True)
    try:
        _build_all(session, sys.argv[2:])
    except KeyboardInterrupt:
        return _INTERRUPTED
    finally:
        session.close()
    return 0


def _build_all(session: Session, targets: Iterable[str]) -> None:
    failed: set[str] = set()
    for target in targets:
        needed = [name for name in session.actions[target].after if name in failed]
        if needed:
            failed.add(target)
            _tell("ended", target, status="not run", reason=f"needs {', '.join(needed)}")
            continue
        _tell("started", target)
        try:
            outcome = session.executor.run(target, force=True)  # forced: never taken from a store
        except BuildsysError as error:
            failed.add(target)
            log = os.path.relpath(session.log(target), session.project.root)
            _tell("ended", target, status="failed", reason=str(error), log=log)
        else:
            reason = with_hint(outcome.reason, outcome.hint)
            _tell("ended", target, status=outcome.status, seconds=outcome.seconds, reason=reason)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """Interrupt the build, once: Ctrl-C reaches this process from the terminal and from the one that started it."""
    del number, frame
    for again in (signal.SIGINT, signal.SIGTERM):
        signal.signal(again, signal.SIG_IGN)
    raise KeyboardInterrupt


def _tell(event: str, target: str, **rest: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, "target": target, **rest}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
