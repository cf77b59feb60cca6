from __future__ import annotations

import signal
from pathlib import Path

import pytest

from buildsys.system.processes import describe_exit
from buildsys.workers.job import Job


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (
            -signal.SIGKILL,
            "was killed by signal 9 (SIGKILL), probably because memory ran out",
        ),
        (-signal.SIGSEGV, "crashed with a segmentation fault (SIGSEGV)"),
        (-signal.SIGABRT, "aborted (SIGABRT)"),
        (-signal.SIGTERM, "was killed by signal 15 (SIGTERM)"),
        (-50, "was killed by signal 50"),
        (3, "exited with code 3 without a result"),
        (0, "exited with code 0 without a result"),
        (None, "stopped responding"),
    ],
)
def test_each_end_has_its_sentence(code: int | None, sentence: str) -> None:
    assert describe_exit(code) == sentence


def test_paths_are_shown_as_seen_from_the_project() -> None:
    job = Job("export:m", "export", "m", "", {}, {}, {}, Path("/p"))
    assert job.display_path(Path("/p/build/m/export.log")) == "build/m/export.log"
    assert job.display_path(Path("/elsewhere/export.log")) == "/elsewhere/export.log"
