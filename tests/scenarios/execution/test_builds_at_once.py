"""Several builds at once and a killed worker, with real processes and stages.

``ran`` are all targets brought up to date: ``passed`` the rebuilt ones, ``restored`` the others.
"""

import os
from collections import Counter

from doit_server import ForkedDoit
from project_folder import finish, wait_until
from ready_project import UP_TO_DATE, ReadyProject, contents, targets

ALL = targets("a")


def read_until(process: ForkedDoit, start: str) -> str:
    """Read output byte by byte up to a line with this start."""
    printed = b""
    while not printed.endswith(b"\n") or not printed.splitlines()[-1].startswith(start.encode()):
        character = os.read(process.stdout.fileno(), 1)
        assert character, printed
        printed += character
    return printed.decode()


def check_right_and_fresh(project: ReadyProject) -> None:
    """Compare everything with a clean build; the next run must do nothing."""
    assert project.doit() == UP_TO_DATE
    assert contents(project.root / "build") == project.clean_contents()


def test_three_at_once_build_each_target_once(ready: ReadyProject) -> None:
    ready.hold()
    first = ready.start()
    wait_until(lambda: ready.is_held, "the first one is at work")
    others = [ready.start("-n", "2"), ready.start()]
    printed = [read_until(process, "waits        reference:a  ") for process in others]
    ready.let_go()
    ran = [finish(first)]
    ran += [finish(process, printed=text) for process, text in zip(others, printed, strict=True)]
    assert [one.code for one in ran] == [0, 0, 0]
    assert Counter(target for one in ran for target in one.passed) == Counter(ALL)
    seeds = ["min", "min"]  # seed-1 and seed-2 have the sizes of min
    assert (ready.root / "calls").read_text().split() == ["min", "opt", "max", "odd", *seeds]
    for text in printed:
        assert f"for process {first.pid} on " in text
        assert "(reference:a, since " in text
    check_right_and_fresh(ready)
