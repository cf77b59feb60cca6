import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from buildsys.errors import StageError
from buildsys.store.locks import CPU, InterruptedWaitError, Locks, machine_lock_folder

HOLD = (
    "import sys, time; from pathlib import Path; from buildsys.store.locks import Locks\n"
    "with Locks(Path(sys.argv[1])).target('engine:m:e', print):\n"
    "    print('held', flush=True); time.sleep(60)\n"
)


def unexpected(holder: str) -> None:
    raise AssertionError(f"waited for {holder}")


def until(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "the condition was never met"
        time.sleep(0.005)


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.fixture
def locks(tmp_path: Path) -> Locks:
    return Locks(tmp_path / "locks", tmp_path / "machine")


def test_a_free_target_is_locked_at_once(locks: Locks) -> None:
    with locks.target("a", unexpected) as waited, locks.target("b:c/d", unexpected):
        assert not waited
    with locks.target("a", unexpected) as waited:
        assert not waited


def test_a_second_thread_waits_and_learns_the_holder(locks: Locks) -> None:
    holders: list[str] = []
    order: list[str] = []

    def second() -> None:
        with locks.target("a", holders.append) as waited:
            order.append(f"second waited {waited}")

    with locks.target("a", unexpected):
        thread = in_thread(second)
        until(lambda: bool(holders))
        order.append("first done")
    thread.join()
    assert order == ["first done", "second waited True"]
    assert holders[0].startswith(f"process {os.getpid()} on ")
    assert "(a, since" in holders[0]


def test_a_killed_process_releases_its_lock(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    holders: list[str] = []

    def kill(by: str) -> None:
        holders.append(by)
        holder.send_signal(signal.SIGKILL)

    with Locks(tmp_path).target("engine:m:e", kill) as waited:
        assert waited
    holder.wait()
    holder.stdout.close()
    assert f"process {holder.pid} on" in holders[0]


def test_an_exclusive_holder_is_alone(locks: Locks) -> None:
    running: list[str] = []
    overlaps: list[list[str]] = []

    def stage(name: str, exclusive: bool) -> None:
        with locks.project(name, exclusive=exclusive, on_wait=lambda holder: None):
            running.append(name)
            if any(other.startswith("bench") for other in running) and len(running) > 1:
                overlaps.append(list(running))
            time.sleep(0.02)
            running.remove(name)

    threads = [
        in_thread(lambda n=n: stage(f"{'bench' if n % 3 == 0 else 'stage'}{n}", n % 3 == 0))
        for n in range(9)
    ]
    for thread in threads:
        thread.join()
    assert overlaps == []


def test_a_stream_of_shared_stages_does_not_starve_a_benchmark(locks: Locks) -> None:
    starved = 1000
    stages_run, during = [0], []

    def stream() -> None:
        while len(during) < 3 and stages_run[0] < starved:
            with locks.project("s", exclusive=False, on_wait=lambda holder: None):
                stages_run[0] += 1
                time.sleep(0.03)

    threads = [in_thread(stream) for _ in range(3)]  # at any time one of them has the project
    for _ in range(3):  # a busy machine may run many stages before the first attempt
        before = stages_run[0]
        until(lambda enough=before + 6: stages_run[0] >= enough)
        before = stages_run[0]
        with locks.project("bench", exclusive=True, on_wait=lambda holder: None):
            during.append(stages_run[0] - before)
        assert stages_run[0] < starved
    for thread in threads:
        thread.join()
    assert min(during) <= 10  # those already running or at the turnstile


def test_stopping_ends_all_waiting(locks: Locks) -> None:
    other = Locks(locks._folder)
    caught: list[Exception] = []
    waiting = threading.Event()

    def wait() -> None:
        try:
            with locks.target("a", lambda holder: waiting.set()):
                pass
        except InterruptedWaitError as error:
            caught.append(error)

    with other.target("a", unexpected):
        thread = in_thread(wait)
        assert waiting.wait(30)
        locks.stopped.set()
        thread.join(30)
        assert len(caught) == 1


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text("")
    with (
        pytest.raises(StageError, match=r"cannot lock .*writable"),
        Locks(tmp_path / "locks").target("a", unexpected),
    ):
        pass


def test_device_locks_are_shared_by_the_projects_of_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BUILDSYS_MACHINE_LOCK", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    chosen = machine_lock_folder()
    assert chosen.parent == tmp_path
    assert chosen.stat().st_mode & 0o077 == 0
    assert machine_lock_folder() == chosen


@pytest.mark.parametrize("spoil", ["link", "file", "owner", "missing"])
def test_an_unusable_folder_in_tmp_is_an_error_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    monkeypatch.delenv("BUILDSYS_MACHINE_LOCK", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = tmp_path / f"buildsys-{os.getuid()}"
    problem = "does not belong to you alone; remove it, or"
    if spoil == "link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    elif spoil == "file":
        folder.write_text("")
    elif spoil == "owner":
        folder.mkdir()
        user = os.getuid()
        folder.rename(tmp_path / "buildsys-54321")
        monkeypatch.setattr(os, "getuid", lambda: 54321)
        assert user != 54321
    else:
        monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
        problem = "cannot be created: No such file or directory;"
    remedy = "set BUILDSYS_MACHINE_LOCK to a folder of yours"
    with pytest.raises(StageError, match=f"the lock folder .* {problem} {remedy}"):
        machine_lock_folder()
    locks = Locks(tmp_path / "locks")
    with (  # locks of the project
        locks.target("a", unexpected),
        locks.project("a", exclusive=True, on_wait=unexpected),
        locks.devices([], "a", unexpected),
    ):
        pass
    with (
        pytest.raises(StageError, match="BUILDSYS_MACHINE_LOCK"),
        locks.devices([CPU], "a", unexpected),
    ):
        pass


def test_a_deleted_lock_folder_does_not_let_two_in(tmp_path: Path) -> None:
    first, second, third = (Locks(tmp_path / "locks") for _ in range(3))
    second_waits, second_holds, third_waits = (threading.Event() for _ in range(3))
    release = threading.Event()
    third_held = threading.Event()

    def hold_second() -> None:
        with second.target("a", lambda holder: second_waits.set()):
            second_holds.set()
            release.wait(30)

    def hold_third() -> None:
        with third.target("a", lambda holder: third_waits.set()):
            third_held.set()

    with first.target("a", unexpected):
        threads = [in_thread(hold_second)]
        assert second_waits.wait(30)
        shutil.rmtree(tmp_path / "locks")  # what second waits for is no longer at its path
    assert second_holds.wait(30)
    threads.append(in_thread(hold_third))
    until(lambda: third_waits.is_set() or third_held.is_set())
    together = third_held.is_set()
    release.set()
    for thread in threads:
        thread.join(30)
    assert not together
    assert third_held.is_set()
