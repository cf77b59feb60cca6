"""Interrupted runs, and workers and servers that hang."""

import os
import signal

import pytest
from project_folder import TIMEOUT_S, Ran, wait_until
from ready_project import UP_TO_DATE, ReadyProject, contents, processes_marked, workers_in


def check_goes_on(project: ReadyProject, stopped: set[str]) -> None:
    """Check that the next run makes what is left and nothing else."""
    again = project.doit()
    assert (again.code, again.ran & stopped) == (0, set())
    assert again.passed >= {"reference:a", "validate:a", "verify:a:ort", "bench:a:ort", "report:a"}
    assert project.doit() == UP_TO_DATE
    assert contents(project.root / "build") == project.clean_contents()


@pytest.mark.parametrize(
    ("number", "to_all", "code"),
    [(signal.SIGINT, True, 130), (signal.SIGTERM, False, 143)],
    ids=["ctrl-c", "sigterm"],
)
def test_a_signal_ends_a_run_and_the_next_goes_on(
    ready: ReadyProject, number: signal.Signals, to_all: bool, code: int
) -> None:
    ready.hold()
    process = (ready.start_new if number == signal.SIGINT else ready.start)("-n", "2")
    log = ready.root / "build/a/reference/reference.log"
    wait_until(lambda: ready.is_held and log in workers_in(ready.root), "reference:a is at work")
    worker = workers_in(ready.root)[log]
    (os.killpg if to_all else os.kill)(process.pid, number)
    # the worker is held until the end of the test
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == code, out + err
    assert "Traceback" not in out + err
    assert "interrupted; finished targets are kept, the rest will run next time\n" in out
    wait_until(lambda: not workers_in(ready.root / "build"), "the worker is gone")
    assert worker not in processes_marked(ready.mark)
    if to_all:
        ready.let_go()
        check_goes_on(ready, Ran(code, out, err).passed)


def test_a_stage_that_hangs_is_stopped_at_its_limit(ready: ReadyProject) -> None:
    manifest = ready.root / "configs/models/a.yaml"
    manifest.write_text(manifest.read_text() + "timeout: {reference: 1s}\n")
    ready.hold()
    ran = ready.doit("-n", "2", "--continue", "reference:a")
    assert (ran.code, ran.passed) == (2, set())
    sentence = "reference:a exceeded its limit of 1 s and was stopped"
    assert ran.out.count(f"{sentence}; full log: build/a/reference/reference.log\n") == 2
    ready.let_go()
    ready.edit("configs/models/a.yaml", "reference: 1s", "reference: 10min")
    assert ready.doit("reference:a").passed == {"reference:a"}
