"""Ten typical failures of build systems, with real processes and stages.

``ran`` are all targets brought up to date: ``passed`` the rebuilt ones, ``restored`` the others.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest
from doit_server import ForkedDoit
from project_folder import Ran, finish, wait_until
from ready_project import VALUES, ReadyProject, contents, targets, workers_in

ALL = targets("a")
UP_TO_DATE = Ran(0, "everything is up to date (8 targets)\n", "")
MANIFEST = "configs/models/a.yaml"
DOWNSTREAM_OF_SIMPLIFY = {"validate:a", "engine:a:ort", "verify:a:ort", "bench:a:ort", "report:a"}


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


def test_1_doit_is_killed_in_the_middle_and_the_manifest_reverted(
    ready_built: ReadyProject,
) -> None:
    before = contents(ready_built.root / "build")
    ready_built.edit(MANIFEST, "max: 4", "max: 8")
    ready_built.edit(MANIFEST, "tool: onnxsim", "tool: none")
    ready_built.hold()
    process = ready_built.start("-n", "2")
    wait_until(lambda: ready_built.is_held, "reference:a is in the middle of its work")
    printed = read_until(process, "done         engine:a:ort")  # by the other thread
    process.kill()
    killed = finish(process, printed=printed)
    assert (killed.code, killed.passed) == (-signal.SIGKILL, {"simplify:a", "engine:a:ort"})
    now = contents(ready_built.root / "build")
    changed = {name for name in now if now[name] != before[name]}
    assert changed == {"a/engine/ort/engine.onnx", "a/simplify/model.onnx"}

    ready_built.let_go()
    ready_built.edit(MANIFEST, "max: 8", "max: 4")
    ready_built.edit(MANIFEST, "tool: none", "tool: onnxsim")
    again = ready_built.doit()
    assert again.code == 0
    assert again.ran == again.restored == {"simplify:a", "engine:a:ort"}
    check_right_and_fresh(ready_built)


def test_5_an_input_is_edited_while_a_stage_runs(ready_built: ReadyProject) -> None:
    before = contents(ready_built.root / "build")
    ready_built.edit(VALUES, "SCALE = 1.0", "SCALE = 2.0")
    ready_built.hold()
    process = ready_built.start()
    wait_until(lambda: ready_built.is_held, "reference:a has read its input")
    ready_built.edit(VALUES, "SCALE = 2.0", "SCALE = 3.0")
    ready_built.let_go()
    edited = finish(process)
    assert (edited.code, edited.ran, edited.passed) == (2, {"reference:a"}, set())
    assert (
        f"{VALUES} changed while reference:a ran; nothing was published; run it again\n"
        in edited.out
    )
    reports = {
        "a/report/report.json": "report failed",
        "a/report/last_passed.json": "report passed",
    }
    assert contents(ready_built.root / "build") == {**before, **reports}

    again = ready_built.doit()
    assert again.code == 0
    assert again.passed == ALL - {"export:a", "engine:a:ort"}
    check_right_and_fresh(ready_built)


def test_9_three_at_once_build_each_target_once(ready: ReadyProject) -> None:
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


@pytest.mark.parametrize("go_on", [False, True], ids=["stopping", "continuing"])
def test_10_a_worker_is_killed_under_n_2(ready: ReadyProject, go_on: bool) -> None:
    ready.add_model("b")
    ready.hold()
    process = ready.start("-n", "2", *(["--continue"] if go_on else []))
    log = ready.root / "build/a/reference/reference.log"
    wait_until(lambda: ready.is_held and log in workers_in(ready.root), "reference:a is at work")
    os.kill(workers_in(ready.root)[log], signal.SIGKILL)
    ready.let_go()
    killed = finish(process)
    assert killed.code == 2
    sentence = (
        "the worker of reference:a was killed by signal 9 (SIGKILL), "
        "probably because memory ran out"
    )
    assert killed.out.count(f"{sentence}; full log: build/a/reference/reference.log\n") == 1
    if go_on:
        assert killed.passed == {"export:a"} | targets("b")

    again = ready.doit("-n", "2")
    assert again.code == 0
    assert again.passed == (ALL | targets("b")) - killed.passed
    assert ready.doit() == Ran(0, "everything is up to date (16 targets)\n", "")
    assert contents(ready.root / "build/a") == contents(ready.root / "build/b")
