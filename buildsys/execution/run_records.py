"""Ends of runs: their outcomes and their records in the ledger and the history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from buildsys.execution.action_key import ActionKey
from buildsys.plan.action import RESULT, Action
from buildsys.store.ledger import (
    FAILED,
    NOISY,
    PASSED,
    RESTORED,
    ActionRecord,
    HistoryEntry,
    Ledger,
    OutputFile,
    utc_now,
)
from buildsys.store.publish import Background

_RAN = "ran"
_NONE: Mapping[str, Any] = MappingProxyType({})


class Recorder(Protocol):
    """A history of runs. It never fails a build."""

    def add(self, *names: Any, **facts: Any) -> Any:
        """Record a finished target; return its build, or None."""

    def add_measurements(self, build: Any, result: Path) -> None:
        """Record the samples in a result file."""

    def close(self) -> None:
        """Finish writing."""


class RunRecords:
    """Records ends of targets' runs.

    ``make_recorder`` returns the recorder of the history, None to keep no history.
    """

    def __init__(
        self,
        ledger: Ledger,
        build: Path,
        background: Background,
        make_recorder: Callable[[], Recorder | None],
    ) -> None:
        self._ledger = ledger
        self._build = build
        self._background = background
        self._make_recorder = make_recorder

    def prepare(self) -> None:
        """Open the history, whose recorder looks up the checkout."""
        _ = self._recorder

    def add(
        self,
        action: Action,
        key: ActionKey,
        run: HistoryEntry,
        files: Iterable[str] | None = None,
        figures: Mapping[str, Any] = _NONE,
    ) -> None:
        """Add a run without restorable outputs; ``files`` are the target's."""
        self._ledger.add_run(run, files)
        self._add_to_history(action, key, run, figures)

    def add_build(
        self,
        action: Action,
        key: ActionKey,
        record: ActionRecord,
        why: str,
        figures: Mapping[str, Any],
        *,
        restored: bool = False,
    ) -> None:
        """Add a build, up to date from now on."""
        self._ledger.add(record, restored=restored, why=why, reads=key.reads)
        started, how = (utc_now(), RESTORED) if restored else (record.started, _RAN)
        ended = record.status, started, record.seconds, record.reason, why
        run = HistoryEntry(record.target, key.digest, *ended)
        self._add_to_history(action, key, run, figures, record.outputs, how=how)

    def close(self) -> None:
        """Close the history, if this run has opened it."""
        if recorder := vars(self).get("_recorder"):
            recorder.close()

    def _add_to_history(
        self,
        action: Action,
        key: ActionKey,
        run: HistoryEntry,
        figures: Mapping[str, Any],
        outputs: Mapping[str, OutputFile | None] = _NONE,
        *,
        how: str = _RAN,
    ) -> None:
        if self._recorder is None:
            return
        files = {role: outputs.get(ref.path) for role, ref in action.outputs.items()}
        build = self._recorder.add(
            {"model": action.model, "stage": action.stage, "variant": action.variant},
            parts=key.parts,
            figures=figures,
            outputs={role: file.digest for role, file in files.items() if file is not None},
            how=how,
            **run._asdict(),
        )
        is_measured = action.measures and run.status in (PASSED, NOISY)
        if build is not None and is_measured and how == _RAN:
            # a benchmark has up to millions of samples
            result = self._build / action.outputs[RESULT].path
            self._background.submit(partial(self._recorder.add_measurements, build, result))

    @cached_property
    def _recorder(self) -> Recorder | None:
        return self._make_recorder()


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
        cls,
        record: ActionRecord,
        *,
        waited: bool = False,
        restored: bool = False,
    ) -> Outcome:
        """Make the outcome of a recorded build."""
        ended = (record.target, record.status, record.seconds, record.reason, record.hint)
        return cls(*ended, waited, restored)


def why_stopped(ended: Mapping[str, Outcome]) -> str:
    """Explain why a run has left out targets that need no failed one."""
    failed = next((target for target, end in ended.items() if end.status == FAILED), "")
    return f"the run stopped when {failed} failed" if failed else "the run ended early"
