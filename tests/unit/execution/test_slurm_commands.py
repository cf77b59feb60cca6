"""States of jobs in the listings of Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildsys.errors import StageError, TemporaryError
from buildsys.execution.executors.interface import (
    ENDED,
    LOST,
    QUEUED,
    RUNNING,
    JobState,
    RemoteJob,
)
from buildsys.execution.executors.slurm import SlurmExecutor
from buildsys.execution.executors.slurm_commands import (
    never_starts,
    parse_accounting,
    parse_queue,
    slurm,
)
from buildsys.plan.action import NO_NEEDS, Needs


def row(state: str, status: int = 0, machine: str = "n/a", reason: str = "None") -> str:
    return f"{'12_3':40}{state:20}{status:<12}{machine:64}{reason:100}\n"


@pytest.mark.parametrize(
    ("listing", "state"),
    [
        (row("PENDING", reason="Priority"), JobState(QUEUED, reason="Priority")),
        (row("CONFIGURING", machine="n1"), JobState(QUEUED, machine="n1")),
        (row("RUNNING", machine="n1"), JobState(RUNNING, machine="n1")),
        (row("COMPLETING", 768, "n1"), JobState(RUNNING, machine="n1")),
        (row("COMPLETED", 0, "n1"), JobState(ENDED, 0, "n1")),
        (row("FAILED", 768, "n1", "NonZeroExitCode"), JobState(ENDED, 3, "n1")),
        (row("FAILED", 9, "n1", "JobLaunchFailure"), JobState(ENDED, 137, "n1")),
        (
            row("OUT_OF_MEMORY", 9, "n1"),
            JobState(ENDED, 137, "n1", "it exceeded its memory in Slurm"),
        ),
        (row("NODE_FAIL", 1, "n1"), JobState(LOST, None, "n1", "its node failed")),
        (row("BOOT_FAIL"), JobState(LOST, reason="its node did not boot")),
        (row("PREEMPTED", 15, "n1"), JobState(LOST, None, "n1", "it was preempted")),
        (row("CANCELLED", 15, "n1"), JobState(ENDED, None, "n1", "it was cancelled in Slurm")),
    ],
)
def test_states_of_the_queue(listing: str, state: JobState) -> None:
    other = row("RUNNING").replace("12_3", "7   ")
    assert parse_queue(other + listing)["12_3"] == state


def test_a_job_beyond_its_time_says_what_to_raise() -> None:
    state = parse_queue(row("TIMEOUT", 15, "n1"))["12_3"]
    assert (state.phase, state.exit_code) == (ENDED, None)
    assert state.reason.endswith("raise `needs: {time: …}`")


def test_states_of_the_accounting() -> None:
    listing = (
        "1|COMPLETED|0:0|n1|None\n"
        "2_0|FAILED|3:0|n2|None\n"
        "2_1|CANCELLED by 1000|0:15|None assigned|None\n"
        "3|NODE_FAIL|0:0|n1|None\n"
        "4|FAILED|0:9|n1|a|b\n"
    )
    assert parse_accounting(listing) == {
        "1": JobState(ENDED, 0, "n1"),
        "2_0": JobState(ENDED, 3, "n2"),
        "2_1": JobState(ENDED, reason="it was cancelled in Slurm"),
        "3": JobState(LOST, None, "n1", "its node failed"),
        "4": JobState(ENDED, 137, "n1"),
    }
    assert parse_accounting("") == {}


def test_reasons_that_only_a_person_can_change() -> None:
    for reason in ("PartitionTimeLimit", "QOSMaxWallDurationPerJobLimit", "QOSMaxMemoryPerJob",
                   "InvalidAccount", "launch failed requeued held"):  # fmt: skip
        assert never_starts(reason)
    for reason in ("Resources", "Priority", "QOSMaxJobsPerUserLimit", "BeginTime", ""):
        assert not never_starts(reason)


def test_the_words_of_slurm_decide_if_another_attempt_may_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "sbatch"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for line, kind in {
        "Batch job submission failed: Invalid account": StageError,
        "Batch job submission failed: Socket timed out on send/recv operation": TemporaryError,
        "Batch job submission failed: Unable to contact slurm controller": TemporaryError,
    }.items():
        program.write_text(f"#!/bin/sh\necho 'sbatch: error: {line}' >&2\nexit 1\n")
        program.chmod(0o755)
        with pytest.raises(StageError, match=f"^sbatch: {line}; ") as found:
            slurm("sbatch")
        assert type(found.value) is kind
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StageError, match="cannot run squeue: No such file or directory; run doit"):
        slurm("squeue")


def test_needs_and_settings_become_options(tmp_path: Path) -> None:
    settings = {"partition": "gpu", "qos": "night", "options": ["--constraint=a100|h100"]}
    executor = SlurmExecutor(settings, tmp_path, 1)
    needs = Needs(gpu="RTX 6000", gpu_count=2, memory=(1 << 30) + 1, exclusive=True, time_s=90.0)
    assert executor._options(RemoteJob("a", (), needs)) == (
        "--requeue", "--partition=gpu", "--qos=night", "--gres=gpu:rtx_6000:2", "--mem=1025M",
        "--time=2", "--exclusive", "--constraint=a100|h100",
    )  # fmt: skip
    capability = RemoteJob("a", (), Needs(compute_capability="9.0", gpu_count=1))
    assert "--gres=gpu:1" in executor._options(capability)
    own = SlurmExecutor({"gres": "gpu:nvidia_h100_80gb"}, tmp_path, 1)
    assert "--gres=gpu:nvidia_h100_80gb:1" in own._options(capability)
    assert own._options(RemoteJob("a", (), NO_NEEDS)) == ("--requeue",)
