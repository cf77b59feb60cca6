"""Results of one run of doit: its targets with their ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

PASSED, RESTORED, UP_TO_DATE = "passed", "restored", "up-to-date"
UNAVAILABLE, NOISY, FAILED = "unavailable", "noisy", "failed"
IGNORED, NOT_RUN = "ignored", "not-run"
FINISHED, RUNNING, INTERRUPTED, REFUSED = "finished", "running", "interrupted", "refused"
STATUSES = (PASSED, RESTORED, UP_TO_DATE, UNAVAILABLE, NOISY, FAILED, IGNORED, NOT_RUN)


@dataclass(frozen=True)
class TargetResult:
    """The end of one target."""

    target: str
    model: str
    stage: str
    variant: str
    status: str  # one of STATUSES
    seconds: float = 0.0
    why: str = ""  # why it was stale
    figure: str = ""  # its key figure
    # failure with its hint, or why it is unavailable, noisy or was not run
    reason: str = ""
    error: str = ""  # type of the failure
    log: str = ""  # this run's log, relative to the project
    owner: str = ""
    first_failure: str = ""  # why a flaky target was repeated
    last_passed: str = ""  # start of the run that passed before this failure, ISO
    regressed: bool = False  # the run before this one passed, or a gate refused it


@dataclass(frozen=True)
class BrokenManifest:
    """A manifest with errors."""

    file: str
    errors: tuple[str, ...]


@dataclass(frozen=True)
class RunResults:
    """One run of doit."""

    started: str  # ISO, UTC
    seconds: float
    host: str
    status: str = FINISHED  # RUNNING also after a kill, REFUSED if nothing could be run
    error: str = ""  # why it is running or refused
    targets: tuple[TargetResult, ...] = ()
    manifests: tuple[BrokenManifest, ...] = ()

    @property
    def failed(self) -> list[TargetResult]:
        """Failed targets without an earlier success, or failed before."""
        return self._where(lambda end: end.status == FAILED and not end.regressed)

    @property
    def regressed(self) -> list[TargetResult]:
        """Targets failed or unavailable after a successful run."""
        return self._where(lambda end: end.regressed)

    @property
    def never_ran(self) -> list[TargetResult]:
        """Requested targets not reached by this run."""
        return self._where(lambda end: end.status in (NOT_RUN, IGNORED))

    @property
    def never_ran_by_reason(self) -> dict[str, list[TargetResult]]:
        """Targets not reached, by the reason."""
        targets: dict[str, list[TargetResult]] = {}
        for target in self.never_ran:
            targets.setdefault(target.reason, []).append(target)
        return targets

    @property
    def flaky(self) -> list[TargetResult]:
        """Targets passed only on repetition."""
        return self._where(lambda end: bool(end.first_failure) and end.status != FAILED)

    @property
    def noisy(self) -> list[TargetResult]:
        """Benchmarks without a trustworthy figure."""
        return self._where(lambda end: end.status == NOISY)

    @property
    def built(self) -> list[TargetResult]:
        """Targets built or restored by this run."""
        return self._where(lambda end: end.status in (PASSED, RESTORED))

    def count(self, status: str) -> int:
        """Count the targets with a status."""
        return sum(target.status == status for target in self.targets)

    def _where(self, accepts: Callable[[TargetResult], bool]) -> list[TargetResult]:
        return [target for target in self.targets if accepts(target)]


def regression(runs: Sequence[tuple[str, str]], since: str) -> tuple[str, bool]:
    """Return the start of the last success before ``since``, and whether it was the last run.

    ``runs`` are status and start of a target's runs without noisy ones, newest first.
    """
    before = [run for run in runs if run[1] < since]
    if len(before) == len(runs):  # not in this run
        return "", False
    passed = [run for run in before if run[0] in (PASSED, RESTORED)]
    return (passed[0][1] if passed else ""), before[:1] == passed[:1] != []
