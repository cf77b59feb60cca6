"""Outcome of a target in one run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from buildsys.store.ledger import FAILED, ActionRecord


class Outcome(NamedTuple):
    """The end of a target."""

    target: str
    status: str  # passed | unavailable | noisy | failed
    seconds: float  # of the stage itself
    reason: str = ""
    hint: str = ""
    waited: bool = False  # not run: another process or thread built it meanwhile
    restored: bool = False  # not run: its outputs came from the store
    error: str = ""  # type of the failure

    @classmethod
    def recorded(
        cls,
        record: ActionRecord,
        *,
        waited: bool = False,
        restored: bool = False,
    ) -> Outcome:
        """Return the outcome of a recorded build."""
        ended = (record.target, record.status, record.seconds, record.reason, record.hint)
        return cls(*ended, waited, restored)


def why_stopped(ended: Mapping[str, Outcome]) -> str:
    """Return why a run has left out targets that need no failed one."""
    failed = next((target for target, end in ended.items() if end.status == FAILED), "")
    return f"the run stopped when {failed} failed" if failed else "the run ended early"
