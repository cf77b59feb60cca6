"""Outcome of a target in one run."""

from __future__ import annotations

import sys
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
    asked: bool = False  # not run: its machines were asked, and are as they were
    restored: bool = False  # not run: its outputs came from the store
    error: str = ""  # type of the failure

    @classmethod
    def recorded(
        cls,
        record: ActionRecord,
        *,
        waited: bool = False,
        asked: bool = False,
        restored: bool = False,
    ) -> Outcome:
        """Return the outcome of a recorded build."""
        status = sys.intern(record.status)  # the database returns a new string per row
        ended = (record.target, status, record.seconds, record.reason, record.hint)
        return cls(*ended, waited, asked, restored)


def why_stopped(ended: Mapping[str, Outcome]) -> str:
    """Return why a run has left out targets that need no failed one."""
    failed = next((target for target, end in ended.items() if end.status == FAILED), "")
    return f"the run stopped when {failed} failed" if failed else "the run ended early"
