"""Ends of runs: their outcomes and their records in the ledger and the history."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from buildsys.execution.action_key import ActionKey
from buildsys.plan.action import RESULT, Action
from buildsys.stages.table import BENCH
from buildsys.store.ledger import (
    FAILED,
    NOISY,
    PASSED,
    RESTORED,
    ActionRecord,
    HistoryEntry,
    Ledger,
)
from buildsys.store.publish import Background

_NONE: Mapping[str, Any] = MappingProxyType({})


class RunRecords:
    """Records ends of targets' runs.

    ``make_recorder`` returns a ``history.recorder.HistoryRecorder``, or None to keep no history.
    """

    def __init__(
        self, ledger: Ledger, build: Path, background: Background, make_recorder: Callable[[], Any]
    ) -> None:
        self._ledger = ledger
        self._build = build
        self._background = background
        self._make_recorder = make_recorder

    @cached_property
    def recorder(self) -> Any:
        """The history, opened before the first stage: it looks up the checkout."""
        return self._make_recorder()

    def add(
        self,
        action: Action,
        key: ActionKey,
        run: HistoryEntry,
        files: Iterable[str] | None = None,
        figures: Mapping[str, Any] = _NONE,
        *,
        record: ActionRecord | None = None,
        restored: bool = False,
    ) -> None:
        """Add a run; a ``record`` is up to date from now on, and has the target's ``files``."""
        if record is None:
            self._ledger.add_run(run, files)
        else:
            self._ledger.add(record, restored=restored, why=run.why, reads=key.reads)
        if self.recorder is None:
            return
        outputs = record.files if record is not None else {}
        digests = {
            role: outputs[ref.path].digest
            for role, ref in action.outputs.items()
            if ref.path in outputs
        }
        build = self.recorder.add(
            {"model": action.model, "stage": action.stage, "variant": action.variant},
            parts=key.parts,
            figures=figures,
            outputs=digests,
            how=RESTORED if restored else "ran",
            **run._asdict(),
        )
        has_samples = action.stage == BENCH and not restored and run.status in (PASSED, NOISY)
        if build is not None and has_samples:
            # a benchmark has up to millions of samples
            result = self._build / action.outputs[RESULT].path
            self._background.submit(partial(self.recorder.add_measurements, build, result))

    def close(self) -> None:
        """Close the history, if this run has opened it."""
        if recorder := vars(self).get("recorder"):
            recorder.close()


class Outcome(NamedTuple):
    """The end of a target."""

    target: str
    status: str  # passed | unavailable | noisy | failed
    seconds: float  # the stage itself took
    reason: str = ""
    hint: str = ""
    waited: bool = False  # not run: another process or thread built it meanwhile
    restored: bool = False  # not run: its outputs came from the store
    error: str = ""  # type of the failure

    @classmethod
    def recorded(
        cls, record: ActionRecord, *, waited: bool = False, restored: bool = False
    ) -> "Outcome":
        """Make the outcome of a recorded build."""
        ended = (record.target, record.status, record.seconds, record.reason, record.hint)
        return cls(*ended, waited, restored)


def why_stopped(ended: Mapping[str, Outcome]) -> str:
    """Explain why a run has left out targets that need no failed one."""
    failed = next((target for target, end in ended.items() if end.status == FAILED), "")
    return f"the run stopped when {failed} failed" if failed else "the run ended early"
