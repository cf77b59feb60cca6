from __future__ import annotations

import signal
from pathlib import Path

import pytest

from buildsys.system.exit_causes import how_it_ended, shown


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (
            -signal.SIGKILL,
            "was killed by signal 9 (SIGKILL), most likely by the system for lack of memory",
        ),
        (-signal.SIGSEGV, "crashed with a segmentation fault (SIGSEGV)"),
        (-signal.SIGABRT, "aborted (SIGABRT)"),
        (-signal.SIGTERM, "was killed by signal 15 (SIGTERM)"),
        (-50, "was killed by signal 50"),
        (3, "ended with exit code 3 before it gave an answer"),
        (0, "ended with exit code 0 before it gave an answer"),
        (None, "stopped answering"),
    ],
)
def test_each_end_has_its_sentence(code: int | None, sentence: str) -> None:
    assert how_it_ended(code) == sentence


def test_paths_are_shown_as_seen_from_the_project() -> None:
    assert shown(Path("/p/build/m/export.log"), Path("/p")) == "build/m/export.log"
    assert shown(Path("/elsewhere/export.log"), Path("/p")) == "/elsewhere/export.log"
